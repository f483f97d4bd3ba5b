"""Operators of mixtures of experts."""

from __future__ import annotations

from tileops.ops.moe import SharedExpertMLPFwdOp

__all__ = ["SharedExpertMLPFwdOp"]
