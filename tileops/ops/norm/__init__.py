"""Normalisation operators."""

from __future__ import annotations

from tileops.ops.norm.rms_norm import RMSNormFwdOp
from tileops.ops.norm.rms_norm_bwd import RMSNormBwdOp

__all__ = ["RMSNormBwdOp", "RMSNormFwdOp"]
