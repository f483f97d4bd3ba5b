"""Benchmarked operators of the norm family."""

from __future__ import annotations

from benchmarks._cases import Registration
from tileops.norm import RMSNormBwdOp, RMSNormFwdOp

RMS_NORM = Registration(RMSNormFwdOp)
RMS_NORM_BWD = Registration(RMSNormBwdOp, ("torch", "torch-compile", "torch-autograd"))
