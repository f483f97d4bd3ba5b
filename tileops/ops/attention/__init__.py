"""Attention operators."""

from __future__ import annotations

from tileops.ops.attention.gqa_dense import GQADenseFwdOp

__all__ = ["GQADenseFwdOp"]
