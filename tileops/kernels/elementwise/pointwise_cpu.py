"""Functions of one, two or three tensors of any layouts, on the CPU."""

from __future__ import annotations

from tileops.kernels.elementwise.call_spec import BinaryFwdInterface, TernaryFwdInterface, UnaryFwdInterface
from tileops.kernels.elementwise.template import Pointwise
from tileops.kernels.elementwise.template_cpu import ElementwiseCpuKernel, Operand


class PointwiseCpuKernel(Pointwise, ElementwiseCpuKernel):
    """The scalar function that the call names, at every index of the output."""

    operand = Operand


class UnaryCpuKernel(PointwiseCpuKernel, UnaryFwdInterface):
    """Functions of one tensor."""


class BinaryCpuKernel(PointwiseCpuKernel, BinaryFwdInterface):
    """Functions of two tensors."""


class TernaryCpuKernel(PointwiseCpuKernel, TernaryFwdInterface):
    """Functions of three tensors."""
