"""Benchmarked operators of the attention family."""

from __future__ import annotations

from benchmarks._cases import Registration
from tileops.attention import GQADenseFwdOp

GQA_DENSE = Registration(GQADenseFwdOp)
