"""Addition with a factor and broadcasting, on CUDA."""

from __future__ import annotations

from tileops.kernels.elementwise.call_spec import AddCall, AddFwdInterface
from tileops.kernels.elementwise.template_cuda import FLOATS, ElementwiseCudaKernel, Operand


class AddCudaKernel(ElementwiseCudaKernel, AddFwdInterface):
    """``a + alpha * b`` in float32, rounded once; integers wrap and booleans are or-ed, as in torch."""

    @classmethod
    def function(cls, call: AddCall) -> str:
        if call.output.dtype == "bool":
            return "scaled_logical_or"
        return "scaled_add" if call.output.short in FLOATS else "integer_scaled_add"

    @classmethod
    def operands(cls, call: AddCall) -> tuple[Operand, Operand]:
        return Operand.of(call.a, call.output, 0), Operand.of(call.b, call.output, 1)

    @classmethod
    def scalars(cls, call: AddCall) -> tuple[float | int, ...]:
        return (call.alpha,)
