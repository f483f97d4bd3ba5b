"""Benchmarked operators of the moe family."""

from __future__ import annotations

from benchmarks._cases import Registration
from tileops.moe import SharedExpertMLPFwdOp

SHARED_EXPERT_MLP = Registration(SharedExpertMLPFwdOp)
