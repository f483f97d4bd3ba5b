"""Calls of the rotary position embedding kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tileops.kernels.base import CallSpec, KernelInterface, TensorSpec
from tileops.kernels.rope.scaling import PLAIN, Scaling

RopeLayout = Literal["neox", "interleaved"]


@dataclass(frozen=True)
class RoPECall(CallSpec):
    """Rotates every head vector of length D by its position in the sequence, counted from 0.

    Pair i (of D / 2) turns by ``position * base ** (-2 i / D)``, changed as `scaling` says; it is elements
    (i, i + D/2) in the neox layout and (2i, 2i + 1) in the interleaved one.

    Attributes:
        x: ``[S, D]`` with `input_layout` "1d", ``[B, S, H, D]`` with "2d"; any strides.
        output: shape and dtype of `x`, contiguous.
        rope_layout: which elements form a pair.
        input_layout: "1d" or "2d", as above.
        base: base of the geometric frequency sequence.
        scaling: what becomes of the frequencies, and of cosines and sines.
    """

    x: TensorSpec
    output: TensorSpec
    rope_layout: RopeLayout
    input_layout: Literal["1d", "2d"]
    base: float
    scaling: Scaling = PLAIN


class RoPEFwdInterface(KernelInterface):
    """``launch(x, output)``."""

    call_spec = RoPECall
    tensors = ("x", "output")


@dataclass(frozen=True)
class LongRoPECall(RoPECall):
    """As `RoPECall`, with each frequency divided by a factor of its own.

    Attributes:
        rescale_factors: ``[D / 2]``, float32, bfloat16 or float16, any stride; None for ones.
    """

    rescale_factors: TensorSpec | None = None


class LongRoPEFwdInterface(KernelInterface):
    """``launch(x, rescale_factors, output)``; the contents of the factors may change between launches."""

    call_spec = LongRoPECall
    tensors = ("x", "rescale_factors", "output")


@dataclass(frozen=True)
class RoPEPositionIdsCall(CallSpec):
    """Rotates the first `rotary_dim` elements of every head vector by an explicit position (neox pairs); the
    rest is copied.

    Attributes:
        x: ``[N, H, D]``, any strides.
        position_ids: ``[N]``, int32 or int64, any stride; values in ``[0, max_position)`` are the caller's
            obligation.
        output: shape and dtype of `x`, contiguous.
        rotary_dim: even, at most D; already resolved (never None).
        base: base of the geometric frequency sequence; pair i turns by ``position * base ** (-2 i /
            rotary_dim)``.
        max_position: bound on the positions.
    """

    x: TensorSpec
    position_ids: TensorSpec
    output: TensorSpec
    rotary_dim: int
    base: float
    max_position: int


class RoPEPositionIdsFwdInterface(KernelInterface):
    """``launch(x, position_ids, output)``."""

    call_spec = RoPEPositionIdsCall
    tensors = ("x", "position_ids", "output")
