"""Root mean square normalisation."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import ClassVar

from tileops.kernels.norm.call_spec import RMSNormCall, RMSNormFwdInterface
from tileops.kernels.norm.rms_norm_cpu import RMSNormCpuKernel
from tileops.kernels.norm.rms_norm_cuda import RMSNormCudaKernel
from tileops.ops.base import Op
from tileops.ops.facts import CallFacts
from tileops.ops.gradients import Gradient
from tileops.ops.norm.epsilon import resolved_eps
from tileops.ops.norm.gradient import rms_norm_gradient


class RMSNormFwdOp(Op):
    """Root mean square normalisation: ``output = x / sqrt(mean(x^2) + eps) * weight`` over the trailing axes.

    Follows ``torch.nn.functional.rms_norm``: everything is float32 inside and rounded once, at the end.

    Args:
        normalized_shape: extents of the trailing axes that are normalised, at least one.
        eps: added to the mean square; None for the machine epsilon of float32.
        target: which set of kernels serves the op; None decides by the device of each call.

    Call:
        ``op(x, weight=None)``

        - x: ``[*B, *normalized_shape]``, float16, bfloat16 or float32, any strides.
        - weight: ``[*normalized_shape]``, dtype of `x`; None for no scaling.

        Returns `output`: shape and dtype of `x`, contiguous.

    Raises:
        CheckError: a parameter or a tensor violates the manifest entry; the message names the declaration.

    Example:
        >>> op = RMSNormFwdOp(normalized_shape=(4096,), eps=1e-5)
        >>> y = op(x, weight)
    """

    kernel_types: ClassVar = {"cpu": RMSNormCpuKernel, "cuda": RMSNormCudaKernel}
    interfaces: ClassVar = {"rms_norm": RMSNormFwdInterface}
    gradient = Gradient(rms_norm_gradient, saves=("x", "weight"))

    def __init__(
        self, normalized_shape: tuple[int, ...], eps: float | None = None, *, target: str | None = None
    ) -> None:
        self.normalized_shape = normalized_shape
        self.eps = eps
        super().__init__(target=target)

    def _cache_key(self, *input_shapes: tuple[int, ...]) -> Hashable:
        rows = input_shapes[0][: len(input_shapes[0]) - len(self.normalized_shape)]
        return math.prod(rows), len(input_shapes)

    def _call_spec(self, facts: CallFacts) -> RMSNormCall:
        return RMSNormCall(
            x=facts["x"],
            weight=facts["weight"],
            output=facts["output"],
            normalized_ndim=len(self.normalized_shape),
            eps=resolved_eps(self.eps),
            device=facts.device,
        )
