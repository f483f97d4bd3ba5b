"""Elementwise work on CUDA: where the elements of a group lie, and what one thread does with a group."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from llvmlite import ir

from tileops.jit.lang.cuda_emitter import COMPUTED, CudaEmitter
from tileops.jit.lang.cuda_function import device_function, items, types
from tileops.jit.lang.cuda_strips import Strip
from tileops.jit.lang.emitter import F32, I1, I64, Kind
from tileops.jit.lang.memory import itemsize
from tileops.jit.lang.values import Value, as_kind


def pointwise(
    function: Callable[..., Any],
    inputs: Sequence[str | None],
    output: str,
    group: int,
    *,
    scalars: Sequence[str | None] = (),
    in_place: bool = False,
    spreads: bool = False,
    numbered: bool = False,
) -> Any:
    """`function` over a group of neighbouring elements.

    Args:
        function: scalar function over the vocabulary: one element of each input (None where it is absent), then
            the scalars. float32 for every float format, int16 for "u8", a mask for "b1", integers as they are.
        inputs: storage formats; None for an operand that is absent.
        output: storage format of the result.
        group: elements of a group, a power of two. Every address is a multiple of the group's bytes, or of 16.
        scalars: storage formats whose kinds the scalars have; None for one that is passed as None.
        in_place: the output may be an input.
        spreads: an input whose step is 0 is a single element, the same for the whole group.
        numbered: `function` gets the number of the element first, int64.

    Returns:
        A device function ``(number, addresses, steps, scalars)``: the number of the group (looked at only if
        `numbered`); the addresses of the present inputs, then that of the output; one step for each of them (looked at
        only if `spreads`); float32 or int64 scalars, without those that are None.
    """
    strips = [None if dtype is None else Strip.of(dtype, group) for dtype in inputs]
    present = [dtype for dtype in inputs if dtype is not None]
    passed = [dtype for dtype in scalars if dtype is not None]
    result = Kind(COMPUTED[output])

    def emit(emitter: CudaEmitter, number: ir.Value, addresses: ir.Value, steps: ir.Value, packed: ir.Value) -> None:
        emitter.halves = output in ("bf16", "f16")
        *places, target = items(emitter, addresses, len(present) + 1)
        own = iter(zip(places, items(emitter, steps, len(present)), strict=True))
        columns: list[Iterable[Value | None]] = [_numbers(emitter, number, group)] if numbered else []
        for strip in strips:
            if strip is None:
                columns.append(itertools.repeat(None, group))
                continue
            place, step = next(own)
            words = _fetch(emitter, strip, place, step if spreads else None, shared=in_place)
            columns.append([Value(element) for element in strip.elements_of(emitter, words)])
        values = iter(_scalar(emitter, *pair) for pair in zip(passed, items(emitter, packed, len(passed)), strict=True))
        shared = [None if dtype is None else next(values) for dtype in scalars]
        results = [as_kind(function(*row, *shared), result).ir for row in zip(*columns, strict=True)]
        strip = Strip.of(output, group)
        strip.write(emitter, target, strip.pack(emitter, results))

    emit.__name__ = f"pointwise_{getattr(function, '__name__', 'function').strip('_')}"
    words = types.UniTuple(types.int64, len(present) + 1)
    kinds = [types.float32 if COMPUTED[dtype] == "f32" else types.int64 for dtype in passed]
    return device_function(emit, [types.int64, words, words, types.Tuple(kinds)], types.void)


def _numbers(emitter: CudaEmitter, number: ir.Value, group: int) -> list[Value]:
    """Numbers of the elements of a group; by bits, so that what neighbours share is seen to be the same."""
    b = emitter.builder
    first = b.shl(number, I64(group.bit_length() - 1))
    return [Value(b.or_(first, I64(k))) for k in range(group)]


def _fetch(
    emitter: CudaEmitter, strip: Strip, address: ir.Value, step: ir.Value | None, *, shared: bool
) -> list[ir.Value]:
    """Packed words of the strip at `address`; copies of the element there where `step` is 0."""
    if step is None or strip.elements == 1:
        return strip.read(emitter, address, shared=shared)
    b = emitter.builder
    with b.if_else(b.icmp_unsigned("!=", step, I64(0))) as (neighbours, alone):
        with neighbours:
            many = strip.read(emitter, address, shared=shared)
            after_many = b.block
        with alone:
            single = Strip.of(strip.dtype, 1)
            copies = strip.spread(emitter, single.read(emitter, address, shared=shared))
            after_one = b.block
    words = []
    for own, copy in zip(many, copies, strict=True):
        phi = b.phi(own.type)
        phi.add_incoming(own, after_many)
        phi.add_incoming(copy, after_one)
        words.append(phi)
    return words


def _scalar(emitter: CudaEmitter, dtype: str, value: ir.Value) -> Value:
    """A float32 or int64 argument in the kind that elements of `dtype` are computed with in."""
    kind = Kind(COMPUTED[dtype])
    if kind.ir in (F32, I64):
        return Value(value, kind)
    if kind.ir == I1:
        return Value(emitter.builder.icmp_unsigned("!=", value, I64(0)), kind)
    return Value(emitter.builder.trunc(value, kind.ir), kind)


def along(dtypes: Sequence[str]) -> Any:
    """``(addresses, index) -> addresses`` of the element number `index` of contiguous tensors of these formats."""
    sizes = [itemsize(dtype) for dtype in dtypes]

    def emit(emitter: CudaEmitter, addresses: ir.Value, index: ir.Value) -> list[ir.Value]:
        b = emitter.builder
        starts = items(emitter, addresses, len(sizes))
        return [b.add(start, b.mul(index, I64(size))) for start, size in zip(starts, sizes, strict=True)]

    emit.__name__ = f"along_{len(sizes)}"
    words = types.UniTuple(types.int64, len(sizes))
    return device_function(emit, [words, types.int64], words)


def walk(axes: int, operands: int) -> Any:
    """Where the element number `index` of a strided iteration lies in each operand.

    Returns:
        A device function ``(index, geometry) -> (offset, ...)``; `geometry` is a tuple of int64: for each
        axis, the innermost first, its size and the step in bytes of every operand. Surplus axes have size 1.
    """

    def emit(emitter: CudaEmitter, index: ir.Value, geometry: ir.Value) -> list[ir.Value]:
        return _offsets(emitter, index, items(emitter, geometry, axes * (1 + operands)), axes)

    emit.__name__ = f"walk_{axes}_{operands}"
    parameters = [types.int64, types.UniTuple(types.int64, axes * (1 + operands))]
    return device_function(emit, parameters, types.UniTuple(types.int64, operands))


def walk_from(axes: int, operands: int) -> Any:
    """``(addresses, index, geometry) -> addresses``: `walk` from the first elements of the operands."""

    def emit(emitter: CudaEmitter, addresses: ir.Value, index: ir.Value, geometry: ir.Value) -> list[ir.Value]:
        offsets = _offsets(emitter, index, items(emitter, geometry, axes * (1 + operands)), axes)
        starts = items(emitter, addresses, operands)
        return [emitter.builder.add(start, offset) for start, offset in zip(starts, offsets, strict=True)]

    emit.__name__ = f"walk_from_{axes}_{operands}"
    words = types.UniTuple(types.int64, operands)
    return device_function(emit, [words, types.int64, types.UniTuple(types.int64, axes * (1 + operands))], words)


def _offsets(emitter: CudaEmitter, index: ir.Value, geometry: Sequence[ir.Value], axes: int) -> list[ir.Value]:
    b = emitter.builder
    width = len(geometry) // axes
    offsets: list[ir.Value] = [I64(0)] * (width - 1)
    for axis in range(axes):
        size, *steps = geometry[axis * width : (axis + 1) * width]
        if axis == axes - 1:
            coordinate = index
        else:
            # Indices are never negative, and unsigned division is the cheaper one.
            quotient = b.udiv(index, size)
            coordinate = b.sub(index, b.mul(quotient, size))
            index = quotient
        offsets = [b.add(offset, b.mul(coordinate, step)) for offset, step in zip(offsets, steps, strict=True)]
    return offsets


__all__ = ["along", "pointwise", "walk", "walk_from"]
