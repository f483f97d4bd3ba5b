"""SwiGLU's activation on CUDA."""

from __future__ import annotations

from tileops.kernels.elementwise.call_spec import SiluAndMulCall, SiluAndMulFwdInterface
from tileops.kernels.elementwise.template_cuda import ElementwiseCudaKernel, Operand


class SiluAndMulCudaKernel(ElementwiseCudaKernel, SiluAndMulFwdInterface):
    """``silu(x[:, :N]) * x[:, N:]`` in float32, rounded once: two strided operands of one elementwise
    function.
    """

    @classmethod
    def function(cls, call: SiluAndMulCall) -> str:
        return "silu_and_mul"

    @classmethod
    def operands(cls, call: SiluAndMulCall) -> tuple[Operand, Operand]:
        x = call.x
        half = x.shape[1] // 2 * x.strides[1] * x.itemsize
        return (
            Operand(x.short, x.strides, x.alignment, 0),
            Operand(x.short, x.strides, x.alignment, 0, offset=half),
        )
