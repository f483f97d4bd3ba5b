"""Rotary position embedding operators."""

from __future__ import annotations

from tileops.ops.rope.long_rope import LongRoPEFwdOp
from tileops.ops.rope.rope import RoPEFwdOp
from tileops.ops.rope.rope_llama31 import RoPELlama31FwdOp
from tileops.ops.rope.rope_position_ids import RoPENeoxPositionIdsFwdOp
from tileops.ops.rope.yarn import YaRNFwdOp

__all__ = ["LongRoPEFwdOp", "RoPEFwdOp", "RoPELlama31FwdOp", "RoPENeoxPositionIdsFwdOp", "YaRNFwdOp"]
