"""Attention with linear biases on CUDA."""

from __future__ import annotations

from typing import Any

from tileops.kernels.elementwise.call_spec import AlibiCall, AlibiFwdInterface
from tileops.kernels.elementwise.template_cuda import ElementwiseCudaKernel, Operand


class AlibiCudaKernel(ElementwiseCudaKernel, AlibiFwdInterface):
    """A function of the number of the element: head, query and key follow from it."""

    numbered = True

    @classmethod
    def function(cls, call: AlibiCall) -> str:
        return "alibi"

    @classmethod
    def operands(cls, call: AlibiCall) -> tuple[Operand | None, ...]:
        return ()

    @classmethod
    def scalars(cls, call: AlibiCall) -> tuple[Any, ...]:
        return call.output.shape[1], call.regular_heads, -4.0 / call.regular_heads

    @classmethod
    def scalar_dtypes(cls, call: AlibiCall) -> tuple[str, ...]:
        return "i64", "i64", "f32"
