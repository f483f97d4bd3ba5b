"""Dropout on CUDA."""

from __future__ import annotations

from tileops.kernels.elementwise.call_spec import UnaryFwdInterface
from tileops.kernels.elementwise.pointwise_cuda import PointwiseCudaKernel
from tileops.kernels.elementwise.template import Dropout


class DropoutCudaKernel(Dropout, PointwiseCudaKernel, UnaryFwdInterface):
    """A pointwise function that knows the number of its element."""
