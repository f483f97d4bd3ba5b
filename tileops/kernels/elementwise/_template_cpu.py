"""Device side of the elementwise CPU template: the bodies of its two forms. `template_cpu` explains them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from tileops.jit import lang
from tileops.kernels.elementwise import _functions
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


class _Floats:
    """Operands of float dtypes: computed with in float32."""

    scratch_dtype = "f32"
    scratch_size = 4

    def lanes(self, t: Any) -> int:
        return t.LANES

    def load(self, t: Any, dtype: str, address: Any, mask: Any = None) -> Any:
        return t.load(dtype, address, mask)

    def splat(self, t: Any, dtype: str, address: Any) -> Any:
        return t.load_splat(dtype, address)

    def store(self, t: Any, dtype: str, addresses: Sequence[Any], values: Sequence[Any], mask: Any = None) -> None:
        if mask is None:
            t.store_group(dtype, addresses, values)
        else:
            t.store(dtype, addresses[0], values[0], mask)

    def copy(self, t: Any, dtype: str, source: Any, target: Any) -> None:
        """One element, as the scratch holds it."""
        t.store_scalar("f32", target, t.load_scalar(dtype, source))


class _Integers:
    """Operands of one integer dtype: computed with in that width, where overflow wraps as in torch. Booleans
    are bytes of 0 and 1.
    """

    _ELEMENTS: ClassVar = {"b1": "i8", "u8": "i8"}

    def __init__(self, dtype: str) -> None:
        self.element = self._ELEMENTS.get(dtype, dtype)
        self.scratch_size = lang.itemsize(dtype)
        self.scratch_dtype = dtype

    def lanes(self, t: Any) -> int:
        return 4 * t.LANES // self.scratch_size

    def load(self, t: Any, dtype: str, address: Any, mask: Any = None) -> Any:
        return t.load_integers(self.element, address, mask, self.lanes(t))

    def splat(self, t: Any, dtype: str, address: Any) -> Any:
        return t.splat_integer(self.element, address, self.lanes(t))

    def store(self, t: Any, dtype: str, addresses: Sequence[Any], values: Sequence[Any], mask: Any = None) -> None:
        for address, value in zip(addresses, values, strict=True):
            t.store_words(address, value, mask)

    def copy(self, t: Any, dtype: str, source: Any, target: Any) -> None:
        """One element, as the scratch holds it."""
        t.store_words(target, t.load_integers(self.element, source, lanes=0))


def _access(dtype: str) -> Any:
    """How elements of an operator with results of `dtype` are read, computed with and written."""
    return _Floats() if dtype in FLOATS else _Integers(dtype)


def _span(function: str, access: Any, operands: Sequence[tuple[str, str]], output: str, unroll: int) -> Any:
    """A tile that computes elements ``start .. stop - 1`` of a row.

    Args:
        function: name of the scalar function.
        access: how elements are read and written.
        operands: storage format and kind ("unit": one element each, "splat": the same for all) of its
            arguments.
        output: storage format of the result.
        unroll: vectors computed side by side.
    """
    compute: Callable[..., Any] = getattr(_functions, function)

    @lang.tile("p0:i64, p1:i64, p2:i64, p3:i64, out:i64, start:i64, stop:i64")
    def span(t: Any, p0: Any, p1: Any, p2: Any, p3: Any, out: Any, start: Any, stop: Any) -> None:
        pointers = (p0, p1, p2, p3)[: len(operands)]
        lanes = access.lanes(t)
        shared = [
            access.splat(t, dtype, pointer) if kind == "splat" else None
            for pointer, (dtype, kind) in zip(pointers, operands, strict=True)
        ]

        def vectors(i: Any, count: int, mask: Any = None) -> None:
            """Computes `count` vectors from element i on, operation by operation side by side."""

            def argument(index: int) -> Any:
                dtype, kind = operands[index]
                if kind == "splat":
                    return shared[index]
                size = lang.itemsize(dtype)
                first = pointers[index] + i * size
                return lang.Lockstep([access.load(t, dtype, first + u * lanes * size, mask) for u in range(count)])

            result = compute(*(argument(index) for index in range(len(operands))))
            size = lang.itemsize(output)
            addresses = [out + i * size + u * lanes * size for u in range(count)]
            access.store(t, output, addresses, result.members, mask)

        step = lanes * unroll
        unrolled = start + (stop - start) // step * step
        whole = start + (stop - start) // lanes * lanes
        t.loop(start, unrolled, step, body=lambda i, _: vectors(i, unroll))
        t.loop(unrolled, whole, lanes, body=lambda i, _: vectors(i, 1))
        t.when(whole < stop, lambda: vectors(whole, 1, t.mask_lt(stop - whole, lanes)))

    return span


def rows(
    *,
    function: str,
    inputs: tuple[str, ...],
    kinds: tuple[str, ...],
    scalars: int,
    output: str,
    unroll: int,
) -> Callable[..., None]:
    """The rows form: one unit is a block of a row."""
    access = _access(output)
    operands = [*zip(inputs, kinds, strict=True), *[(access.scratch_dtype, "splat")] * scalars]
    span = _span(function, access, operands, output, unroll)
    load_i64 = lang.load_i64

    def body(begin, end, tid, geometry, p0, p1, p2, p3, out):
        size, width = load_i64(geometry), load_i64(geometry + 8)
        blocks, axes = load_i64(geometry + 16), load_i64(geometry + 24)
        row = begin // blocks
        block = begin - row * blocks
        for _ in range(begin, end):
            q0, q1, q2, q3, target = p0, p1, p2, p3, out
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
                q3 += index * load_i64(axis + 32)
                target += index * load_i64(axis + 40)
                axis += AXIS_BYTES
            start = block * width
            stop = start + width if start + width < size else size
            span(q0, q1, q2, q3, target, start, stop)
            block += 1
            if block == blocks:
                block = 0
                row += 1

    return body


def _gather(access: Any, dtype: str | None) -> Any:
    """A tile that copies a ragged tile of one operand into scratch, along the axis it is denser in; it does
    nothing for an operand that does not exist.
    """

    @lang.tile("source:i64, rows:i64, columns:i64, row_step:i64, column_step:i64, scratch:i64")
    def gather(t: Any, source: Any, rows: Any, columns: Any, row_step: Any, column_step: Any, scratch: Any) -> None:
        if dtype is None:
            return
        size = access.scratch_size

        def element(r: Any, c: Any) -> None:
            target = scratch + (r * TILE_COLUMNS + c) * size
            access.copy(t, dtype, source + r * row_step + c * column_step, target)

        def down() -> None:
            t.loop(0, columns, body=lambda c, _: t.loop(0, rows, body=lambda r, _: element(r, c)))

        def across() -> None:
            t.loop(0, rows, body=lambda r, _: t.loop(0, columns, body=lambda c, _: element(r, c)))

        t.when(row_step < column_step, down, across)

    return gather


def tiles(
    *,
    function: str,
    inputs: tuple[str, ...],
    kinds: tuple[str, ...],
    scalars: int,
    output: str,
    unroll: int,
) -> Callable[..., None]:
    """The tiles form: one unit is a tile of the two innermost axes."""
    access = _access(output)
    held = access.scratch_dtype
    operands = [*[(held, "unit")] * len(inputs), *[(held, "splat")] * scalars]
    span = _span(function, access, operands, output, unroll)
    load_i64 = lang.load_i64
    dtypes = (*inputs, *[None] * (MAX_OPERANDS - len(inputs)))
    gather0, gather1, gather2, gather3 = (_gather(access, dtype) for dtype in dtypes)
    # A scalar parameter is read where it is; a tensor operand from its tile.
    row_bytes = access.scratch_size * TILE_COLUMNS
    row0, row1, row2, row3 = (row_bytes if k < len(inputs) else 0 for k in range(MAX_OPERANDS))
    tile0, tile1, tile2, tile3 = (k < len(inputs) for k in range(MAX_OPERANDS))

    def body(begin, end, tid, geometry, p0, p1, p2, p3, out, scratch):
        column_tiles, row_tiles = load_i64(geometry), load_i64(geometry + 8)
        axes = load_i64(geometry + 24)
        inner = geometry + FIRST_AXIS
        outer = inner + AXIS_BYTES
        columns, rows = load_i64(inner), load_i64(outer)
        own = scratch + tid * (MAX_OPERANDS * TILE_BYTES)
        for unit in range(begin, end):
            rest = unit // column_tiles
            c = (unit - rest * column_tiles) * TILE_COLUMNS
            above = rest // row_tiles
            r = (rest - above * row_tiles) * TILE_ROWS
            q0 = p0 + r * load_i64(outer + 8) + c * load_i64(inner + 8)
            q1 = p1 + r * load_i64(outer + 16) + c * load_i64(inner + 16)
            q2 = p2 + r * load_i64(outer + 24) + c * load_i64(inner + 24)
            q3 = p3 + r * load_i64(outer + 32) + c * load_i64(inner + 32)
            target = out + r * load_i64(outer + 40) + c * load_i64(inner + 40)
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
                q3 += index * load_i64(axis + 32)
                target += index * load_i64(axis + 40)
                axis += AXIS_BYTES
            height = TILE_ROWS if r + TILE_ROWS < rows else rows - r
            width = TILE_COLUMNS if c + TILE_COLUMNS < columns else columns - c
            gather0(q0, height, width, load_i64(outer + 8), load_i64(inner + 8), own)
            gather1(q1, height, width, load_i64(outer + 16), load_i64(inner + 16), own + TILE_BYTES)
            gather2(q2, height, width, load_i64(outer + 24), load_i64(inner + 24), own + 2 * TILE_BYTES)
            gather3(q3, height, width, load_i64(outer + 32), load_i64(inner + 32), own + 3 * TILE_BYTES)
            s0 = own if tile0 else q0
            s1 = own + TILE_BYTES if tile1 else q1
            s2 = own + 2 * TILE_BYTES if tile2 else q2
            s3 = own + 3 * TILE_BYTES if tile3 else q3
            for line in range(height):
                span(
                    s0 + line * row0,
                    s1 + line * row1,
                    s2 + line * row2,
                    s3 + line * row3,
                    target + line * load_i64(outer + 40),
                    0,
                    width,
                )

    return body
