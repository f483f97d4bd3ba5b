"""Matrix multiplication operators, and `pack` for weights that are used many times."""

from __future__ import annotations

from tileops.ops.gemm import GemmFwdOp
from tileops.ops.gemm.pack import PackedWeight as PackedWeight
from tileops.ops.gemm.pack import pack as pack

__all__ = ["GemmFwdOp"]
