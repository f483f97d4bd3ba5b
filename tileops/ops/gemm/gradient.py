"""The gradient of a matrix multiplication: two matrix multiplications."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, cast

import torch

from tileops.ops.gradients import Backward

if TYPE_CHECKING:
    from tileops.ops.gemm.gemm import GemmFwdOp


@lru_cache(maxsize=64)
def _gemm(trans_a: bool, trans_b: bool, target: str | None) -> GemmFwdOp:
    from tileops.ops.gemm.gemm import GemmFwdOp

    return GemmFwdOp(trans_a, trans_b, target=target)


def gemm_gradient(back: Backward) -> dict[str, torch.Tensor | None]:
    """With ``d = A B``: ``dA = G B^T`` and ``dB = A^T G``, each written so that no operand is copied to be
    transposed.
    """
    op = cast("GemmFwdOp", back.op)
    (grad,) = back.grads
    a, b = back.saved["a"], back.saved["b"]
    found: dict[str, torch.Tensor | None] = {}
    if back.needed["a"]:
        if op.trans_a:  # a = A^T, so its gradient is B G^T
            found["a"] = _gemm(op.trans_b, True, op.target)(b, grad)
        else:
            found["a"] = _gemm(False, not op.trans_b, op.target)(grad, b)
    if back.needed["b"]:
        if op.trans_b:  # b = B^T, so its gradient is G^T A
            found["b"] = _gemm(True, op.trans_a, op.target)(grad, a)
        else:
            found["b"] = _gemm(not op.trans_a, False, op.target)(a, grad)
    return found
