"""Dropout on the CPU."""

from __future__ import annotations

from tileops.kernels.elementwise.call_spec import UnaryCall, UnaryFwdInterface
from tileops.kernels.elementwise.pointwise_cpu import PointwiseCpuKernel


class DropoutCpuKernel(PointwiseCpuKernel, UnaryFwdInterface):
    """Random bits by the number of the element, so that threads and layouts do not matter."""

    numbered = True

    @classmethod
    def cost(cls, call: UnaryCall) -> float:
        return 200.0

    @classmethod
    def scalar_dtypes(cls, call: UnaryCall) -> tuple[str, ...]:
        return ("i32", "f32", "i32", "i32")[: len(call.scalars)]
