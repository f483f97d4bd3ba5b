"""Calls of the kernels for the gradient of SwiGLU's activation."""

from __future__ import annotations

from dataclasses import dataclass

from tileops.kernels.base import CallSpec, KernelInterface, TensorSpec


@dataclass(frozen=True)
class SiluAndMulBwdCall(CallSpec):
    """The gradient of ``silu(x[:, :N]) * x[:, N:]`` with respect to `x`, for the gradient `grad_out` of the result.

    Attributes:
        grad_out: ``[M, N]``, dtype of `x`, any strides.
        x: ``[M, 2 N]``, any strides: the gate, then the value that it multiplies.
        grad_x: ``[M, 2 N]``, dtype of `x`, contiguous.
    """

    grad_out: TensorSpec
    x: TensorSpec
    grad_x: TensorSpec


class SiluAndMulBwdInterface(KernelInterface):
    """``launch(grad_out, x, grad_x)``."""

    call_spec = SiluAndMulBwdCall
    tensors = ("grad_out", "x", "grad_x")
