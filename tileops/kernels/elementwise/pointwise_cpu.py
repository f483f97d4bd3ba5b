"""Functions of one, two or three tensors of any layouts, on the CPU."""

from __future__ import annotations

from tileops.kernels.elementwise.call_spec import (
    BinaryFwdInterface,
    PointwiseCall,
    TernaryFwdInterface,
    UnaryFwdInterface,
)
from tileops.kernels.elementwise.template import Pointwise
from tileops.kernels.elementwise.template_cpu import ElementwiseCpuKernel, Operand

#: Bits of the least and the greatest value of a dtype.
_EXTREMES = {
    "f32": (0xFF800000, 0x7F800000),
    "bf16": (0xFF80, 0x7F80),
    "f16": (0xFC00, 0x7C00),
    "b1": (0, 1),
    "u8": (0, 0xFF),
    **{f"i{width}": (-1 << (width - 1), (1 << (width - 1)) - 1) for width in (8, 16, 32, 64)},
}


class PointwiseCpuKernel(Pointwise, ElementwiseCpuKernel):
    """The scalar function that the call names, at every index of the output."""

    operand = Operand

    @classmethod
    def flat(cls, call: PointwiseCall) -> tuple[str, ...] | None:
        output = call.output
        if not output.is_contiguous:
            return None
        shape = output.shape
        dtypes = []
        for operand in call.operands:
            if operand is None:  # a number takes its place, which the kernel sees as an operand that broadcasts
                return None
            if operand is not output and not (operand.is_contiguous and operand.shape == shape):
                return None
            dtypes.append(operand.dtype)
        return tuple(dtypes)


class UnaryCpuKernel(PointwiseCpuKernel, UnaryFwdInterface):
    """Functions of one tensor."""


class BinaryCpuKernel(PointwiseCpuKernel, BinaryFwdInterface):
    """Functions of two tensors."""


class TernaryCpuKernel(PointwiseCpuKernel, TernaryFwdInterface):
    """Functions of three tensors. Absent bounds are numbers that bound nothing: kernels without them would be twice as
    many.
    """

    @classmethod
    def operands(cls, call: PointwiseCall) -> tuple[Operand | None, ...]:
        found = super().operands(call)
        bounds = _EXTREMES[call.output.short]
        everywhere = (0,) * call.output.ndim
        return found[0], *[
            Operand(call.output.short, everywhere, place, bits=bits) if operand is None else operand
            for place, (operand, bits) in enumerate(zip(found[1:], bounds, strict=True), 1)
        ]
