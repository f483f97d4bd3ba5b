"""Gated activations on CUDA."""

from __future__ import annotations

from tileops.kernels.elementwise.call_spec import GatedCall, GatedFwdInterface
from tileops.kernels.elementwise.template_cuda import ElementwiseCudaKernel, Operand


class GatedCudaKernel(ElementwiseCudaKernel, GatedFwdInterface):
    """The two halves of each row are two strided operands of one function."""

    @classmethod
    def function(cls, call: GatedCall) -> str:
        return call.function

    @classmethod
    def operands(cls, call: GatedCall) -> tuple[Operand | None, ...]:
        x = call.x
        half = x.shape[1] // 2 * x.strides[1] * x.itemsize
        return (
            Operand(x.short, x.strides, x.alignment, 0),
            Operand(x.short, x.strides, x.alignment, 0, offset=half),
        )
