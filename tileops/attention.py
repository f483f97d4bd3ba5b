"""Attention operators."""

from __future__ import annotations

from tileops.ops.attention import GQADenseFwdOp

__all__ = ["GQADenseFwdOp"]
