"""Dropout on the CPU."""

from __future__ import annotations

from tileops.kernels.base import Config
from tileops.kernels.elementwise.call_spec import UnaryCall, UnaryFwdInterface
from tileops.kernels.elementwise.pointwise_cpu import PointwiseCpuKernel
from tileops.kernels.elementwise.template import Dropout


class DropoutCpuKernel(Dropout, PointwiseCpuKernel, UnaryFwdInterface):
    """A pointwise function that knows the number of its element."""

    @classmethod
    def default_config(cls, call: UnaryCall) -> Config:
        config = super().default_config(call)
        # Drawing numbers is so much code that copies of it for strided calls would take too long to compile.
        return {**config, "unroll": 1} if cls.cut(call)[1].form == "tiles" else config

    @classmethod
    def cost(cls, call: UnaryCall) -> float:
        return 100.0
