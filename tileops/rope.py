"""Rotary position embedding operators."""

from __future__ import annotations

from tileops.ops.rope import LongRoPEFwdOp, RoPEFwdOp, RoPELlama31FwdOp, RoPENeoxPositionIdsFwdOp, YaRNFwdOp

__all__ = ["LongRoPEFwdOp", "RoPEFwdOp", "RoPELlama31FwdOp", "RoPENeoxPositionIdsFwdOp", "YaRNFwdOp"]
