"""Calls of the normalisation kernels."""

from __future__ import annotations

from dataclasses import dataclass

from tileops.kernels.base import CallSpec, KernelInterface, TensorSpec


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
