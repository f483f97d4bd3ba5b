"""Gradients of elementwise operators."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from tileops.ops.gradients import Backward, Gradient


@lru_cache(maxsize=64)
def _add(alpha: int | float, target: str | None) -> Any:
    from tileops.ops import elementwise

    return elementwise.AddFwdOp(alpha=alpha, target=target)


def add_gradient(back: Backward) -> dict[str, torch.Tensor | None]:
    """``output = input + alpha * other``: the gradient itself and alpha times it, summed over the axes along which the
    operand was broadcast.
    """
    op: Any = back.op
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


#: The gradient formula of each operator that has one.
GRADIENTS: Mapping[str, Gradient] = {"AddFwdOp": Gradient(add_gradient)}
