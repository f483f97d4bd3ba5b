"""Benchmarked operators of the norm family."""

from __future__ import annotations

from benchmarks._cases import Registration
from tileops.norm import RMSNormFwdOp

RMS_NORM = Registration(RMSNormFwdOp)
