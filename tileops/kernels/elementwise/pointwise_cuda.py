"""Functions of one, two or three tensors of any layouts, on CUDA."""

from __future__ import annotations

from typing import Any

from tileops.kernels.elementwise.call_spec import (
    BinaryFwdInterface,
    PointwiseCall,
    TernaryFwdInterface,
    UnaryFwdInterface,
)
from tileops.kernels.elementwise.template_cuda import ElementwiseCudaKernel, Operand


class PointwiseCudaKernel(ElementwiseCudaKernel):
    """The scalar function that the call names, at every index of the output."""

    @classmethod
    def function(cls, call: PointwiseCall) -> str:
        return call.function

    @classmethod
    def operands(cls, call: PointwiseCall) -> tuple[Operand | None, ...]:
        return tuple(
            None if spec is None else Operand.of(spec, call.output, place) for place, spec in enumerate(call.operands)
        )

    @classmethod
    def scalars(cls, call: PointwiseCall) -> tuple[float | int | None, ...]:
        return call.scalars

    @classmethod
    def options(cls, call: PointwiseCall) -> tuple[tuple[str, Any], ...]:
        return call.options


class UnaryCudaKernel(PointwiseCudaKernel, UnaryFwdInterface):
    """Functions of one tensor."""


class BinaryCudaKernel(PointwiseCudaKernel, BinaryFwdInterface):
    """Functions of two tensors."""


class TernaryCudaKernel(PointwiseCudaKernel, TernaryFwdInterface):
    """Functions of three tensors."""
