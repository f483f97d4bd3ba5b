"""Normalisation operators."""

from __future__ import annotations

from tileops.ops.norm import RMSNormBwdOp, RMSNormFwdOp

__all__ = ["RMSNormBwdOp", "RMSNormFwdOp"]
