"""Functions of one, two or three tensors of any layouts, on CUDA."""

from __future__ import annotations

from typing import Any

from tileops.kernels.elementwise.call_spec import (
    BinaryCall,
    BinaryFwdInterface,
    TernaryFwdInterface,
    UnaryFwdInterface,
)
from tileops.kernels.elementwise.template_cuda import ElementwiseCudaKernel, Operand


class UnaryCudaKernel(ElementwiseCudaKernel, UnaryFwdInterface):
    """Functions of one tensor."""

    @classmethod
    def refusal(cls, call: Any) -> str | None:
        return "the CUDA template takes two tensors"


class BinaryCudaKernel(ElementwiseCudaKernel, BinaryFwdInterface):
    """Functions of two tensors."""

    @classmethod
    def function(cls, call: BinaryCall) -> str:
        return call.function

    @classmethod
    def operands(cls, call: BinaryCall) -> tuple[Operand, Operand]:
        return Operand.of(call.a, call.output, 0), Operand.of(call.b, call.output, 1)

    @classmethod
    def scalars(cls, call: BinaryCall) -> tuple[float, ...]:
        return tuple(float(value) for value in call.scalars if value is not None)


class TernaryCudaKernel(ElementwiseCudaKernel, TernaryFwdInterface):
    """Functions of three tensors."""

    @classmethod
    def refusal(cls, call: Any) -> str | None:
        return "the CUDA template takes two tensors"
