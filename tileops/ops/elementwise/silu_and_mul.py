"""The gated activation of SwiGLU."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import ClassVar

from tileops.kernels.elementwise.call_spec import SiluAndMulCall, SiluAndMulFwdInterface
from tileops.kernels.elementwise.silu_and_mul_cpu import SiluAndMulCpuKernel
from tileops.kernels.elementwise.silu_and_mul_cuda import SiluAndMulCudaKernel
from tileops.ops.base import Op
from tileops.ops.facts import CallFacts


class SiluAndMulFwdOp(Op):
    """The gated activation of SwiGLU: ``output = silu(x[:, :N]) * x[:, N:]`` with ``silu(z) = z / (1 +
    exp(-z))``.

    Follows ``flashinfer.activation.silu_and_mul``; float32 inside, rounded once.

    Args:
        target: which set of kernels serves the op; None decides by the device of each call.

    Call:
        ``op(x)``

        - x: ``[M, 2 N]``, float16, bfloat16 or float32, any strides: the gate first, then the value.

        Returns `output`: ``[M, N]``, dtype of `x`, contiguous.

    Raises:
        CheckError: a tensor violates the manifest entry; the message names the declaration.

    Example:
        >>> y = SiluAndMulFwdOp()(gate_up)
    """

    kernel_types: ClassVar = {"cpu": SiluAndMulCpuKernel, "cuda": SiluAndMulCudaKernel}
    interfaces: ClassVar = {"silu_and_mul": SiluAndMulFwdInterface}

    def __init__(self, *, target: str | None = None) -> None:
        super().__init__(target=target)

    def _cache_key(self, *input_shapes: tuple[int, ...]) -> Hashable:
        (*rows, width) = input_shapes[0]
        return math.prod(rows), width

    def _call_spec(self, facts: CallFacts) -> SiluAndMulCall:
        return SiluAndMulCall(x=facts["x"], output=facts["output"], device=facts.device)
