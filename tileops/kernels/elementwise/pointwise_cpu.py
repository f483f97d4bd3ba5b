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


class PointwiseCpuKernel(Pointwise, ElementwiseCpuKernel):
    """The scalar function that the call names, at every index of the output."""

    operand = Operand

    @classmethod
    def flat(cls, call: PointwiseCall) -> tuple[str | None, ...] | None:
        output = call.output
        if not output.is_contiguous:
            return None
        shape = output.shape
        dtypes: list[str | None] = []
        for operand in call.operands:
            if operand is None:
                dtypes.append(None)
            elif operand is output or (operand.is_contiguous and operand.shape == shape):
                dtypes.append(operand.dtype)
            else:
                return None
        return tuple(dtypes)


class UnaryCpuKernel(PointwiseCpuKernel, UnaryFwdInterface):
    """Functions of one tensor."""


class BinaryCpuKernel(PointwiseCpuKernel, BinaryFwdInterface):
    """Functions of two tensors."""


class TernaryCpuKernel(PointwiseCpuKernel, TernaryFwdInterface):
    """Functions of three tensors."""
