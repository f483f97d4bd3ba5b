"""Addition with a factor and broadcasting, on the CPU."""

from __future__ import annotations

from tileops.kernels.elementwise.call_spec import AddCall, AddFwdInterface
from tileops.kernels.elementwise.template_cpu import ElementwiseCpuKernel, Operand


class AddCpuKernel(ElementwiseCpuKernel, AddFwdInterface):
    """``a + alpha * b`` in float32, rounded once; in 64 bits and truncated for integers, which wraps as torch
    does. A factor of one has a kernel without the multiplication.
    """

    @classmethod
    def function(cls, call: AddCall) -> str:
        return "add" if call.alpha == 1 else "scaled_add"

    @classmethod
    def operands(cls, call: AddCall) -> tuple[Operand, ...]:
        return Operand.of(call.a, call.output, 0), Operand.of(call.b, call.output, 1)

    @classmethod
    def scalars(cls, call: AddCall) -> tuple[float | int, ...]:
        return () if call.alpha == 1 else (call.alpha,)
