"""Pointwise operators whose kernel gets something else than what the entry lists."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from tileops.kernels.elementwise.call_spec import BinaryCall, PointwiseCall
from tileops.ops.elementwise.family import PointwiseOp
from tileops.ops.facts import CallFacts


class RoundFwdOp(PointwiseOp):
    __doc__ = None
    decimals: int

    def _call_spec(self, facts: CallFacts) -> PointwiseCall:
        call = super()._call_spec(facts)
        # Whole numbers are the common case and need one instruction.
        return replace(call, scalars=()) if self.decimals == 0 else replace(call, function="round_decimals")


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
