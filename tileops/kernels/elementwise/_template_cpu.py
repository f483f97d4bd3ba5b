"""Device side of the elementwise CPU template: the bodies of its two forms. `template_cpu` explains them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tileops.jit import lang
from tileops.kernels.elementwise import functions
from tileops.kernels.elementwise.template import FLOATS
from tileops.kernels.elementwise.template_cpu import (
    AXIS_WORDS,
    HEADER_WORDS,
    MAX_OPERANDS,
    TILE_BYTES,
    TILE_COLUMNS,
    TILE_ROWS,
)

AXIS_BYTES = 8 * AXIS_WORDS
FIRST_AXIS = 8 * HEADER_WORDS
#: Parameters of the tiles that go over the units. Numba is given a body that only calls one: compiling it takes half
#: as long as compiling the same loops from Python.
_TENSORS = "geometry:i64, constants:i64, p0:i64, p1:i64, p2:i64, out:i64"


def _computed_as(dtype: str) -> str:
    """The element type that values of a storage format are computed with in."""
    return "f32" if dtype in FLOATS else {"u8": "i16", "b1": "b1"}.get(dtype, dtype)


def _computed_size(dtype: str) -> int:
    """Bytes of a lane. Masks ride along with whatever they select."""
    return {"f32": 4, "b1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8}[_computed_as(dtype)]


@dataclass(frozen=True)
class _Pointwise:
    """A scalar function on vectors of elements in memory.

    Attributes:
        function: name of the scalar function.
        inputs: storage format of each of its tensor operands, None for an absent one.
        kinds: for each operand that is there, "unit" (an element for each index) or "splat" (one for all).
        scalars: storage format whose kind each of its scalar parameters has, None for an absent one.
        options: its keyword arguments.
        output: storage format of the result.
        numbered: it gets the number of the element first, int64.
        unroll: vectors computed side by side.
    """

    function: str
    inputs: tuple[str | None, ...]
    kinds: tuple[str, ...]
    scalars: tuple[str | None, ...]
    options: tuple[tuple[str, Any], ...]
    output: str
    numbered: bool
    unroll: int

    @property
    def on_bits(self) -> bool:
        """Whether halves are computed with as the 16-bit integers that they are stored as."""
        return functions.on_bits(self.function, self.output) is not None

    @property
    def in_fours(self) -> Callable[..., Any] | None:
        """The form of the function for unrolled vectors that begin at a number divisible by four."""
        return functions.in_fours(self.function) if self.numbered and self.unroll == 4 else None

    def _format(self, dtype: str) -> str:
        return "i16" if self.on_bits and dtype in functions.HALVES else dtype

    @property
    def present(self) -> tuple[str, ...]:
        """Formats of the operands that are there."""
        return tuple(self._format(dtype) for dtype in self.inputs if dtype is not None)

    @property
    def result(self) -> str:
        """Format of the result."""
        return self._format(self.output)

    def lanes(self) -> int:
        return int(4 * lang.lanes() // max(_computed_size(dtype) for dtype in (*self.present, self.result)))

    def span(self) -> Any:
        """A tile that computes elements ``start .. stop - 1`` of a row."""
        masked = self._masked()

        @lang.tile("p0:i64, p1:i64, p2:i64, constants:i64, out:i64, number:i64, start:i64, stop:i64, streaming:i64")
        def span(
            t: Any,
            p0: Any,
            p1: Any,
            p2: Any,
            constants: Any,
            out: Any,
            number: Any,
            start: Any,
            stop: Any,
            streaming: Any,
        ) -> None:
            pointers = (p0, p1, p2, number)
            shared = self._shared(t, pointers, constants)
            lanes, size = self.lanes(), lang.itemsize(self.output)

            def vectors(i: Any, count: int) -> None:
                results = self._compute(t, pointers, shared, i, count)
                stored = t.narrow_group(self.result, results)
                place = out + i * size

                def write() -> None:
                    t.store_narrowed(self.result, place, stored)

                def write_around() -> None:
                    for u, value in enumerate(stored):
                        t.store_words(place + u * lanes * size, value, streaming=True)

                if count > 1:
                    t.when(streaming != 0, write_around, write)
                else:
                    write()

            # Stores around the caches need whole vectors at aligned addresses.
            misplaced = (out + start * size) & (lanes * size - 1)
            head = t.select_value(streaming * misplaced != 0, t.const(lanes) - misplaced // size, t.const(0))
            first = t.min(start + head, stop)
            t.when(head > 0, lambda: masked(p0, p1, p2, constants, out, number, start, first))
            step = lanes * self.unroll
            unrolled = first + (stop - first) // step * step
            if self.in_fours is not None:
                unrolled = t.select_value((number + first) & 3 == 0, unrolled, first)
            whole = first + (stop - first) // lanes * lanes
            if self.unroll > 1:
                t.loop(first, unrolled, step, body=lambda i, _: vectors(i, self.unroll))
            t.loop(unrolled if self.unroll > 1 else first, whole, lanes, body=lambda i, _: vectors(i, 1))
            t.when(whole < stop, lambda: masked(p0, p1, p2, constants, out, number, whole, stop))

        return span

    def _masked(self) -> Any:
        """A tile that computes elements ``start .. stop - 1``, fewer than a vector."""

        @lang.tile("p0:i64, p1:i64, p2:i64, constants:i64, out:i64, number:i64, start:i64, stop:i64")
        def masked(
            t: Any, p0: Any, p1: Any, p2: Any, constants: Any, out: Any, number: Any, start: Any, stop: Any
        ) -> None:
            pointers = (p0, p1, p2, number)
            mask = t.mask_lt(stop - start, self.lanes())
            (result,) = self._compute(t, pointers, self._shared(t, pointers, constants), start, 1, mask)
            t.store(self.result, out + start * lang.itemsize(self.output), result, mask)

        return masked

    def _shared(self, t: Any, pointers: Sequence[Any], constants: Any) -> tuple[list[Any], list[Any]]:
        """The operands and scalars that are the same for all elements."""
        lanes = self.lanes()
        operands = [
            t.load_splat(dtype, pointer, lanes) if kind == "splat" else None
            for dtype, kind, pointer in zip(self.present, self.kinds, pointers, strict=False)
        ]
        scalars = [
            None if dtype is None else self._scalar(t, dtype, constants + 8 * place)
            for place, dtype in enumerate(self.scalars)
        ]
        return operands, scalars

    def _scalar(self, t: Any, dtype: str, place: Any) -> Any:
        """A scalar parameter in every lane."""
        if self.on_bits and dtype in functions.HALVES:
            (bits,) = t.narrow_group(self.output, [t.load_splat("f32", place, self.lanes())])
            return bits
        return t.load_scalar_word(_computed_as(dtype), place, self.lanes())

    def _compute(
        self,
        t: Any,
        pointers: Sequence[Any],
        shared: tuple[list[Any], list[Any]],
        i: Any,
        count: int,
        mask: Any = None,
    ) -> list[Any]:
        """Results of `count` vectors from element i on, operation by operation side by side."""
        lanes = self.lanes()
        loaded: list[Any] = []
        for dtype, pointer, splat in zip(self.present, pointers, shared[0], strict=False):
            size = lang.itemsize(dtype)
            places = [pointer + i * size + u * lanes * size for u in range(count)]
            members = [t.load(dtype, place, mask, lanes) for place in places] if splat is None else None
            loaded.append(splat if members is None else lang.Lockstep(members) if count > 1 else members[0])
        rest = iter(loaded)
        operands = [None if dtype is None else next(rest) for dtype in self.inputs]
        function = functions.on_bits(self.function, self.output)
        function = function or functions.find(self.function, self.output, self.inputs)
        numbers = []
        if self.in_fours is not None and count == self.unroll:
            function = self.in_fours
            numbers = [t.numbers((pointers[-1] + i) >> 2, 1, lanes)]
        elif self.numbered:
            numbers = [t.numbers(pointers[-1] + i, count, lanes)]
        result = function(*numbers, *operands, *shared[1], **dict(self.options))
        members = result.members if isinstance(result, lang.Lockstep) else [result] * count
        return [t.spread(_computed_as(self.result), member, lanes) for member in members]


def rows(
    *,
    function: str,
    inputs: tuple[str | None, ...],
    kinds: tuple[str, ...],
    scalars: tuple[str | None, ...],
    options: tuple[tuple[str, Any], ...],
    output: str,
    numbered: bool,
    unroll: int,
) -> Callable[..., None]:
    """The rows form: one unit is a block of a row."""
    span = _Pointwise(function, inputs, kinds, scalars, options, output, numbered, unroll).span()
    itemsize = lang.itemsize(output)

    @lang.tile(f"begin:i64, end:i64, {_TENSORS}")
    def units(t: Any, begin: Any, end: Any, geometry: Any, constants: Any, *tensors: Any) -> None:
        size, width, blocks, axes, streaming = (t.load_i64(geometry + 8 * word) for word in range(HEADER_WORDS))
        first = begin // blocks

        def unit(_: Any, place: Sequence[Any]) -> tuple[Any, Any]:
            row, block = place
            *operands, target = _located(t, tensors, geometry + FIRST_AXIS, axes, row)
            start = block * width
            number = (target - tensors[-1]) // itemsize
            span(*operands, constants, target, number, start, t.min(start + width, size), streaming)
            last = block + 1 == blocks
            return t.select_value(last, row + 1, row), t.select_value(last, t.const(0), block + 1)

        t.loop(begin, end, 1, (first, begin - first * blocks), unit)
        t.when(streaming != 0, lang.store_fence)

    def body(begin, end, tid, geometry, constants, p0, p1, p2, out):
        units(begin, end, geometry, constants, p0, p1, p2, out)

    return body


def _located(t: Any, tensors: Sequence[Any], axis: Any, axes: Any, index: Any) -> list[Any]:
    """The addresses of the tensors at one index of the outer axes, the words of whose innermost are at `axis`."""

    def step(number: Any, carried: Sequence[Any]) -> tuple[Any, ...]:
        axis, rest, *places = carried

        def divided() -> tuple[Any, Any]:
            extent = t.load_i64(axis)
            above = rest // extent
            return rest - above * extent, above

        # The last needs no division, and often it is the only one.
        here, above = t.when(number + 1 < axes, divided, lambda: (rest, rest))
        moved = [place + here * t.load_i64(axis + 8 * (1 + number)) for number, place in enumerate(places)]
        return axis + AXIS_BYTES, above, *moved

    return list(t.loop(0, axes, 1, (axis, index, *tensors), step)[2:])


def _move(size: int, *, gather: bool, shared: bool = False) -> Any:
    """A tile that copies a ragged tile of elements of `size` bytes between a tensor and scratch, along the axis in
    which the tensor is denser. With `shared`, operands call one code: a copy for each would take longer to compile than
    what is computed.
    """

    @lang.tile(
        "tensor:i64, rows:i64, columns:i64, row_step:i64, column_step:i64, scratch:i64",
        inline=False if shared else None,
    )
    def move(t: Any, tensor: Any, rows: Any, columns: Any, row_step: Any, column_step: Any, scratch: Any) -> None:
        def element(r: Any, c: Any) -> None:
            there = tensor + r * row_step + c * column_step
            here = scratch + (r * TILE_COLUMNS + c) * size
            source, target = (there, here) if gather else (here, there)
            t.store_words(target, t.load_integers(f"i{8 * size}", source, lanes=0))

        def down() -> None:
            t.loop(0, columns, body=lambda c, _: t.loop(0, rows, body=lambda r, _: element(r, c)))

        def across() -> None:
            t.loop(0, rows, body=lambda r, _: t.loop(0, columns, body=lambda c, _: element(r, c)))

        t.when(row_step < column_step, down, across)

    return move


def tiles(
    *,
    function: str,
    inputs: tuple[str | None, ...],
    kinds: tuple[str, ...],
    scalars: tuple[str | None, ...],
    options: tuple[tuple[str, Any], ...],
    output: str,
    numbered: bool,
    unroll: int,
) -> Callable[..., None]:
    """The tiles form: one unit is a tile of the two innermost axes."""
    present = [dtype for dtype in inputs if dtype is not None]
    kinds_of_scratch = ("unit",) * len(present)
    row = _Pointwise(function, inputs, kinds_of_scratch, scalars, options, output, numbered, unroll)
    # No more than a row of a tile can fill.
    span = replace(row, unroll=max(min(unroll, TILE_COLUMNS // row.lanes()), 1)).span()
    itemsize = lang.itemsize(output)
    sizes = [lang.itemsize(dtype) for dtype in present]
    gathers = {size: _move(size, gather=True, shared=sizes.count(size) > 1) for size in sizes}
    scattered = kinds == ("strided",)
    scatter = _move(lang.itemsize(output), gather=False)
    result_row = lang.itemsize(output) * TILE_COLUMNS

    @lang.tile(f"begin:i64, end:i64, {_TENSORS}, scratch:i64")
    def units(t: Any, begin: Any, end: Any, geometry: Any, constants: Any, *rest: Any) -> None:
        *tensors, scratch = rest
        column_tiles, row_tiles, _, axes = (t.load_i64(geometry + 8 * word) for word in range(4))
        inner = geometry + FIRST_AXIS
        outer = inner + AXIS_BYTES
        columns, rows = t.load_i64(inner), t.load_i64(outer)
        right, down = ([t.load_i64(axis + 8 * (1 + n)) for n in range(MAX_OPERANDS + 1)] for axis in (inner, outer))
        buffers = [scratch + n * TILE_BYTES for n in range(MAX_OPERANDS + 1)]

        def unit(number: Any, _: Any) -> None:
            line = number // column_tiles
            c = (number - line * column_tiles) * TILE_COLUMNS
            above = line // row_tiles
            r = (line - above * row_tiles) * TILE_ROWS
            corners = [
                place + r * below + c * beside for place, below, beside in zip(tensors, down, right, strict=True)
            ]
            *operands, target = _located(t, corners, outer + AXIS_BYTES, axes, above)
            height, width = t.min(rows - r, TILE_ROWS), t.min(columns - c, TILE_COLUMNS)
            for n, size in enumerate(sizes):
                gathers[size](operands[n], height, width, down[n], right[n], buffers[n])

            def compute(n: Any, _: Any) -> None:
                sources = [buffer + n * size * TILE_COLUMNS for buffer, size in zip(buffers, sizes, strict=False)]
                sources += buffers[len(sources) : MAX_OPERANDS]  # of absent operands: not read
                place = buffers[-1] + n * result_row if scattered else target + n * down[-1]
                number = (target + n * down[-1] - tensors[-1]) // itemsize
                span(*sources, constants, place, number, 0, width, 0)

            t.loop(0, height, body=compute)
            if scattered:
                scatter(target, height, width, down[-1], right[-1], buffers[-1])

        t.loop(begin, end, body=unit)

    def body(begin, end, tid, geometry, constants, p0, p1, p2, out, scratch):
        own = scratch + tid * ((MAX_OPERANDS + 1) * TILE_BYTES)
        units(begin, end, geometry, constants, p0, p1, p2, out, own)

    return body
