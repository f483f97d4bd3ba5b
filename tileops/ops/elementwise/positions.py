"""Operators without tensors: biases and encodings of positions."""

from __future__ import annotations

from typing import ClassVar

import torch

from tileops.kernels.elementwise.alibi_cpu import AlibiCpuKernel
from tileops.kernels.elementwise.alibi_cuda import AlibiCudaKernel
from tileops.kernels.elementwise.call_spec import (
    AlibiCall,
    AlibiFwdInterface,
    SinusoidalCall,
    SinusoidalFwdInterface,
)
from tileops.kernels.elementwise.sinusoidal_cpu import SinusoidalCpuKernel
from tileops.kernels.elementwise.sinusoidal_cuda import SinusoidalCudaKernel
from tileops.ops.base import Op
from tileops.ops.facts import CallFacts


class AlibiFwdOp(Op):
    """The biases of attention with linear biases: ``output[h, i, j] = -slope_h * |i - j|``.

    The slopes are those of Press et al., "Train Short, Test Long" (ICLR 2022): ``2 ** (-8 (h + 1) / H)`` for a power of
    two H; otherwise those of the next smaller power P, followed by every other slope of 2 P.

    Args:
        seq_len: positions S.
        num_heads: heads H, at least one.
        out_dtype: float16, bfloat16 or float32.
        device: where the output is made; None takes the device that the target runs on.
        target: which set of kernels serves the op; None decides by the device.

    Call:
        ``op()``

        Returns `output`: ``[H, S, S]``, `out_dtype`, contiguous.

    Raises:
        CheckError: a parameter violates the manifest entry; the message names the declaration.
    """

    kernel_types: ClassVar = {"cpu": AlibiCpuKernel, "cuda": AlibiCudaKernel}
    interfaces: ClassVar = {"alibi": AlibiFwdInterface}

    def __init__(
        self,
        seq_len: int,
        num_heads: int,
        out_dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        *,
        target: str | None = None,
    ) -> None:
        self.seq_len = seq_len
        self.num_heads = num_heads
        self.out_dtype = out_dtype
        self.device = device
        super().__init__(target=target)

    def _call_spec(self, facts: CallFacts) -> AlibiCall:
        return AlibiCall(output=facts["output"], device=facts.device)


class SinusoidalFwdOp(Op):
    """Sinusoidal encodings of positions: ``output[p, 2 i] = sin(p w_i)`` and ``output[p, 2 i + 1] = cos(p w_i)`` with
    ``w_i = 10000 ** (-2 i / d_model)``.

    After Vaswani et al., "Attention Is All You Need" (2017). Exact for positions as far as there may be.

    Args:
        seq_len: positions S.
        d_model: width D, even.
        out_dtype: float16, bfloat16 or float32.
        device: where the output is made; None takes the device that the target runs on.
        target: which set of kernels serves the op; None decides by the device.

    Call:
        ``op()``

        Returns `output`: ``[S, D]``, `out_dtype`, contiguous.

    Raises:
        CheckError: a parameter violates the manifest entry; the message names the declaration.
    """

    kernel_types: ClassVar = {"cpu": SinusoidalCpuKernel, "cuda": SinusoidalCudaKernel}
    interfaces: ClassVar = {"sinusoidal": SinusoidalFwdInterface}

    def __init__(
        self,
        seq_len: int,
        d_model: int,
        out_dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        *,
        target: str | None = None,
    ) -> None:
        self.seq_len = seq_len
        self.d_model = d_model
        self.out_dtype = out_dtype
        self.device = device
        super().__init__(target=target)

    def _call_spec(self, facts: CallFacts) -> SinusoidalCall:
        return SinusoidalCall(output=facts["output"], device=facts.device)
