"""Addition with a factor and broadcasting, on the CPU."""

from __future__ import annotations

from tileops.kernels.elementwise.call_spec import AddCall, AddFwdInterface
from tileops.kernels.elementwise.template_cpu import FLOATS, ElementwiseCpuKernel, Operand


class AddCpuKernel(ElementwiseCpuKernel, AddFwdInterface):
    """``a + alpha * b`` in float32, rounded once; integers wrap and booleans are or-ed, as in torch. A
    factor of one has a kernel without the multiplication.
    """

    @classmethod
    def function(cls, call: AddCall) -> str:
        if call.output.dtype == "bool":
            return "logical_or" if call.alpha == 1 else "scaled_logical_or"
        if call.alpha == 1:
            return "add"
        return "scaled_add" if call.output.short in FLOATS else "integer_scaled_add"

    @classmethod
    def operands(cls, call: AddCall) -> tuple[Operand, ...]:
        return Operand.of(call.a, call.output, 0), Operand.of(call.b, call.output, 1)

    @classmethod
    def scalars(cls, call: AddCall) -> tuple[float | int, ...]:
        if call.alpha == 1:
            return ()
        return (bool(call.alpha) if call.output.dtype == "bool" else call.alpha,)
