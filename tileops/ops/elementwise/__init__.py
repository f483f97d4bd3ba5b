"""Elementwise operators."""

from __future__ import annotations

from tileops.ops.elementwise.add import AddFwdOp
from tileops.ops.elementwise.silu_and_mul import SiluAndMulFwdOp

__all__ = ["AddFwdOp", "SiluAndMulFwdOp"]
