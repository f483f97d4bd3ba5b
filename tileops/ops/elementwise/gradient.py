"""Gradients of elementwise operators."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import torch

from tileops.ops.gradients import Backward

if TYPE_CHECKING:
    from tileops.ops.elementwise.add import AddFwdOp


@lru_cache(maxsize=64)
def _add(alpha: int | float, target: str | None) -> AddFwdOp:
    from tileops.ops.elementwise.add import AddFwdOp

    return AddFwdOp(alpha=alpha, target=target)


def add_gradient(back: Backward) -> dict[str, torch.Tensor | None]:
    """``output = input + alpha * other``: the gradient itself and alpha times it, summed over the axes along which the
    operand was broadcast.
    """
    op = cast("AddFwdOp", back.op)
    grad: Any = back.grads[0]
    found: dict[str, torch.Tensor | None] = {}
    if back.needed["input"]:
        found["input"] = grad.sum_to_size(back.shapes["input"])
    if back.needed["other"]:
        summed = grad.sum_to_size(back.shapes["other"])
        if op.alpha != 1:
            zero = summed.new_zeros(()).expand(summed.shape)
            summed = _add(op.alpha, op.target)(zero, summed)
        found["other"] = summed
    return found
