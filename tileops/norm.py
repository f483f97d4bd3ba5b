"""Normalisation operators."""

from __future__ import annotations

from tileops.ops.norm import RMSNormFwdOp

__all__ = ["RMSNormFwdOp"]
