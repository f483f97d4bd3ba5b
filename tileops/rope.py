"""Rotary position embedding operators."""

from __future__ import annotations

from tileops.ops.rope import RoPEFwdOp, RoPENeoxPositionIdsFwdOp

__all__ = ["RoPEFwdOp", "RoPENeoxPositionIdsFwdOp"]
