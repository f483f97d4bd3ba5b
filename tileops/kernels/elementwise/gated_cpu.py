"""Gated activations on the CPU."""

from __future__ import annotations

from tileops.kernels.base import Config
from tileops.kernels.elementwise.call_spec import GatedCall, GatedFwdInterface
from tileops.kernels.elementwise.template_cpu import ElementwiseCpuKernel, Operand


class GatedCpuKernel(ElementwiseCpuKernel, GatedFwdInterface):
    """The two halves of each row are two strided operands of one function."""

    @classmethod
    def function(cls, call: GatedCall) -> str:
        return call.function

    @classmethod
    def cost(cls, call: GatedCall) -> float:
        return 20.0

    @classmethod
    def default_config(cls, call: GatedCall) -> Config:
        return {**super().default_config(call), "unroll": 8}

    @classmethod
    def operands(cls, call: GatedCall) -> tuple[Operand | None, ...]:
        x = call.x
        half = x.shape[1] // 2 * x.strides[1]
        return Operand(x.short, x.strides, 0), Operand(x.short, x.strides, 0, offset=half)
