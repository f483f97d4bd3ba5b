"""Rotary position embeddings on the CPU."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, NoReturn

import torch

from tileops.autotune.space import TileSpace
from tileops.errors import CheckError
from tileops.jit import parallel
from tileops.jit.cpu.direct import Address, Family, Member, address_of
from tileops.jit.program import Program
from tileops.kernels import pages
from tileops.kernels.base import Config, Kernel, TensorSpec
from tileops.kernels.rope.call_spec import (
    LongRoPECall,
    LongRoPEFwdInterface,
    RoPECall,
    RoPEFwdInterface,
    RoPEPositionIdsCall,
    RoPEPositionIdsFwdInterface,
)
from tileops.kernels.rope.tables import Rows, rotary_table

#: Nanoseconds that one thread takes for a KiB of input, cache-resident; decides when two threads pay.
_NS_PER_KIB = 16.0
#: Storage formats whose outputs may be written past the caches: a vector is a whole cache line there. Lines that are
#: written in halves cost more than they save.
STREAMED = frozenset({"f32"})
#: Bytes of an output from which on that is faster.
_STREAMING_BYTES = 20 << 20
#: Elements of a vector, of which rows and their halves are then made.
_STREAMED_ELEMENTS = 16
_FACTORY = "tileops.kernels.rope._rope_cpu:tokens"
#: What the kernel reads about a call: tokens of a sequence, heads, elements of a head vector and those that turn; bytes
#: from a sequence to the next, between tokens, heads, elements and position ids; whether the output is written past the
#: caches.
_geometry_of = struct.Struct("@10q").pack


def _program(x: TensorSpec, layout: str, positions: str) -> Program:
    return Program.of(
        _FACTORY,
        ["ptr"] * 7,
        dtype=x.short,
        layout=layout,
        positions=positions,
        gathered=not _is_dense(x),
    )


def _is_dense(x: TensorSpec) -> bool:
    """Whether the elements of a head vector lie next to each other."""
    return x.strides[-1] == 1 or x.shape[-1] == 1


def _geometry(
    x: TensorSpec,
    tokens: tuple[tuple[int, int], tuple[int, int]],
    heads: tuple[int, int],
    rotary_dim: int,
    id_step: int = 0,
    *,
    streaming: bool = False,
) -> bytes:
    """`_geometry_of` a call of any strides.

    Args:
        x: the input.
        tokens: extent and step, in elements, of the batch axis and of the sequence axis.
        heads: extent and step of the head axis.
        rotary_dim: elements of a head vector that turn.
        id_step: bytes between neighbouring position ids.
        streaming: the output is written past the caches.
    """
    (_, batch_step), (seq_len, seq_step) = tokens
    size = x.itemsize
    return _geometry_of(
        seq_len, heads[0], x.shape[-1], rotary_dim,
        batch_step * size, seq_step * size, heads[1] * size, x.strides[-1] * size, id_step, streaming,
    )  # fmt: skip


def _axes(call: RoPECall) -> tuple[tuple[int, int], ...]:
    """Extent and step, in elements, of the batch, sequence and head axes."""
    x = call.x
    if call.input_layout == "1d":
        return (1, 0), (x.shape[0], x.strides[0]), (1, 0)
    return tuple(zip(x.shape[:3], x.strides[:3], strict=True))


def _streams(config: Config, x: TensorSpec, rotary_dim: int) -> bool:
    """Whether a call is served with stores past the caches, which take whole vectors at multiples of their size."""
    fits = x.shape[-1] % _STREAMED_ELEMENTS == 0 and rotary_dim // 2 % _STREAMED_ELEMENTS == 0
    return bool(config["streaming"]) and x.short in STREAMED and fits and _is_dense(x)


def _is_large(output: TensorSpec) -> bool:
    return pages.streaming_pays(output.numel * output.itemsize, _STREAMING_BYTES)


def _limit(x: TensorSpec) -> int:
    return parallel.limit(x.numel * x.itemsize / 1024 * _NS_PER_KIB)


def _scratch(x: TensorSpec, threads: int) -> torch.Tensor:
    """One head vector in float32 per thread."""
    return torch.empty(max(threads, 1) * x.shape[-1], dtype=torch.float32, device="cpu")


class _Guard(threading.local):
    """What a kernel reports about the position ids: word 0 becomes 1 where an id is not below word 1 (or
    negative).

    One per thread, so that concurrent launches do not read each other's report.
    """

    def __init__(self) -> None:
        self.words = (ctypes.c_int64 * 2)(0, 0)
        self.address = ctypes.addressof(self.words)


class _RotaryCpuKernel(Kernel):
    """What all kernels share: one rotation per head vector, in float32, each output rounded once. Head vectors with a
    step between their elements are gathered one by one; batch, sequence and heads may lie anywhere.
    """

    devices = frozenset({"cpu"})
    tile_space = TileSpace({"streaming": (False, True)})

    @classmethod
    def default_config(cls, call: RoPECall | RoPEPositionIdsCall) -> Config:
        return {"streaming": _is_large(call.output)}


class _SequenceCpuKernel(_RotaryCpuKernel):
    """What the kernels of sequences that start at position 0 share."""

    @classmethod
    def compile_class(cls, call: RoPECall) -> Hashable:
        return call.x.dtype, call.rope_layout, _is_dense(call.x), _is_large(call.output)

    @classmethod
    def programs(cls, call: RoPECall, config: Config) -> dict[str, Program]:
        return {"main": _program(call.x, call.rope_layout, "sequence")}

    def _bind_sequence(self, call: RoPECall) -> Callable[[Rows, Any, Any], None]:
        """``run(rows, x, output)`` with `rows` of a table that covers the sequence."""
        x = call.x
        batch, sequence, heads = _axes(call)
        geometry = _geometry(x, (batch, sequence), heads, x.shape[-1], streaming=_streams(self.config, x, x.shape[-1]))
        entry, team, limit = self.entries["main"].launch, parallel.team, _limit(x)
        units, gathered, where = batch[0] * sequence[0], not _is_dense(x), address_of(geometry)

        def run(rows: Rows, source: Any, output: Any, _keep: Any = geometry) -> None:
            threads = team(limit) if limit else 0
            scratch = _scratch(x, threads) if gathered else None
            entry(
                threads, units, where, rows.address, 0, source.data_ptr(), output.data_ptr(),
                0 if scratch is None else scratch.data_ptr(), 0,
            )  # fmt: skip

        return run


class RoPECpuKernel(_SequenceCpuKernel, RoPEFwdInterface):
    """Rotates by the place in the sequence; the frequencies are known when the call is."""

    def bind(self, call: RoPECall) -> Callable[..., None]:
        table = rotary_table(call.x.shape[-1], float(call.base), call.scaling)
        return partial(self._bind_sequence(call), table.at_least(_axes(call)[1][0]))

    def resized(self, call: RoPECall) -> Callable[..., Member | None] | None:
        if not call.x.is_contiguous or self.config["streaming"]:
            return None
        size, width, flat = call.x.itemsize, call.x.shape[-1], call.input_layout == "1d"
        table = rotary_table(width, float(call.base), call.scaling)
        family = Family([(self.entries["main"], (None, None, 0, Address(0), Address(1), 0, 0))], 2)
        cost = _NS_PER_KIB / 1024

        def at(x: tuple[int, ...], output: tuple[int, ...]) -> Member | None:
            batch, length, heads = (1, x[0], 1) if flat else x[:3]
            token = heads * width * size
            nbytes = batch * length * token
            if x[-1] != width or nbytes >= _STREAMING_BYTES:
                return None
            geometry = _geometry_of(length, heads, width, width, length * token, token, width * size, size, 0, 0)
            rows = table.at_least(length)
            values = (batch * length, parallel.limit(nbytes * cost), address_of(geometry), rows.address)
            return Member(family, values, (geometry, rows))

        return at


class LongRoPECpuKernel(_SequenceCpuKernel, LongRoPEFwdInterface):
    """As `RoPECpuKernel`, with a table for the factors that lie in the tensor at the launch: their bytes are compared
    each time (a fraction of a microsecond), so a model may load them in place after the first call.
    """

    def bind(self, call: LongRoPECall) -> Callable[..., None]:
        run = self._bind_sequence(call)
        length = _axes(call)[1][0]
        of = partial(rotary_table, call.x.shape[-1], float(call.base), call.scaling)
        spec = call.rescale_factors
        if spec is None:
            rows = of(None).at_least(length)

            def plain(source: Any, rescale_factors: None, output: Any) -> None:
                run(rows, source, output)

            return plain

        dense, nbytes = spec.is_contiguous, spec.numel * spec.itemsize
        latest: tuple[bytes, Rows] | None = None

        def launch(source: Any, rescale_factors: Any, output: Any) -> None:
            nonlocal latest
            factors = rescale_factors if dense else rescale_factors.contiguous()
            contents = ctypes.string_at(factors.data_ptr(), nbytes)
            found = latest
            if found is None or found[0] != contents:
                found = latest = contents, of(tuple(factors.detach().double().tolist())).at_least(length)
            run(found[1], source, output)

        return launch


class RoPEPositionIdsCpuKernel(_RotaryCpuKernel, RoPEPositionIdsFwdInterface):
    """As `RoPECpuKernel`, with the position of every token read from `position_ids`. Ids lie in host memory,
    so the kernel checks them: an id out of range is an error, never a read outside the table.
    """

    @classmethod
    def compile_class(cls, call: RoPEPositionIdsCall) -> Hashable:
        return call.x.dtype, call.position_ids.dtype, _is_dense(call.x), _is_large(call.output)

    @classmethod
    def programs(cls, call: RoPEPositionIdsCall, config: Config) -> dict[str, Program]:
        return {"main": _program(call.x, "neox", call.position_ids.short)}

    def bind(self, call: RoPEPositionIdsCall) -> Callable[..., None]:
        x, ids = call.x, call.position_ids
        tokens = ((1, 0), (x.shape[0], x.strides[0]))
        heads = x.shape[1], x.strides[1]
        streaming = _streams(self.config, x, call.rotary_dim)
        geometry, own_rows = (
            _geometry(x, tokens, heads, call.rotary_dim, id_step=step * ids.itemsize, streaming=streaming)
            for step in (ids.strides[0], 1)
        )
        table = rotary_table(call.rotary_dim, float(call.base))
        entry, team, limit = self.entries["main"].launch, parallel.team, _limit(x)
        units, gathered, where, max_position = x.shape[0], not _is_dense(x), address_of(geometry), call.max_position
        guard = _Guard()

        def launch(source: Any, position_ids: Any, output: Any, _keep: Any = (geometry, own_rows)) -> None:
            threads = team(limit) if limit else 0
            scratch = _scratch(x, threads) if gathered else None
            rows = table.rows
            guard.words[1] = min(rows.length, max_position)
            entry(
                threads, units, where, rows.address, position_ids.data_ptr(), source.data_ptr(),
                output.data_ptr(), 0 if scratch is None else scratch.data_ptr(), guard.address,
            )  # fmt: skip
            if guard.words[0]:
                guard.words[0] = 0
                length = _checked_length(position_ids, max_position)
                if table.holds(length):
                    table.at_least(length)
                    launch(source, position_ids, output)
                else:
                    launch_far(source, position_ids, output)

        def launch_far(source: Any, position_ids: Any, output: Any) -> None:
            """Token n takes row n of a table made for this call."""
            threads = team(limit) if limit else 0
            scratch = _scratch(x, threads) if gathered else None
            rows = table.rows_of(position_ids)
            numbers = torch.arange(len(position_ids), dtype=position_ids.dtype, device="cpu")
            guard.words[1] = rows.length
            entry(
                threads, units, address_of(own_rows), rows.address, numbers.data_ptr(), source.data_ptr(),
                output.data_ptr(), 0 if scratch is None else scratch.data_ptr(), guard.address,
            )  # fmt: skip

        return launch


def _checked_length(position_ids: torch.Tensor, max_position: int) -> int:
    """Positions that a table must cover for these ids.

    Raises:
        CheckError: an id lies outside ``[0, max_position)``.
    """
    low, high = int(position_ids.min()), int(position_ids.max())
    if low < 0 or high >= max_position:
        _out_of_range(position_ids, low if low < 0 else high, max_position)
    return high + 1


def _out_of_range(position_ids: torch.Tensor, value: int, max_position: int) -> NoReturn:
    at = int((position_ids == value).nonzero()[0])
    raise CheckError(
        "RoPENeoxPositionIdsFwdOp",
        "inputs.position_ids.requires: in_range(0, max_position)",
        f"position_ids[{at}] is {value}, max_position is {max_position}; pass positions in that range, or "
        "construct the operator with a larger max_position",
    )
