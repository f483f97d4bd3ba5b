"""Gated activations, the middle of an MLP block: an activation of one half of each row times the other half."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import ClassVar

from tileops.kernels.elementwise.call_spec import GatedCall, GatedFwdInterface
from tileops.kernels.elementwise.gated_cpu import GatedCpuKernel
from tileops.kernels.elementwise.gated_cuda import GatedCudaKernel
from tileops.ops.base import Op
from tileops.ops.elementwise.family import function_name
from tileops.ops.elementwise.silu_and_mul_bwd import silu_and_mul_gradient
from tileops.ops.facts import CallFacts
from tileops.ops.gradients import Gradient


class _GatedOp(Op):
    kernel_types: ClassVar = {"cpu": GatedCpuKernel, "cuda": GatedCudaKernel}
    interfaces: ClassVar = {"gated": GatedFwdInterface}

    def _cache_key(self, *input_shapes: tuple[int, ...]) -> Hashable:
        (*rows, width) = input_shapes[0]
        return math.prod(rows), width

    def _call_spec(self, facts: CallFacts) -> GatedCall:
        name = function_name(type(self).__name__)
        return GatedCall(function=name, x=facts["x"], output=facts["output"], device=facts.device)


class SiluAndMulFwdOp(_GatedOp):
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

    gradient = Gradient(silu_and_mul_gradient, saves=("x",))

    def __init__(self, *, target: str | None = None) -> None:
        super().__init__(target=target)


class GeluAndMulFwdOp(_GatedOp):
    """The gated activation of GeGLU: ``output = gelu(x[:, :N]) * x[:, N:]`` with ``gelu(z) = z Phi(z)``.

    Follows ``flashinfer.activation.gelu_and_mul``; float32 inside, rounded once.

    Args:
        target: which set of kernels serves the op; None decides by the device of each call.

    Call:
        ``op(x)``

        - x: ``[M, 2 N]``, float16, bfloat16 or float32, any strides: the gate first, then the value.

        Returns `output`: ``[M, N]``, dtype of `x`, contiguous.

    Raises:
        CheckError: a tensor violates the manifest entry; the message names the declaration.
    """

    def __init__(self, *, target: str | None = None) -> None:
        super().__init__(target=target)


class GeluTanhAndMulFwdOp(_GatedOp):
    """The gated activation of GeGLU with the tanh form of gelu.

    ``output = gelu_tanh(x[:, :N]) * x[:, N:]`` with ``gelu_tanh(z) = z / 2 (1 + tanh(sqrt(2 / pi) (z + 0.044715
    z**3)))``. Follows ``flashinfer.activation.gelu_tanh_and_mul``; float32 inside, rounded once.

    Args:
        target: which set of kernels serves the op; None decides by the device of each call.

    Call:
        ``op(x)``

        - x: ``[M, 2 N]``, float16, bfloat16 or float32, any strides: the gate first, then the value.

        Returns `output`: ``[M, N]``, dtype of `x`, contiguous.

    Raises:
        CheckError: a tensor violates the manifest entry; the message names the declaration.
    """

    def __init__(self, *, target: str | None = None) -> None:
        super().__init__(target=target)
