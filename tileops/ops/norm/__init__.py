"""Normalisation operators."""

from __future__ import annotations

from tileops.ops.norm.rms_norm import RMSNormFwdOp

__all__ = ["RMSNormFwdOp"]
