"""Benchmarked operators of the rope family."""

from __future__ import annotations

from benchmarks._cases import Registration
from tileops.rope import RoPEFwdOp, RoPENeoxPositionIdsFwdOp

ROPE = Registration(RoPEFwdOp)
ROPE_NEOX_POSITION_IDS = Registration(RoPENeoxPositionIdsFwdOp)
