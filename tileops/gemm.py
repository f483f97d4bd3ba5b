"""Matrix multiplication operators."""

from __future__ import annotations

from tileops.ops.gemm import GemmFwdOp

__all__ = ["GemmFwdOp"]
