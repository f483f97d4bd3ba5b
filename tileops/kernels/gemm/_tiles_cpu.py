"""The register tiles of GEMM on the CPU: one on vector units, one on AMX tiles.

A tile is three words: ``start()`` and ``finish()`` around all work of a thread, and

    multiply(steps, a, a_row, a_step, pitch, b, stride, sums, first, last, d, ldd, rows, columns, ahead,
    ahead_stride, ahead_line, again, held, held_d)

which multiplies a row block at `a` with NV panels at `b` (`stride` bytes apart) over `steps`, starts from
zero if `first` and else from the float32 block `sums`, and stores into the result `d` if `last` and else back
into `sums`. `rows` and `columns` are what is left of the result. On AMX the rows of a tile of A are `pitch`
bytes apart, its tiles 16 times `a_row`, and one step takes `a_step` bytes; `again` is not zero where A was read
before. From `ahead` on lies memory that will be wanted next, in several rows `ahead_stride` bytes apart, of which every
`ahead_line`-th byte names a line to fetch.

A tile may leave a result in `sums`: it returns their address, or 0. Then the next multiplication, whose arithmetic
hides it, or ``finish(held, held_d, ldd)`` moves them from there (`held`) to their place in the result (`held_d`).
"""

from __future__ import annotations

from typing import Any

from tileops.jit import lang
from tileops.jit.lang import pairs
from tileops.kernels.gemm import _forms

_SIGNATURE = (
    "steps: i64, a: i64, a_row: i64, a_step: i64, pitch: i64, b: i64, stride: i64, sums: i64, first: i64, last: i64, "
    "d: i64, ldd: i64, rows: i64, columns: i64, ahead: i64, ahead_stride: i64, ahead_line: i64, again: i64, held: i64, "
    "held_d: i64"
)
_FINISH_SIGNATURE = "held: i64, held_d: i64, ldd: i64"
#: Lines that the vector tile fetches ahead of its loads.
_AHEAD = 8

Words = tuple[Any, Any, Any]


def _nothing(signature: str) -> Any:
    @lang.tile(signature, inline=True)
    def nothing(t: Any, *_: Any) -> None:
        pass

    return nothing


def vector_tile(dtype: str, a_form: str, form: str, MR: int, NV: int, fetch: tuple[int, int]) -> Words:
    """MR rows of NV panels in vector registers."""

    @lang.tile(_SIGNATURE, returns="i64")
    def multiply(
        t: Any, steps: Any, a: Any, a_row: Any, a_step: Any, pitch: Any, b: Any, stride: Any, sums: Any, first: Any,
        last: Any, d: Any, ldd: Any, rows: Any, columns: Any, ahead: Any, ahead_stride: Any, ahead_line: Any,
        again: Any, held: Any, held_d: Any,
    ) -> Any:  # fmt: skip
        size = lang.itemsize(dtype)
        per_panel = _forms.COLUMNS // t.LANES
        vectors = NV * per_panel
        row_bytes = vectors * t.LANES * 4
        places = [(i, j) for i in range(MR) for j in range(vectors)]

        def load_sums() -> list[Any]:
            return [t.bitcast(t.load_words(sums + (i * row_bytes + j * t.LANES * 4)), "f32") for i, j in places]

        total = t.when(first != 0, lambda: [t.vconst(0.0)] * len(places), load_sums)

        def step(k: Any, total: list[Any]) -> list[Any]:
            line, row = b + k * _forms.LINE, a + k * (MR * 4)
            right = [
                t.load_words(line + stride * (j // per_panel) + (j % per_panel) * (t.LANES * 4)) for j in range(vectors)
            ]
            if fetch[0]:
                for panel in range(NV):
                    t.prefetch(line + stride * panel + _AHEAD * _forms.LINE)
                t.prefetch(row + _AHEAD * MR * 4)
            result = []
            for i in range(MR):
                left = t.load_splat_word(row + 4 * i)
                for j in range(vectors):
                    old = total[i * vectors + j]
                    if form == "pairs":
                        result.append(t.dot_bf16(old, left, right[j]))
                    else:
                        result.append(t.fma(t.bitcast(left, "f32"), t.bitcast(right[j], "f32"), old))
            return result

        total = t.loop(0, steps, 1, total, step)

        def keep() -> None:
            for (i, j), value in zip(places, total, strict=True):
                t.store_words(sums + (i * row_bytes + j * t.LANES * 4), value)

        def write() -> None:
            whole = (rows >= MR) & (columns >= NV * _forms.COLUMNS)

            def all_of_it() -> None:
                for (i, j), value in zip(places, total, strict=True):
                    t.store(dtype, d + ldd * i + j * t.LANES * size, value)

            def part() -> None:
                masks = [t.mask_lt(columns, start=j * t.LANES) for j in range(vectors)]
                for i in range(MR):
                    row = total[i * vectors : (i + 1) * vectors]
                    t.when(rows > i, lambda i=i, row=row: write_row(i, row, masks))

            def write_row(i: int, row: list[Any], masks: list[Any]) -> None:
                for j, value in enumerate(row):
                    t.store(dtype, d + ldd * i + j * t.LANES * size, value, masks[j])

            t.when(whole, all_of_it, part)

        t.when(last != 0, write, keep)
        return t.const(0)

    return _nothing(""), multiply, _nothing(_FINISH_SIGNATURE)


def amx_tile(dtype: str, a_form: str, form: str, MR: int, NV: int, fetch: tuple[int, int]) -> Words:
    """Two by two accumulator tiles: 32 rows of two panels.

    The result leaves through `sums`, since tiles can only be stored to memory; a whole block of it is left there for
    the next multiplication to round and store. Each step fetches ``fetch[1]`` lines of each of ``fetch[0]`` rows at
    `ahead`.
    """
    a_parts, parts = _forms.PARTS[a_form], _forms.PARTS[form]
    size, amx_bytes = lang.itemsize(dtype), _forms.TILE
    assert (MR, NV) == (32, 2)

    @lang.tile("", inline=True)
    def start(t: Any) -> None:
        t.amx_config()

    write_part, write_row = _amx_part(dtype), _row_writer(dtype)

    @lang.tile(_FINISH_SIGNATURE)
    def finish(t: Any, held: Any, held_d: Any, ldd: Any) -> None:
        t.when(held != 0, lambda: t.loop(0, MR, body=lambda i, _: write_row(t, held, held_d, ldd, i)))
        t.amx_release()

    @lang.tile(_SIGNATURE, returns="i64")
    def multiply(
        t: Any, steps: Any, a: Any, a_row: Any, a_step: Any, pitch: Any, b: Any, stride: Any, sums: Any, first: Any,
        last: Any, d: Any, ldd: Any, rows: Any, columns: Any, ahead: Any, ahead_stride: Any, ahead_line: Any,
        again: Any, held: Any, held_d: Any,
    ) -> Any:  # fmt: skip
        def zero() -> None:
            for i in range(4):
                t.amx_zero(i)

        def resume() -> None:
            for i in range(4):
                t.amx_load(i, sums + i * amx_bytes, _forms.LINE)

        t.when(first != 0, zero, resume)
        # What is stored at the end is fetched meanwhile: rows of the result are rarely in a near cache.
        target = t.select_value(last != 0, d, sums)
        target_row = t.select_value(last != 0, ldd, _forms.LINE)

        held_rows = t.select_value(held != 0, t.const(MR), 0)

        def write_two_held(k: Any) -> None:
            for row in range(2):
                write_row(t, held, held_d, ldd, 2 * k + row)

        def load_left(register: int, rows: Any) -> None:
            # Panels are used again for the next rows, which stream past them: through the nearest cache only, once
            # they are in the second.
            t.when(
                again != 0,
                lambda: t.amx_load(register, rows, pitch, stream=True),
                lambda: t.amx_load(register, rows, pitch),
            )

        def step(k: Any, _: Any) -> None:
            t.when(2 * k < held_rows, lambda: write_two_held(k))
            for row in range(2):
                for line in range(0, 2 * t.LANES * size, _forms.LINE):
                    t.prefetch(target + t.min(2 * k + row, MR - 1) * target_row + line, write=True)
            rows_ahead, lines_ahead = fetch
            for row in range(rows_ahead):
                for line in range(lines_ahead):
                    t.prefetch(ahead + ahead_stride * row + (k * lines_ahead + line) * ahead_line, locality=2)
            left_at, right_at = a + k * a_step, b + k * (parts * amx_bytes)
            lefts, rights = (left_at, left_at + 16 * a_row), (right_at, right_at + stride)
            loaded: list[int | None] = [None, None]
            for left, right in pairs.PART_PRODUCTS[a_parts, parts]:
                if loaded[1] != right:
                    for i in (0, 1):
                        t.amx_load(6 + i, rights[i] + right * amx_bytes, _forms.LINE)
                if loaded[0] != left:
                    for i in (0, 1):
                        load_left(4 + i, lefts[i] + left * amx_bytes)
                loaded = [left, right]
                for i in range(4):
                    t.amx_dot_bf16(i, 4 + i // 2, 6 + i % 2)

        t.loop(0, steps, body=step)
        t.loop(2 * steps, held_rows, body=lambda i, _: write_row(t, held, held_d, ldd, i))
        for i in range(4):
            t.amx_store(i, sums + i * amx_bytes, _forms.LINE)
        whole = (rows >= MR) & (columns >= NV * _forms.COLUMNS)
        t.when((last != 0) & ~whole, lambda: write_part(sums, d, ldd, rows, columns))
        return t.select_value((last != 0) & whole, sums, 0)

    return start, multiply, finish


def _halves(t: Any, sums: Any, i: Any) -> tuple[Any, Any]:
    """Row `i` of the left and of the right of two by two accumulators."""
    at = sums + (i // 16) * (2 * _forms.TILE) + (i % 16) * _forms.LINE
    return t.bitcast(t.load_words(at), "f32"), t.bitcast(t.load_words(at + _forms.TILE), "f32")


def _row_writer(dtype: str) -> Any:
    """``write_row(t, sums, d, ldd, i)``: rounds row `i` of two by two accumulators and stores all of it."""
    size = lang.itemsize(dtype)

    def write_row(t: Any, sums: Any, d: Any, ldd: Any, i: Any) -> None:
        left, right = _halves(t, sums, i)
        if dtype == "bf16":
            pairs.store_bf16_flushed(d + i * ldd, left, right)
        else:
            t.store(dtype, d + i * ldd, left)
            t.store(dtype, d + i * ldd + t.LANES * size, right)

    return write_row


def _amx_part(dtype: str) -> Any:
    """A tile that rounds two by two accumulators and stores what the result has of them."""
    size, write_row = lang.itemsize(dtype), _row_writer(dtype)

    @lang.tile("sums: i64, d: i64, ldd: i64, rows: i64, columns: i64")
    def write(t: Any, sums: Any, d: Any, ldd: Any, rows: Any, columns: Any) -> None:
        def part(i: Any, _: Any) -> None:
            for j, value in enumerate(_halves(t, sums, i)):
                t.store(dtype, d + i * ldd + j * t.LANES * size, value, t.mask_lt(columns, start=j * t.LANES))

        count = t.min(rows, 32)
        t.when(
            columns >= 2 * t.LANES,
            lambda: t.loop(0, count, body=lambda i, _: write_row(t, sums, d, ldd, i)),
            lambda: t.loop(0, count, body=part),
        )

    return write
