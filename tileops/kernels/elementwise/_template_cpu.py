"""Device side of the elementwise CPU template: the bodies of its two forms. `template_cpu` explains them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tileops.jit import lang
from tileops.kernels.elementwise import functions
from tileops.kernels.elementwise.template_cpu import (
    AXIS_WORDS,
    FLOATS,
    HEADER_WORDS,
    MAX_OPERANDS,
    TILE_BYTES,
    TILE_COLUMNS,
    TILE_ROWS,
)

AXIS_BYTES = 8 * AXIS_WORDS
FIRST_AXIS = 8 * HEADER_WORDS


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
        scalars: whether each of its scalar parameters is there.
        options: its keyword arguments.
        output: storage format of the result.
        unroll: vectors computed side by side.
    """

    function: str
    inputs: tuple[str | None, ...]
    kinds: tuple[str, ...]
    scalars: tuple[bool, ...]
    options: tuple[tuple[str, Any], ...]
    output: str
    unroll: int

    @property
    def on_bits(self) -> bool:
        """Whether halves are computed with as the 16-bit integers that they are stored as."""
        return functions.on_bits(self.function, self.output) is not None

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

    @property
    def value(self) -> str:
        """Element type of the scalar parameters: that of the first operand which is no condition."""
        first = next((dtype for dtype in self.present if dtype != "b1"), self.present[0])
        return _computed_as(first)

    def lanes(self) -> int:
        return int(4 * lang.lanes() // max(_computed_size(dtype) for dtype in (*self.present, self.result)))

    def span(self) -> Any:
        """A tile that computes elements ``start .. stop - 1`` of a row."""
        masked = self._masked()

        @lang.tile("p0:i64, p1:i64, p2:i64, constants:i64, out:i64, start:i64, stop:i64, streaming:i64")
        def span(
            t: Any, p0: Any, p1: Any, p2: Any, constants: Any, out: Any, start: Any, stop: Any, streaming: Any
        ) -> None:
            pointers = (p0, p1, p2)
            shared = self._shared(t, pointers, constants)
            lanes, size = self.lanes(), lang.itemsize(self.output)

            def vectors(i: Any, count: int) -> None:
                results = self._compute(t, pointers, shared, i, count)
                stored = t.narrow_group(self.result, results)
                places = [out + i * size + u * lanes * size for u in range(count)]

                def plain() -> None:
                    for place, value in zip(places, stored, strict=True):
                        t.store_words(place, value)

                def around() -> None:
                    for place, value in zip(places, stored, strict=True):
                        t.stream_words(place, value)

                if count > 1:
                    t.when(streaming != 0, around, plain)
                else:
                    plain()

            # Stores around the caches need whole vectors at aligned addresses.
            misplaced = (out + start * size) & (lanes * size - 1)
            head = t.select_value(streaming * misplaced != 0, t.const(lanes) - misplaced // size, t.const(0))
            first = t.min(start + head, stop)
            t.when(head > 0, lambda: masked(p0, p1, p2, constants, out, start, first))
            step = lanes * self.unroll
            unrolled = first + (stop - first) // step * step
            whole = first + (stop - first) // lanes * lanes
            if self.unroll > 1:
                t.loop(first, unrolled, step, body=lambda i, _: vectors(i, self.unroll))
            t.loop(unrolled if self.unroll > 1 else first, whole, lanes, body=lambda i, _: vectors(i, 1))
            t.when(whole < stop, lambda: masked(p0, p1, p2, constants, out, whole, stop))

        return span

    def _masked(self) -> Any:
        """A tile that computes elements ``start .. stop - 1``, fewer than a vector."""

        @lang.tile("p0:i64, p1:i64, p2:i64, constants:i64, out:i64, start:i64, stop:i64")
        def masked(t: Any, p0: Any, p1: Any, p2: Any, constants: Any, out: Any, start: Any, stop: Any) -> None:
            pointers = (p0, p1, p2)
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
            self._scalar(t, constants + 8 * place) if there else None for place, there in enumerate(self.scalars)
        ]
        return operands, scalars

    def _scalar(self, t: Any, place: Any) -> Any:
        """A scalar parameter in every lane."""
        if self.on_bits:
            (bits,) = t.narrow_group(self.output, [t.load_splat("f32", place, self.lanes())])
            return bits
        return t.load_scalar_word(self.value, place, self.lanes())

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
        function = functions.on_bits(self.function, self.output) or functions.find(self.function, self.output)
        result = function(*operands, *shared[1], **dict(self.options))
        members = result.members if isinstance(result, lang.Lockstep) else [result] * count
        return [t.spread(_computed_as(self.result), member, lanes) for member in members]


def rows(
    *,
    function: str,
    inputs: tuple[str | None, ...],
    kinds: tuple[str, ...],
    scalars: tuple[bool, ...],
    options: tuple[tuple[str, Any], ...],
    output: str,
    unroll: int,
) -> Callable[..., None]:
    """The rows form: one unit is a block of a row."""
    span = _Pointwise(function, inputs, kinds, scalars, options, output, unroll).span()
    load_i64, store_fence = lang.load_i64, lang.store_fence

    def body(begin, end, tid, geometry, constants, p0, p1, p2, out):
        size, width = load_i64(geometry), load_i64(geometry + 8)
        blocks, axes = load_i64(geometry + 16), load_i64(geometry + 24)
        streaming = load_i64(geometry + 32)
        row = begin // blocks
        block = begin - row * blocks
        for _ in range(begin, end):
            q0, q1, q2, target = p0, p1, p2, out
            rest = row
            axis = geometry + FIRST_AXIS
            for left in range(axes, 0, -1):
                index = rest
                if left > 1:
                    extent = load_i64(axis)
                    rest = rest // extent
                    index -= rest * extent
                q0 += index * load_i64(axis + 8)
                q1 += index * load_i64(axis + 16)
                q2 += index * load_i64(axis + 24)
                target += index * load_i64(axis + 32)
                axis += AXIS_BYTES
            start = block * width
            stop = start + width if start + width < size else size
            span(q0, q1, q2, constants, target, start, stop, streaming)
            block += 1
            if block == blocks:
                block = 0
                row += 1
        if streaming != 0:
            store_fence()

    return body


def _move(size: int, *, gather: bool) -> Any:
    """A tile that copies a ragged tile of elements of `size` bytes between a tensor and scratch, along the axis in
    which the tensor is denser; it does nothing for a tensor that does not exist (size 0).
    """

    @lang.tile("tensor:i64, rows:i64, columns:i64, row_step:i64, column_step:i64, scratch:i64")
    def move(t: Any, tensor: Any, rows: Any, columns: Any, row_step: Any, column_step: Any, scratch: Any) -> None:
        if size == 0:
            return

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
    scalars: tuple[bool, ...],
    options: tuple[tuple[str, Any], ...],
    output: str,
    unroll: int,
) -> Callable[..., None]:
    """The tiles form: one unit is a tile of the two innermost axes."""
    present = [dtype for dtype in inputs if dtype is not None]
    span = _Pointwise(function, inputs, ("unit",) * len(present), scalars, options, output, unroll).span()
    load_i64 = lang.load_i64
    sizes = [lang.itemsize(dtype) for dtype in present] + [0] * (MAX_OPERANDS - len(present))
    gather0, gather1, gather2 = (_move(size, gather=True) for size in sizes)
    scattered = kinds == ("strided",)
    scatter = _move(lang.itemsize(output) if scattered else 0, gather=False)
    row0, row1, row2 = (size * TILE_COLUMNS for size in sizes)
    result_row = lang.itemsize(output) * TILE_COLUMNS

    def body(begin, end, tid, geometry, constants, p0, p1, p2, out, scratch):
        column_tiles, row_tiles = load_i64(geometry), load_i64(geometry + 8)
        axes = load_i64(geometry + 24)
        inner = geometry + FIRST_AXIS
        outer = inner + AXIS_BYTES
        columns, rows = load_i64(inner), load_i64(outer)
        s0 = scratch + tid * ((MAX_OPERANDS + 1) * TILE_BYTES)
        s1, s2, result = s0 + TILE_BYTES, s0 + 2 * TILE_BYTES, s0 + 3 * TILE_BYTES
        down, right = load_i64(outer + 32), load_i64(inner + 32)
        for unit in range(begin, end):
            rest = unit // column_tiles
            c = (unit - rest * column_tiles) * TILE_COLUMNS
            above = rest // row_tiles
            r = (rest - above * row_tiles) * TILE_ROWS
            q0 = p0 + r * load_i64(outer + 8) + c * load_i64(inner + 8)
            q1 = p1 + r * load_i64(outer + 16) + c * load_i64(inner + 16)
            q2 = p2 + r * load_i64(outer + 24) + c * load_i64(inner + 24)
            target = out + r * down + c * right
            axis = outer + AXIS_BYTES
            for left in range(axes, 0, -1):
                index = above
                if left > 1:
                    extent = load_i64(axis)
                    above = above // extent
                    index -= above * extent
                q0 += index * load_i64(axis + 8)
                q1 += index * load_i64(axis + 16)
                q2 += index * load_i64(axis + 24)
                target += index * load_i64(axis + 32)
                axis += AXIS_BYTES
            height = TILE_ROWS if r + TILE_ROWS < rows else rows - r
            width = TILE_COLUMNS if c + TILE_COLUMNS < columns else columns - c
            gather0(q0, height, width, load_i64(outer + 8), load_i64(inner + 8), s0)
            gather1(q1, height, width, load_i64(outer + 16), load_i64(inner + 16), s1)
            gather2(q2, height, width, load_i64(outer + 24), load_i64(inner + 24), s2)
            for line in range(height):
                place = result + line * result_row if scattered else target + line * down
                span(s0 + line * row0, s1 + line * row1, s2 + line * row2, constants, place, 0, width, 0)
            scatter(target, height, width, down, right, result)

    return body
