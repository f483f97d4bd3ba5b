"""Rotary position embedding operators."""

from __future__ import annotations

from tileops.ops.rope.rope import RoPEFwdOp
from tileops.ops.rope.rope_position_ids import RoPENeoxPositionIdsFwdOp

__all__ = ["RoPEFwdOp", "RoPENeoxPositionIdsFwdOp"]
