"""Elementwise operators."""

from __future__ import annotations

from tileops.ops.elementwise import AddFwdOp, SiluAndMulFwdOp

__all__ = ["AddFwdOp", "SiluAndMulFwdOp"]
