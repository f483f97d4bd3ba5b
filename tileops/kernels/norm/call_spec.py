"""Calls of the normalisation kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tileops.kernels.base import CallSpec, KernelInterface, TensorSpec


def row_length(call: RMSNormCall | RMSNormBwdCall) -> int:
    """Elements of a row."""
    return math.prod(call.x.shape[-call.normalized_ndim :])


@dataclass(frozen=True)
class RMSNormCall(CallSpec):
    """``output = x / sqrt(mean(x^2) + eps) * weight`` over the last `normalized_ndim` axes.

    Attributes:
        x: ``[*B, *normalized_shape]``, any strides.
        weight: ``[*normalized_shape]`` of the dtype of `x`, any strides, or None for a weight of ones.
        output: shape and dtype of `x`, contiguous.
        normalized_ndim: how many trailing axes are reduced (at least one; their product is the row length N
            >= 1).
        eps: added to the mean square; already resolved (never None).
    """

    x: TensorSpec
    weight: TensorSpec | None
    output: TensorSpec
    normalized_ndim: int
    eps: float


class RMSNormFwdInterface(KernelInterface):
    """``launch(x, weight, output)``; `weight` is None where the call has none."""

    call_spec = RMSNormCall
    tensors = ("x", "weight", "output")


@dataclass(frozen=True)
class RMSNormBwdCall(CallSpec):
    """The gradients of `RMSNormCall` for the gradient `grad_out` of its output.

    With ``y = x / sqrt(mean(x^2) + eps)`` and ``h = grad_out * weight``: ``grad_x = (h - y * mean(h * y)) / sqrt(...)``
    and ``grad_weight`` the sum of ``grad_out * y`` over all rows.

    Attributes:
        grad_out: shape and dtype of `x`, any strides.
        x: ``[*B, *normalized_shape]``, any strides.
        weight: ``[*normalized_shape]`` of the dtype of `x`, any strides, or None for a weight of ones.
        grad_x: shape and dtype of `x`, contiguous.
        grad_weight: shape and dtype of `weight`, contiguous; None where there is no weight. Zeros for no rows.
        normalized_ndim: how many trailing axes are reduced (at least one; their product is the row length N
            >= 1).
        eps: added to the mean square; already resolved (never None).
    """

    grad_out: TensorSpec
    x: TensorSpec
    weight: TensorSpec | None
    grad_x: TensorSpec
    grad_weight: TensorSpec | None
    normalized_ndim: int
    eps: float


class RMSNormBwdInterface(KernelInterface):
    """``launch(grad_out, x, weight, grad_x, grad_weight)``; the two of the weight are None where the call has none."""

    call_spec = RMSNormBwdCall
    tensors = ("grad_out", "x", "weight", "grad_x", "grad_weight")
