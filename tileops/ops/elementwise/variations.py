"""Pointwise operators whose kernel gets something else than what the entry lists."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import torch

from tileops.kernels.elementwise.call_spec import BinaryCall, PointwiseCall
from tileops.kernels.elementwise.dropout_cpu import DropoutCpuKernel
from tileops.kernels.elementwise.dropout_cuda import DropoutCudaKernel
from tileops.ops.elementwise.family import PointwiseOp
from tileops.ops.facts import CallFacts

#: Decimal places up to which rounding is told how many they are.
_PLACES = 64


class DropoutFwdOp(PointwiseOp):
    """``torch.nn.functional.dropout`` with a mask that a seed decides.

    Keeps an element with probability ``1 - p`` and multiplies it by ``1 / (1 - p)``; the others become 0. Outside
    training, and with ``p = 0``, a copy. The random bits are those of Philox4x32-10 (Salmon et al., "Parallel Random
    Numbers: As Easy as 1, 2, 3", SC 2011) with the seed as key and the place of the element as counter: equal seeds
    give equal masks, on every device, in every layout and on any number of threads.

    Args:
        p: probability of a zero, from 0 to 1.
        training: whether anything is dropped.
        seed: 64 bits; a new mask needs a new seed.
        target: which set of kernels serves the op; None decides by the device of each call.

    Call:
        ``op(input)``

        - input: ``[*S]``, float16, bfloat16 or float32, any strides.

        Returns `output`: ``[*S]``, dtype of `input`, contiguous.

    Raises:
        CheckError: a tensor or parameter violates the manifest entry; the message names the declaration.
    """

    kernel_types: ClassVar = {"cpu": DropoutCpuKernel, "cuda": DropoutCudaKernel}
    p: float
    training: bool
    seed: int

    def _call_spec(self, facts: CallFacts) -> PointwiseCall:
        call = replace(super()._call_spec(facts), options=())
        if not self.training or self.p == 0:
            return replace(call, function="undropped", scalars=())
        kept = 1.0 - self.p
        limit = min(round(kept * 2**32), 2**32 - 1) - 2**31
        scale = 1.0 / kept if kept else 0.0
        return replace(call, scalars=(limit, scale, self.seed & 0xFFFFFFFF, self.seed >> 32 & 0xFFFFFFFF))


class RoundFwdOp(PointwiseOp):
    __doc__ = None
    decimals: int

    def _call_spec(self, facts: CallFacts) -> PointwiseCall:
        call = super()._call_spec(facts)
        # Whole numbers are the common case and need one instruction.
        if self.decimals == 0:
            return replace(call, scalars=())
        # Beyond, no number of 32 bits changes, or all become 0.
        places = max(-_PLACES, min(self.decimals, _PLACES))
        return replace(call, function="round_decimals", scalars=(places,))


class EluFwdOp(PointwiseOp):
    __doc__ = None
    alpha: float

    def _call_spec(self, facts: CallFacts) -> PointwiseCall:
        call = super()._call_spec(facts)
        return replace(call, function="elu_unbounded") if math.isinf(self.alpha) else call


class NanToNumFwdOp(PointwiseOp):
    __doc__ = None

    def _scalars(self, facts: CallFacts) -> tuple[Any, ...]:
        largest = torch.finfo(getattr(torch, facts["input"].dtype)).max
        nan, posinf, neginf = super()._scalars(facts)
        return nan, largest if posinf is None else posinf, -largest if neginf is None else neginf


class PreluFwdOp(PointwiseOp):
    __doc__ = None

    def _call_spec(self, facts: CallFacts) -> PointwiseCall:
        call = super()._call_spec(facts)
        assert isinstance(call, BinaryCall)
        assert call.b is not None
        # A weight for each channel lies along axis 1 of the input, a single one along none.
        single = call.b.numel == 1
        beyond = 0 if single else call.a.ndim - 2
        weight = replace(
            call.b,
            shape=() if single else (*call.b.shape, *(1,) * beyond),
            strides=() if single else (*call.b.strides, *(0,) * beyond),
        )
        return replace(call, b=weight)
