"""Functions of one, two or three tensors of any layouts, on CUDA."""

from __future__ import annotations

from tileops.kernels.elementwise.call_spec import BinaryFwdInterface, TernaryFwdInterface, UnaryFwdInterface
from tileops.kernels.elementwise.template import Pointwise
from tileops.kernels.elementwise.template_cuda import ElementwiseCudaKernel, Operand


class PointwiseCudaKernel(Pointwise, ElementwiseCudaKernel):
    """The scalar function that the call names, at every index of the output."""

    operand = Operand


class UnaryCudaKernel(PointwiseCudaKernel, UnaryFwdInterface):
    """Functions of one tensor."""


class BinaryCudaKernel(PointwiseCudaKernel, BinaryFwdInterface):
    """Functions of two tensors."""


class TernaryCudaKernel(PointwiseCudaKernel, TernaryFwdInterface):
    """Functions of three tensors."""
