"""SwiGLU's activation on the CPU."""

from __future__ import annotations

from tileops.kernels.base import Config
from tileops.kernels.elementwise.call_spec import SiluAndMulCall, SiluAndMulFwdInterface
from tileops.kernels.elementwise.template_cpu import ElementwiseCpuKernel, Operand


class SiluAndMulCpuKernel(ElementwiseCpuKernel, SiluAndMulFwdInterface):
    """``silu(x[:, :N]) * x[:, N:]``: the two halves are two strided operands of one elementwise function."""

    ns_per_kib = 20.0

    @classmethod
    def function(cls, call: SiluAndMulCall) -> str:
        # An error of 1e-4 is a fortieth of bfloat16's last place, but a fifth of float16's.
        return "silu_and_mul_lp" if call.output.dtype == "bfloat16" else "silu_and_mul"

    @classmethod
    def default_config(cls, call: SiluAndMulCall) -> Config:
        return {"unroll": 8}

    @classmethod
    def operands(cls, call: SiluAndMulCall) -> tuple[Operand, ...]:
        x = call.x
        half = x.shape[1] // 2 * x.strides[1]
        return Operand(x.short, x.strides, 0), Operand(x.short, x.strides, 0, offset=half)
