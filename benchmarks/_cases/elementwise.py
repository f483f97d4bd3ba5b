"""Benchmarked operators of the elementwise family."""

from __future__ import annotations

from benchmarks._cases import Registration
from tileops.elementwise import AddFwdOp, SiluAndMulFwdOp

ADD = Registration(AddFwdOp)
SILU_AND_MUL = Registration(SiluAndMulFwdOp)
