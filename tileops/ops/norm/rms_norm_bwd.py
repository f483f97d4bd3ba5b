"""The gradients of root mean square normalisation."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import ClassVar

from tileops.kernels.norm.call_spec import RMSNormBwdCall, RMSNormBwdInterface
from tileops.kernels.norm.rms_norm_bwd_cpu import RMSNormBwdCpuKernel
from tileops.kernels.norm.rms_norm_bwd_cuda import RMSNormBwdCudaKernel
from tileops.ops.base import Op
from tileops.ops.facts import CallFacts
from tileops.ops.norm.epsilon import resolved_eps


class RMSNormBwdOp(Op):
    """Gradients of `RMSNormFwdOp` with respect to `x` and `weight`.

    Follows ``torch.autograd.grad`` of ``torch.nn.functional.rms_norm``; the statistics of `x` are computed anew.
    Everything is float32 inside and rounded once, at the end. `backward()` through `RMSNormFwdOp` calls this
    operator. It has no gradient formula of its own.

    Args:
        normalized_shape: as in the forward.
        eps: as in the forward.
        target: which set of kernels serves the op; None decides by the device of each call.

    Call:
        ``op(grad_out, x, weight=None)``

        - grad_out: gradient of the output, shape and dtype of `x`, any strides.
        - x: ``[*B, *normalized_shape]``, float16, bfloat16 or float32, any strides.
        - weight: ``[*normalized_shape]``, dtype of `x`; None if the forward had none.

        Returns `grad_x`, shape and dtype of `x`, and `grad_weight`, shape and dtype of `weight`, or None without
        a weight; both contiguous. On one machine the bits of `grad_weight` do not depend on the number of threads.

    Raises:
        CheckError: a parameter or a tensor violates the manifest entry; the message names the declaration.

    Example:
        >>> grad_x, grad_weight = RMSNormBwdOp(normalized_shape=(4096,), eps=1e-5)(grad_out, x, weight)
    """

    kernel_types: ClassVar = {"cpu": RMSNormBwdCpuKernel, "cuda": RMSNormBwdCudaKernel}
    interfaces: ClassVar = {"rms_norm_bwd": RMSNormBwdInterface}

    def __init__(
        self, normalized_shape: tuple[int, ...], eps: float | None = None, *, target: str | None = None
    ) -> None:
        self.normalized_shape = normalized_shape
        self.eps = eps
        super().__init__(target=target)

    def _cache_key(self, *input_shapes: tuple[int, ...]) -> Hashable:
        rows = input_shapes[0][: len(input_shapes[0]) - len(self.normalized_shape)]
        return math.prod(rows), len(input_shapes)

    def _call_spec(self, facts: CallFacts) -> RMSNormBwdCall:
        return RMSNormBwdCall(
            grad_out=facts["grad_out"],
            x=facts["x"],
            weight=facts["weight"],
            grad_x=facts["grad_x"],
            grad_weight=facts["grad_weight"],
            normalized_ndim=len(self.normalized_shape),
            eps=resolved_eps(self.eps),
            device=facts.device,
        )
