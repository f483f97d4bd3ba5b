"""Dropout on CUDA."""

from __future__ import annotations

from tileops.kernels.elementwise.call_spec import UnaryCall, UnaryFwdInterface
from tileops.kernels.elementwise.pointwise_cuda import PointwiseCudaKernel


class DropoutCudaKernel(PointwiseCudaKernel, UnaryFwdInterface):
    """Random bits by the number of the element, the same as on the CPU."""

    numbered = True

    @classmethod
    def scalar_dtypes(cls, call: UnaryCall) -> tuple[str, ...]:
        return ("i32", "f32", "i32", "i32")[: len(call.scalars)]
