"""Dropout on the CPU."""

from __future__ import annotations

from tileops.kernels.elementwise.call_spec import UnaryCall, UnaryFwdInterface
from tileops.kernels.elementwise.pointwise_cpu import PointwiseCpuKernel
from tileops.kernels.elementwise.template import Dropout


class DropoutCpuKernel(Dropout, PointwiseCpuKernel, UnaryFwdInterface):
    """A pointwise function that knows the number of its element."""

    @classmethod
    def cost(cls, call: UnaryCall) -> float:
        return 200.0
