"""Gradients of normalisation operators."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import torch

from tileops.ops.gradients import Backward

if TYPE_CHECKING:
    from tileops.ops.norm.rms_norm import RMSNormFwdOp
    from tileops.ops.norm.rms_norm_bwd import RMSNormBwdOp


@lru_cache(maxsize=64)
def _rms_norm_bwd(normalized_shape: tuple[int, ...], eps: float | None, target: str | None) -> RMSNormBwdOp:
    from tileops.ops.norm.rms_norm_bwd import RMSNormBwdOp

    return RMSNormBwdOp(normalized_shape, eps, target=target)


def rms_norm_gradient(back: Backward) -> dict[str, torch.Tensor | None]:
    """One call of `RMSNormBwdOp`, which computes the gradient of the weight wherever there is one."""
    op = cast("RMSNormFwdOp", back.op)
    grad: Any = back.grads[0]
    bwd = _rms_norm_bwd(tuple(op.normalized_shape), op.eps, op.target)
    grad_x, grad_weight = bwd(grad, back.saved["x"], back.saved["weight"])
    return {"x": grad_x, "weight": grad_weight}
