"""Rotary position embeddings on CUDA."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tileops.jit.program import Program
from tileops.kernels.base import Config, Kernel, Launch, TensorSpec
from tileops.kernels.cuda import VECTOR_BYTES, access_width, blocks_for, once, refuse_float_call, sm_count
from tileops.kernels.rope.call_spec import (
    LongRoPECall,
    LongRoPEFwdInterface,
    RoPECall,
    RoPEFwdInterface,
    RoPEPositionIdsCall,
    RoPEPositionIdsFwdInterface,
)
from tileops.kernels.rope.scaling import PLAIN, Scaling

_BODY = "tileops.kernels.rope._rope_cuda:rotate"
_ARGUMENTS = ("ptr",) * 3 + ("i64",) * 14 + ("f64",) * 6 + ("f32", "ptr", "i64")
#: Storage formats of the factors that frequencies may be divided by, counted from 1 where a launch says which.
FACTOR_KINDS = ("f32", "bf16", "f16")
_THREADS = 128
#: Threads per multiprocessor that should have work before one of them takes several heads.
_BUSY_THREADS = 1024


@dataclass(frozen=True)
class Geometry:
    """A call as the body sees it: ``[batch, seq, head, element]``, the first `rotary_dim` elements of a head
    turn.

    Attributes:
        shape: sizes of the four axes.
        strides: of x, in elements.
        rotary_dim: elements that turn.
        adjacent: pairs are neighbours (interleaved), not halves (neox).
        base: of the frequencies.
        scaling: what becomes of them.
        factors: they may be divided by factors too.
    """

    shape: tuple[int, int, int, int]
    strides: tuple[int, int, int, int]
    rotary_dim: int
    adjacent: bool
    base: float
    scaling: Scaling = PLAIN
    factors: bool = False

    def width(self, x: TensorSpec, output: TensorSpec) -> int:
        """Bytes of an access: 16 where every run of elements is made of whole aligned accesses, else one
        element.
        """
        if self.shape[3] > 1 and self.strides[3] != 1:
            return x.itemsize
        run = self.rotary_dim if self.adjacent else self.rotary_dim // 2
        steps = [stride for stride, size in zip(self.strides[:3], self.shape[:3], strict=True) if size > 1]
        extents = [run, self.shape[3] - self.rotary_dim, self.shape[3], *steps]
        return access_width(
            x.itemsize, [x.alignment, output.alignment, *(n * x.itemsize for n in extents)], narrow=False
        )

    def program_class(self, x: TensorSpec, output: TensorSpec) -> Hashable:
        """All that `program` depends on."""
        return x.dtype, self.width(x, output), self.adjacent, self.factors or self.scaling != PLAIN

    def program(self, x: TensorSpec, output: TensorSpec, positions: str) -> Program:
        """The program that serves the call."""
        width = self.width(x, output)
        return Program.of(
            _BODY,
            _ARGUMENTS,
            device="cuda",
            block=_THREADS,
            dtype=x.short,
            width=width,
            pairs="adjacent" if self.adjacent and width == VECTOR_BYTES else "split",
            positions=positions,
            scaled=self.factors or self.scaling != PLAIN,
        )

    def arguments(self, x: TensorSpec, output: TensorSpec, multiprocessors: int) -> tuple[int, tuple[Any, ...]]:
        """The grid, and the arguments of the body from `tokens` to `element_step`."""
        batch, seq_len, heads, head_dim = self.shape
        width = self.width(x, output)
        elements = width // x.itemsize
        whole_pairs = self.adjacent and width == VECTOR_BYTES
        turned = (self.rotary_dim if whole_pairs else self.rotary_dim // 2) // elements
        copied = (head_dim - self.rotary_dim) // elements
        tokens, strips = batch * seq_len, turned + copied
        head_group = max(1, min(heads, tokens * heads * strips // (multiprocessors * _BUSY_THREADS)))
        pair_step, partner = (2, 1) if self.adjacent else (1, self.rotary_dim // 2)
        grid = blocks_for(tokens * -(-heads // head_group) * strips, _THREADS)
        steps = tuple(stride * x.itemsize for stride in self.strides)
        return grid, (
            tokens, max(seq_len, 1), heads, head_group, turned, copied, head_dim, pair_step, partner, *steps
        )  # fmt: skip

    @property
    def frequencies(self) -> tuple[Any, ...]:
        """The arguments from `slope` to `amplitude`: pair i turns ``2**(i * slope)`` radians per position, ``ratio =
        2**slope``; the scaling looks at turns.
        """
        slope = -2.0 * math.log2(self.base) / max(self.rotary_dim, 1)
        scaling = self.scaling
        per_turn = 2.0 * math.pi * scaling.by_frequency
        wide = (slope, 2.0**slope, scaling.floor, per_turn, scaling.by_pair, scaling.offset)
        return (*map(np.float64, wide), np.float32(scaling.amplitude))


class _RotaryCudaKernel(Kernel):
    """What all kernels share: angles in 64-bit fixed point from the position, no tables; float32, rounded once."""

    devices = frozenset({"cuda"})

    @classmethod
    def refusal(cls, call: RoPECall | RoPEPositionIdsCall) -> str | None:
        return refuse_float_call(call, call.x) or _refuse_base(call.base) or super().refusal(call)


class _SequenceCudaKernel(_RotaryCudaKernel):
    """What the kernels of sequences that start at position 0 share."""

    @classmethod
    def compile_class(cls, call: RoPECall) -> Hashable:
        if cls.refusal(call) is not None:
            return None
        return _sequence(call).program_class(call.x, call.output)

    @classmethod
    def programs(cls, call: RoPECall, config: Config) -> dict[str, Program]:
        return {"main": _sequence(call).program(call.x, call.output, "sequence")}

    def _bind_sequence(self, call: RoPECall, factor_kind: int) -> Callable[..., None]:
        """``run(x, output, address of the factors = 0)``"""
        geometry = _sequence(call)
        grid, sizes = geometry.arguments(call.x, call.output, sm_count(call.device))
        rest = (*sizes, 0, *geometry.frequencies)
        launch, device = self.entries["main"].launch, call.device.index

        def run(x: Any, output: Any, factors: int = 0) -> None:
            launch(grid, x.data_ptr(), 0, output.data_ptr(), *rest, factors, factor_kind, device=device)

        return run


class RoPECudaKernel(_SequenceCudaKernel, RoPEFwdInterface):
    """Rotates by the place in the sequence; the frequencies are known when the call is."""

    def bind(self, call: RoPECall) -> Launch:
        return self._bind_sequence(call, 0)


class LongRoPECudaKernel(_SequenceCudaKernel, LongRoPEFwdInterface):
    """As `RoPECudaKernel`; the factors are read where they lie. One program serves every dtype of them, and none."""

    def bind(self, call: LongRoPECall) -> Launch:
        factors = call.rescale_factors
        if factors is None:
            run = self._bind_sequence(call, 0)
            return lambda x, rescale_factors, output: run(x, output)
        run, dense = self._bind_sequence(call, 1 + FACTOR_KINDS.index(factors.short)), factors.is_contiguous

        def launch(x: Any, rescale_factors: Any, output: Any) -> None:
            contents = rescale_factors if dense else rescale_factors.contiguous()
            run(x, output, contents.data_ptr())

        return launch


class RoPEPositionIdsCudaKernel(_RotaryCudaKernel, RoPEPositionIdsFwdInterface):
    """`RoPECudaKernel` with the position of each token read from a tensor, int32 or int64."""

    @classmethod
    def programs(cls, call: RoPEPositionIdsCall, config: Config) -> dict[str, Program]:
        return {"main": _tokens(call).program(call.x, call.output, call.position_ids.short)}

    def bind(self, call: RoPEPositionIdsCall) -> Launch:
        geometry = _tokens(call)
        grid, sizes = geometry.arguments(call.x, call.output, sm_count(call.device))
        id_step = call.position_ids.strides[0] * call.position_ids.itemsize
        rest = (*sizes, id_step, *geometry.frequencies, 0, 0)
        launch, device = self.entries["main"].launch, call.device.index

        def run(x: Any, position_ids: Any, output: Any) -> None:
            launch(grid, x.data_ptr(), position_ids.data_ptr(), output.data_ptr(), *rest, device=device)

        return run


def _refuse_base(base: float) -> str | None:
    return None if base > 0 and math.isfinite(base) else f"base={base}: the frequencies need a positive base"


def _sequence(call: RoPECall) -> Geometry:
    return once(call, "geometry", lambda: _sequence_of(call))


def _sequence_of(call: RoPECall) -> Geometry:
    x = call.x
    if call.input_layout == "1d":
        shape, strides = (1, x.shape[0], 1, x.shape[1]), (0, x.strides[0], 0, x.strides[1])
    else:
        shape, strides = x.shape, x.strides  # type: ignore[assignment]
    factors = isinstance(call, LongRoPECall)
    return Geometry(shape, strides, shape[3], call.rope_layout == "interleaved", call.base, call.scaling, factors)


def _tokens(call: RoPEPositionIdsCall) -> Geometry:
    return once(call, "geometry", lambda: _tokens_of(call))


def _tokens_of(call: RoPEPositionIdsCall) -> Geometry:
    x = call.x
    shape, strides = (1, *x.shape), (0, *x.strides)
    return Geometry(shape, strides, call.rotary_dim, False, call.base)  # type: ignore[arg-type]
