"""Building blocks of blocked attention: operands in tiles and panels, their products, and copies.

The unit of storage is a 32-bit *word*: one float32, or a pair of bfloat16 neighbours along the contracted axis.

- A *tile* holds 16 rows of 16 words, 1 KiB. Left operands (keys, transposed values) are arrays of tiles, so that
  one layout serves AMX, whose registers are such tiles, and register kernels, which read single words of a row.
- A *panel* holds one vector per row: `LANES` columns. Right operands (queries, weights) and results (scores,
  outputs) are panels; a column is one query. With 16 lanes, 16 rows of a panel are a tile.

Everything per query (maximum, sum, limits) is then one lane, and nothing is ever reduced across lanes.

A *form* says what words are and what multiplies them:

    floats              float32, on the vector units
    pairs               pairs of bfloat16, on the vector units
    amx1, amx2, amx3    pairs of bfloat16 on AMX: bfloat16 itself, float16 as a sum of two parts, float32 of three

Parts (`tileops.jit.lang.pairs.bf16_parts`) hold their number exactly. The products of parts that are dropped are at
most 2**-16 of the whole for float16, 2**-21 for float32, and have no preferred sign.
"""

from __future__ import annotations

from typing import Any

from tileops.jit import lang
from tileops.jit.lang.pairs import PART_PRODUCTS, bf16_parts, join_bf16, split_pairs

TILE_ROWS = 16
TILE_WORDS = 16
TILE_BYTES = 1024
ROW_BYTES = 64
BLOCK_ROWS = 32


def parts_of(form: str) -> int:
    """Into how many bfloat16 a number is split."""
    return int(form[3:]) if form.startswith("amx") else 1


def product(form: str, *, accumulate: bool) -> lang.Word:
    """``block(tiles, a, a_row, a_next, a_part, b, b_panel, b_part, c, c_panel)``: ``c (+)= a @ b``.

    For 32 rows and 2 panels. The block's parameters are addresses and distances in bytes: `tiles` along the
    contracted axis, `a_row` from one row of tiles to the next, `a_next` from a tile to the next along the
    contracted axis, `b_panel` and `c_panel` between panels, `a_part` and `b_part` between parts.

    Args:
        form: what words are.
        accumulate: add to `c` instead of replacing it.
    """
    return _amx_product(form, accumulate) if form.startswith("amx") else _register_product(form, accumulate)


_SIGNATURE = (
    "tiles: i64, a: i64, a_row: i64, a_next: i64, a_part: i64, b: i64, b_panel: i64, b_part: i64, c: i64, c_panel: i64"
)


def _amx_product(form: str, accumulate: bool) -> lang.Word:
    quarters = [(i, j, 2 * i + j) for i in range(2) for j in range(2)]  # tile row, panel, register

    @lang.tile(_SIGNATURE)
    def block(t, tiles, a, a_row, a_next, a_part, b, b_panel, b_part, c, c_panel):
        for i, j, register in quarters:
            if accumulate:
                t.amx_load(register, c + i * TILE_BYTES + c_panel * j, ROW_BYTES)
            else:
                t.amx_zero(register)

        def step(k, _):
            loaded: tuple[Any, Any] = (None, None)
            for left, right in PART_PRODUCTS[parts_of(form), parts_of(form)]:
                rows, columns = a + a_next * k + a_part * left, b + k * TILE_BYTES + b_part * right
                # Loads and products by turns, as far as an operand is not there already.
                if loaded[0] != left:
                    t.amx_load(4, rows, ROW_BYTES)
                if loaded[1] != right:
                    t.amx_load(6, columns, ROW_BYTES)
                t.amx_dot_bf16(0, 4, 6)
                if loaded[1] != right:
                    t.amx_load(7, columns + b_panel, ROW_BYTES)
                t.amx_dot_bf16(1, 4, 7)
                if loaded[0] != left:
                    t.amx_load(5, rows + a_row, ROW_BYTES)
                t.amx_dot_bf16(2, 5, 6)
                t.amx_dot_bf16(3, 5, 7)
                loaded = left, right

        t.loop(0, tiles, 1, (), step)
        for i, j, register in quarters:
            t.amx_store(register, c + i * TILE_BYTES + c_panel * j, ROW_BYTES)

    return block


def _register_product(form: str, accumulate: bool) -> lang.Word:
    # 2 vectors times this many rows of accumulators; the rest of the registers holds operands.
    rows = 8 if lang.lanes() == 16 else 4
    row_bytes = 4 * lang.lanes()

    def multiply(t, acc, left, right):
        return t.dot_bf16(acc, left, right) if form == "pairs" else t.fma(left, right, acc)

    def load(t, addr):
        return t.load_words(addr) if form == "pairs" else t.load("f32", addr)

    def broadcast(t, addr):
        return t.load_splat_word(addr) if form == "pairs" else t.load_splat("f32", addr)

    @lang.tile(_SIGNATURE)
    def block(t, tiles, a, a_row, a_next, a_part, b, b_panel, b_part, c, c_panel):
        def some_rows(start, _):
            left = a + a_row * (start // TILE_ROWS) + (start % TILE_ROWS) * ROW_BYTES
            out = c + start * row_bytes
            places = [out + r * row_bytes + c_panel * p for r in range(rows) for p in range(2)]

            def over_tiles(k, acc):
                left_tile, right_tile = left + a_next * k, b + k * (TILE_WORDS * row_bytes)
                acc = list(acc)
                # Unrolled: a loop this short ends in a mispredicted branch, which costs a third of the speed.
                for word in range(TILE_WORDS):
                    right = right_tile + word * row_bytes
                    vectors = [load(t, right), load(t, right + b_panel)]
                    for r in range(rows):
                        x = broadcast(t, left_tile + word * 4 + r * ROW_BYTES)
                        for p in range(2):
                            acc[2 * r + p] = multiply(t, acc[2 * r + p], x, vectors[p])
                return acc

            initial = [t.load("f32", place) if accumulate else t.vconst(0.0) for place in places]
            for place, value in zip(places, t.loop(0, tiles, 1, initial, over_tiles), strict=True):
                t.store("f32", place, value)

        t.loop(0, BLOCK_ROWS, rows, (), some_rows)

    return block


# -- copies ------------------------------------------------------------------------------------------------


def transpose() -> lang.Word:
    """``move(src, src_row, dst, dst_row)``: LANES rows of LANES words, transposed; distances in bytes."""

    @lang.tile("src: i64, src_row: i64, dst: i64, dst_row: i64")
    def move(t, src, src_row, dst, dst_row):
        rows = [t.load_words(src + src_row * i) for i in range(t.LANES)]
        for i, row in enumerate(t.transpose(rows)):
            t.store_words(dst + dst_row * i, row)

    return move


def fill_row() -> lang.Word:
    """``fill(words, dst, dst_tile)``: zeroes a row of words; each 16 lie `dst_tile` bytes after the last 16."""

    @lang.tile("words: i64, dst: i64, dst_tile: i64")
    def fill(t, words, dst, dst_tile):
        t.loop(0, words, t.LANES, (), lambda i, _: t.store_words(_word(i, dst, dst_tile), t.iconst(0)))

    return fill


def copy_row(dtype: str, form: str, dense: bool) -> lang.Word:
    """``copy(src, step, n, padded, dst, dst_tile, dst_part, spare)``: elements of a row as words.

    `n` elements, then zeros up to `padded` of them; parts lie `dst_part` bytes apart.

    Args:
        dtype: storage format of the source.
        form: what a word is.
        dense: the source's elements are neighbours, and where words are pairs of a 16-bit format their number is
            even; otherwise they lie `step` bytes apart, and `spare` has room for `padded` float32.
    """
    pairs, parts = form != "floats", parts_of(form)
    lang.itemsize(dtype)

    def store_parts(t, even, odd, dst, dst_part):
        split = zip(bf16_parts(even, parts), bf16_parts(odd, parts), strict=True)
        for part, (low, high) in enumerate(split):
            t.store_words(dst + dst_part * part, join_bf16(low, high))

    def copy_dense(t, dtype, src, n, padded, dst, dst_tile, dst_part):
        size = lang.itemsize(dtype)

        def floats(i, _):
            t.store("f32", _word(i, dst, dst_tile), t.load(dtype, src + i * size, t.mask_lt(n - i)))

        def words(i, _, whole=False):
            word = t.load_words(src + i * 4, None if whole else t.mask_lt(n // 2 - i))
            if parts == 1:
                t.store_words(_word(i, dst, dst_tile), word)
            else:
                store_parts(t, *split_pairs(dtype, word), _word(i, dst, dst_tile), dst_part)

        def floats_to_parts(i, _):
            first = i * 2
            vectors = [
                t.load("f32", src + (first + start) * 4, t.mask_lt(n - first, start=start)) for start in (0, t.LANES)
            ]
            even, odd = (t.shuffle(*vectors, range(start, 2 * t.LANES, 2)) for start in (0, 1))
            store_parts(t, even, odd, _word(i, dst, dst_tile), dst_part)

        body = floats if not pairs else floats_to_parts if dtype == "f32" else words
        first: Any = 0
        if body is words:  # whole vectors without masks
            first = n // 2 // t.LANES * t.LANES
            t.loop(0, first, t.LANES, (), lambda i, _: words(i, _, whole=True))
        t.loop(first, padded // 2 if pairs else padded, t.LANES, (), body)

    @lang.tile("src: i64, step: i64, n: i64, padded: i64, dst: i64, dst_tile: i64, dst_part: i64, spare: i64")
    def copy(t, src, step, n, padded, dst, dst_tile, dst_part, spare):
        if dense:
            copy_dense(t, dtype, src, n, padded, dst, dst_tile, dst_part)
            return
        if parts > 1:

            def widen(i, _):
                t.store_scalar("f32", spare + i * 4, t.load_scalar(dtype, src + step * i))

            t.loop(0, n, 1, (), widen)
            copy_dense(t, "f32", spare, n, padded, dst, dst_tile, dst_part)
            return
        words = padded // 2 if pairs else padded
        t.loop(0, words, t.LANES, (), lambda i, _: t.store_words(_word(i, dst, dst_tile), t.iconst(0)))

        def element(i, _):
            x = t.load_scalar(dtype, src + step * i)
            if pairs:
                t.store_scalar("bf16", _word(i // 2, dst, dst_tile) + (i % 2) * 2, x)
            else:
                t.store_scalar("f32", _word(i, dst, dst_tile), x)

        t.loop(0, n, 1, (), element)

    return copy


def _word(i, dst, dst_tile):
    """The address of word `i` of a row that is cut into tiles."""
    return dst + dst_tile * (i // TILE_WORDS) + (i % TILE_WORDS) * 4


def pair_rows(dtype: str, form: str) -> lang.Word:
    """``pair(low, high, n, padded, dst, dst_part)``: word ``i`` holds element ``i`` of both rows, zeros from `n` on.

    Parts lie `dst_part` bytes apart. Elements that are not finite are written as zeros; the result, a vector, is NaN
    in some lane if there were any.
    """
    size, parts = lang.itemsize(dtype), parts_of(form)

    @lang.tile("low: i64, high: i64, n: i64, padded: i64, dst: i64, dst_part: i64", returns="vec")
    def pair(t, low, high, n, padded, dst, dst_part):
        def step(i, seen):
            mask = t.mask_lt(n - i)
            seen, rows = list(seen), []
            for r, row in enumerate((low, high)):
                finite, seen[r] = only_finite(t, t.load(dtype, row + i * size, mask), seen[r])
                rows.append(bf16_parts(finite, parts))
            for part, (first, second) in enumerate(zip(*rows, strict=True)):
                t.store_words(dst + dst_part * part + i * 4, join_bf16(first, second))
            return seen

        low_seen, high_seen = t.loop(0, padded, t.LANES, [t.vconst(0.0)] * 2, step)
        return low_seen + high_seen

    return pair


def clear_row() -> lang.Word:
    """``clear(words, row)``: zeroes the float32 of a row that are not finite; the result is as of `pair_rows`."""

    @lang.tile("words: i64, row: i64", returns="vec")
    def clear(t, words, row):
        def step(i, seen):
            finite, new = only_finite(t, t.load("f32", row + i * 4), seen[0])
            t.store("f32", row + i * 4, finite)
            return [new]

        (seen,) = t.loop(0, words, t.LANES, [t.vconst(0.0)], step)
        return seen

    return clear


def only_finite(t, x, seen):
    """`x` with zeros for what is not finite, and `seen`, now NaN in lanes where that was the case."""
    nothing = x * 0.0
    return t.select(nothing == 0.0, x, 0.0), seen + nothing


def store_row(dtype: str) -> lang.Word:
    """``put(src, n, dst)``: `n` float32 to contiguous elements of `dtype`."""
    size = lang.itemsize(dtype)

    @lang.tile("src: i64, n: i64, dst: i64")
    def put(t, src, n, dst):
        def whole(i, _):
            t.store(dtype, dst + i * size, t.load("f32", src + i * 4))

        def part(i, _):
            t.store(dtype, dst + i * size, t.load("f32", src + i * 4), t.mask_lt(n - i))

        rest = n // t.LANES * t.LANES
        t.loop(0, rest, t.LANES, (), whole)
        t.loop(rest, n, t.LANES, (), part)

    return put
