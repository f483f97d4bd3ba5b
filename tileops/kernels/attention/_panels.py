"""Building blocks of blocked attention: operands in tiles and panels, their products, and copies between layouts.

The unit of storage is a 32-bit *word*: one float32, or a pair of bfloat16 neighbours along the contracted axis.

- A *tile* holds 16 rows of 16 words, 1 KiB. Left operands (keys, transposed values) are arrays of tiles, so that one
  layout serves AMX, whose registers are such tiles, and register kernels, which read single words of a row.
- A *panel* holds one vector per row: `LANES` columns. Right operands (queries, weights) and results (scores, outputs)
  are panels; a column is one query. With 16 lanes, 16 rows of a panel are a tile.

Everything per query (maximum, sum, limits) is then one lane, and nothing is ever reduced across lanes.
"""

from __future__ import annotations

from tileops.jit import lang

TILE_ROWS = 16
TILE_WORDS = 16
TILE_BYTES = 1024
ROW_BYTES = 64
BLOCK_ROWS = 32


def product(form: str, *, accumulate: bool) -> lang.Word:
    """``block(tiles, a, a_row, a_next, b, b_panel, c, c_panel)``: ``c (+)= a @ b`` for 32 rows and 2 panels.

    Args:
        form: "amx" and "pairs" multiply words that are pairs of bfloat16, "floats" words that are float32.
        accumulate: add to `c` instead of replacing it.

    The block's parameters are addresses and distances in bytes: `tiles` along the contracted axis, `a_row` from one row
    of tiles to the next, `a_next` from a tile to the next along the contracted axis, `b_panel` and `c_panel` between panels.
    """
    return _amx_product(accumulate) if form == "amx" else _register_product(form, accumulate)


_SIGNATURE = "tiles: i64, a: i64, a_row: i64, a_next: i64, b: i64, b_panel: i64, c: i64, c_panel: i64"


def _amx_product(accumulate: bool) -> lang.Word:
    quarters = [(i, j, 2 * i + j) for i in range(2) for j in range(2)]  # tile row, panel, register

    @lang.tile(_SIGNATURE)
    def block(t, tiles, a, a_row, a_next, b, b_panel, c, c_panel):
        for i, j, register in quarters:
            if accumulate:
                t.amx_load(register, c + i * TILE_BYTES + c_panel * j, t.const(ROW_BYTES))
            else:
                t.amx_zero(register)

        def step(k, _):
            left, right = a + a_next * k, b + k * TILE_BYTES
            t.amx_load(4, left, t.const(ROW_BYTES))
            t.amx_load(6, right, t.const(ROW_BYTES))
            t.amx_dot_bf16(0, 4, 6)
            t.amx_load(7, right + b_panel, t.const(ROW_BYTES))
            t.amx_dot_bf16(1, 4, 7)
            t.amx_load(5, left + a_row, t.const(ROW_BYTES))
            t.amx_dot_bf16(2, 5, 6)
            t.amx_dot_bf16(3, 5, 7)

        t.loop(0, tiles, 1, (), step)
        for i, j, register in quarters:
            t.amx_store(register, c + i * TILE_BYTES + c_panel * j, t.const(ROW_BYTES))

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
    def block(t, tiles, a, a_row, a_next, b, b_panel, c, c_panel):
        def some_rows(start, _):
            left = a + a_row * (start // TILE_ROWS) + (start % TILE_ROWS) * ROW_BYTES
            out = c + start * row_bytes
            places = [out + r * row_bytes + c_panel * p for r in range(rows) for p in range(2)]

            def over_tiles(k, acc):
                left_tile, right_tile = left + a_next * k, b + k * (TILE_WORDS * row_bytes)
                acc = list(acc)
                # Unrolled: a loop this short is left by a mispredicted branch, which costs a third of the speed.
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


# -- copies ------------------------------------------------------------------------------------------------------------


def transpose() -> lang.Word:
    """``move(src, src_row, dst, dst_row)``: LANES rows of LANES words, transposed; distances in bytes."""

    @lang.tile("src: i64, src_row: i64, dst: i64, dst_row: i64")
    def move(t, src, src_row, dst, dst_row):
        rows = [t.load_words(src + src_row * i) for i in range(t.LANES)]
        for i, row in enumerate(t.transpose(rows)):
            t.store_words(dst + dst_row * i, row)

    return move


def fill_row() -> lang.Word:
    """``fill(words, dst, dst_tile)``: zeroes a row of words, of which each 16 lie `dst_tile` bytes after the last 16."""

    @lang.tile("words: i64, dst: i64, dst_tile: i64")
    def fill(t, words, dst, dst_tile):
        t.loop(0, words, t.LANES, (), lambda i, _: t.store_words(_word(i, dst, dst_tile), t.iconst(0)))

    return fill


def copy_row(dtype: str, form: str, dense: bool) -> lang.Word:
    """``copy(src, step, n, padded, dst, dst_tile)``: `n` elements as words, zeros up to `padded` elements.

    Args:
        dtype: storage format of the source.
        form: what a word is (see `product`).
        dense: the source's elements are neighbours, and their number is even where words are pairs; otherwise they lie
            `step` bytes apart.
    """
    pairs = form != "floats"
    size = lang.itemsize(dtype)

    @lang.tile("src: i64, step: i64, n: i64, padded: i64, dst: i64, dst_tile: i64")
    def copy_dense(t, src, step, n, padded, dst, dst_tile):
        def floats(i, _):
            t.store("f32", _word(i, dst, dst_tile), t.load(dtype, src + i * size, t.mask_lt(n - i)))

        def words(i, _):
            t.store_words(_word(i, dst, dst_tile), t.load_words(src + i * 4, t.mask_lt(n // 2 - i)))

        t.loop(0, padded // 2 if pairs else padded, t.LANES, (), words if pairs else floats)

    @lang.tile("src: i64, step: i64, n: i64, padded: i64, dst: i64, dst_tile: i64")
    def copy_apart(t, src, step, n, padded, dst, dst_tile):
        words = padded // 2 if pairs else padded
        t.loop(0, words, t.LANES, (), lambda i, _: t.store_words(_word(i, dst, dst_tile), t.iconst(0)))

        def element(i, _):
            x = t.load_scalar(dtype, src + step * i)
            if pairs:
                t.store_scalar("bf16", _word(i // 2, dst, dst_tile) + (i % 2) * 2, x)
            else:
                t.store_scalar("f32", _word(i, dst, dst_tile), x)

        t.loop(0, n, 1, (), element)

    return copy_dense if dense else copy_apart


def _word(i, dst, dst_tile):
    """The address of word `i` of a row that is cut into tiles."""
    return dst + dst_tile * (i // TILE_WORDS) + (i % TILE_WORDS) * 4


def pair_rows(dtype: str) -> lang.Word:
    """``pair(low, high, n, padded, dst)``: word ``i`` holds element ``i`` of both rows as bfloat16, zeros from `n` on."""
    size = lang.itemsize(dtype)

    @lang.tile("low: i64, high: i64, n: i64, padded: i64, dst: i64")
    def pair(t, low, high, n, padded, dst):
        def step(i, _):
            mask = t.mask_lt(n - i)
            first = lang.as_int(t.load(dtype, low + i * size, mask))
            second = lang.as_int(t.load(dtype, high + i * size, mask))
            t.store_words(dst + i * 4, lang.shift_right_logical(first, 16) | second)

        t.loop(0, padded, t.LANES, (), step)

    return pair


def store_row(dtype: str) -> lang.Word:
    """``put(src, n, dst)``: `n` float32 to contiguous elements of `dtype`."""
    size = lang.itemsize(dtype)

    @lang.tile("src: i64, n: i64, dst: i64")
    def put(t, src, n, dst):
        def step(i, _):
            t.store(dtype, dst + i * size, t.load("f32", src + i * 4), t.mask_lt(n - i))

        t.loop(0, n, t.LANES, (), step)

    return put
