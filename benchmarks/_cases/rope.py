"""Benchmarked operators of the rope family."""

from __future__ import annotations

from benchmarks._cases import Registration
from tileops.rope import LongRoPEFwdOp, RoPEFwdOp, RoPELlama31FwdOp, RoPENeoxPositionIdsFwdOp, YaRNFwdOp

ROPE = Registration(RoPEFwdOp)
ROPE_LLAMA31 = Registration(RoPELlama31FwdOp)
YARN = Registration(YaRNFwdOp)
LONG_ROPE = Registration(LongRoPEFwdOp)
ROPE_NEOX_POSITION_IDS = Registration(RoPENeoxPositionIdsFwdOp)
