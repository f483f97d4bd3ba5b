"""Benchmarked operators of the gemm family."""

from __future__ import annotations

from benchmarks._cases import Registration
from tileops.gemm import GemmFwdOp

GEMM = Registration(GemmFwdOp)
