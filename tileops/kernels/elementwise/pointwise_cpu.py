"""Functions of one, two or three tensors of any layouts, on the CPU."""

from __future__ import annotations

from typing import Any

from tileops.kernels.base import Config
from tileops.kernels.elementwise.call_spec import (
    BinaryFwdInterface,
    PointwiseCall,
    TernaryFwdInterface,
    UnaryFwdInterface,
)
from tileops.kernels.elementwise.template_cpu import ElementwiseCpuKernel, Operand


class PointwiseCpuKernel(ElementwiseCpuKernel):
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
    def scalars(cls, call: PointwiseCall) -> tuple[Any, ...]:
        return call.scalars

    @classmethod
    def options(cls, call: PointwiseCall) -> tuple[tuple[str, Any], ...]:
        return call.options

    @classmethod
    def default_config(cls, call: PointwiseCall) -> Config:
        return {**super().default_config(call), "unroll": 4}


class UnaryCpuKernel(PointwiseCpuKernel, UnaryFwdInterface):
    """Functions of one tensor."""


class BinaryCpuKernel(PointwiseCpuKernel, BinaryFwdInterface):
    """Functions of two tensors."""


class TernaryCpuKernel(PointwiseCpuKernel, TernaryFwdInterface):
    """Functions of three tensors."""
