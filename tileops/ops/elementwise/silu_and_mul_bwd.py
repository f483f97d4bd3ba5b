"""The gradient of SwiGLU's activation."""

from __future__ import annotations

import math
from collections.abc import Hashable
from functools import lru_cache
from typing import Any, ClassVar

import torch

from tileops.kernels.elementwise.silu_and_mul_bwd_call import SiluAndMulBwdCall, SiluAndMulBwdInterface
from tileops.kernels.elementwise.silu_and_mul_bwd_cpu import SiluAndMulBwdCpuKernel
from tileops.kernels.elementwise.silu_and_mul_bwd_cuda import SiluAndMulBwdCudaKernel
from tileops.ops.base import Op
from tileops.ops.facts import CallFacts
from tileops.ops.gradients import Backward


class SiluAndMulBwdOp(Op):
    """Gradient of `SiluAndMulFwdOp` with respect to `x`.

    Follows ``torch.autograd.grad`` of ``silu(x[:, :N]) * x[:, N:]``, NaN for infinite gates included; float32 inside,
    rounded once. `backward()` through `SiluAndMulFwdOp` calls this operator. It has no gradient formula of its own.

    Args:
        target: which set of kernels serves the op; None decides by the device of each call.

    Call:
        ``op(grad_out, x)``

        - grad_out: ``[M, N]``, gradient of the output, dtype of `x`, any strides.
        - x: ``[M, 2 N]``, float16, bfloat16 or float32, any strides.

        Returns `grad_x`: ``[M, 2 N]``, dtype of `x`, contiguous.

    Raises:
        CheckError: a tensor violates the manifest entry; the message names the declaration.

    Example:
        >>> grad_x = SiluAndMulBwdOp()(grad_out, gate_up)
    """

    kernel_types: ClassVar = {"cpu": SiluAndMulBwdCpuKernel, "cuda": SiluAndMulBwdCudaKernel}
    interfaces: ClassVar = {"silu_and_mul_bwd": SiluAndMulBwdInterface}

    def __init__(self, *, target: str | None = None) -> None:
        super().__init__(target=target)

    def _cache_key(self, *input_shapes: tuple[int, ...]) -> Hashable:
        (*rows, width) = input_shapes[0]
        return math.prod(rows), width

    def _call_spec(self, facts: CallFacts) -> SiluAndMulBwdCall:
        return SiluAndMulBwdCall(grad_out=facts["grad_out"], x=facts["x"], grad_x=facts["grad_x"], device=facts.device)


@lru_cache(maxsize=8)
def _silu_and_mul_bwd(target: str | None) -> SiluAndMulBwdOp:
    return SiluAndMulBwdOp(target=target)


def silu_and_mul_gradient(back: Backward) -> dict[str, torch.Tensor | None]:
    """One call of `SiluAndMulBwdOp`."""
    grad: Any = back.grads[0]
    x: Any = back.saved["x"]
    return {"x": _silu_and_mul_bwd(back.op.target)(grad, x)}
