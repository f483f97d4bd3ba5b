"""Calls of the elementwise kernels."""

from __future__ import annotations

from dataclasses import dataclass

from tileops.kernels.base import CallSpec, KernelInterface, TensorSpec


@dataclass(frozen=True)
class SiluAndMulCall(CallSpec):
    """``output = silu(x[:, :N]) * x[:, N:]``.

    Attributes:
        x: ``[M, 2 N]``, any strides.
        output: ``[M, N]``, dtype of `x`, contiguous.
    """

    x: TensorSpec
    output: TensorSpec


class SiluAndMulFwdInterface(KernelInterface):
    """``launch(x, output)``."""

    call_spec = SiluAndMulCall
    tensors = ("x", "output")


@dataclass(frozen=True)
class AddCall(CallSpec):
    """``output = a + alpha * b``, `a` and `b` broadcast to the shape of `output`.

    Attributes:
        a: any shape that broadcasts to the output's, any strides.
        b: likewise, dtype of `a`.
        output: contiguous, dtype of `a`.
        alpha: factor of `b`; an int for integer dtypes. A run-time argument, never compiled in.
    """

    a: TensorSpec
    b: TensorSpec
    output: TensorSpec
    alpha: int | float


class AddFwdInterface(KernelInterface):
    """``launch(a, b, output)``."""

    call_spec = AddCall
    tensors = ("a", "b", "output")
