"""Device side of GEMM on the CPU: how operands are laid out for the register tiles, and the code that packs them.

Right operands (B) become *panels* of 16 columns. A panel is a sequence of 64-byte lines, one line per step of k; a line
holds the step's entry of each of the 16 columns as a 4-byte word. A *form* says what a word is:

    f32      one element, widened to float32                1 line per element of k
    pairs    two neighbouring 16-bit elements, unchanged    1 line per two elements
    parts1   pairs of bfloat16                              16 lines per 32 elements: one AMX tile
    parts2   float16 as a sum of two bfloat16               2 tiles per 32 elements, high parts first
    parts3   float32 as a sum of three bfloat16             3 tiles per 32 elements

The first two are also how `tileops.gemm.pack` stores weights (f32 for float32, pairs for the half precisions), always
with K padded to 32 and N to 64 by zeros; float32 weights all of whose values are bfloat16 as pairs of these. Left
operands (A) become row blocks: for the vector units MR words per step of k, for AMX tiles of 16 rows of 32 elements
(and 1 to 3 parts).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tileops.jit import lang
from tileops.jit.lang import pairs
from tileops.kernels.gemm.paths import COLUMNS, ELEMENT_BYTES, STEP

LINE = 64
#: Bytes of an AMX tile: 16 rows of `STEP` bfloat16.
TILE = 1024
#: Panels that are packed side by side where columns are neighbours in memory: a line of half precisions.
PANELS_AT_ONCE = 2

PARTS = {"parts1": 1, "parts2": 2, "parts3": 3}


def raw_form(dtype: str) -> str:
    """The form in which weights of `dtype` are packed."""
    return "f32" if dtype == "f32" else "pairs"


def bytes_per_k(form: str) -> int:
    """Bytes of a panel per element of k."""
    return ELEMENT_BYTES[form] * COLUMNS


def store_parts(t: Any, low: Any, high: Any, parts: int, dst: Any) -> None:
    """Stores words of two bfloat16, one line per part in successive tiles; `low` and `high` are the float32
    values of the even and the odd elements.
    """
    split = zip(pairs.bf16_parts(low, parts), pairs.bf16_parts(high, parts), strict=True)
    for part, (even, odd) in enumerate(split):
        t.store_words(dst + part * TILE, pairs.join_bf16(even, odd))


def _row_of_words(t: Any, dtype: str, form: str, addr: Any, left: Any) -> list[Any]:
    """The elements at `addr` as vectors of words, enough for 32 elements; elements from `left` on are 0
    (None: all).
    """
    lanes, size = t.LANES, lang.itemsize(dtype)
    if form != "f32" and dtype != "f32":
        return [
            pairs.load_pairs(addr + first * size, None if left is None else left - first)
            for first in range(0, STEP, 2 * lanes)
        ]
    return [
        t.load(dtype, addr + first * size, None if left is None else t.mask_lt(left, start=first))
        for first in range(0, STEP, lanes)
    ]


def transpose_block(dtype: str, form: str) -> Callable[..., None]:
    """A function that writes one step (32 elements of k) of one panel from 16 rows.

    ``block(t, rows, left, dst)``: `rows` are 16 addresses; `left` is None, or for each row how many of its
    elements there are (none are read from there on).
    """

    def block(t: Any, rows: Sequence[Any], left: Sequence[Any] | None, dst: Any) -> None:
        lanes = t.LANES
        counts = [None] * COLUMNS if left is None else left
        for first in range(0, COLUMNS, lanes):
            group = range(first, first + lanes)
            vectors = [_row_of_words(t, dtype, form, rows[r], counts[r]) for r in group]
            lines = [line for step in zip(*vectors, strict=True) for line in t.transpose(list(step))]
            _write_lines(t, dtype, form, lines, dst + first * 4)

    return block


def _write_lines(t: Any, dtype: str, form: str, lines: Sequence[Any], dst: Any) -> None:
    """Writes the lines of one step (part of a line where vectors are narrower than a panel)."""
    if form in PARTS and dtype == "f32":
        for i in range(len(lines) // 2):
            store_parts(t, lines[2 * i], lines[2 * i + 1], PARTS[form], dst + i * LINE)
    elif form == "parts2":
        for i, words in enumerate(lines):
            low, high = pairs.split_pairs(dtype, words)
            store_parts(t, low, high, 2, dst + i * LINE)
    else:
        for i, words in enumerate(lines):
            t.store_words(dst + i * LINE, words)


def panel_from_rows(dtype: str, form: str) -> Any:
    """A tile that packs (part of) one panel: 16 rows of k, `ld` bytes apart.

    ``word(src, ld, rows, count, dst)``: rows from `rows` on and elements from `count` on become zeros, and
    nothing of them is read; K is padded to 32.
    """
    block = transpose_block(dtype, form)
    size, per_step = lang.itemsize(dtype), bytes_per_k(form) * STEP

    @lang.tile("src: i64, ld: i64, rows: i64, count: i64, dst: i64")
    def pack_panel(t: Any, src: Any, ld: Any, rows: Any, count: Any, dst: Any) -> None:
        starts = [src + ld * r for r in range(COLUMNS)]
        steps = (count + (STEP - 1)) // STEP
        whole = t.select_value(rows >= COLUMNS, count // STEP, 0)

        def full(i: Any, _: Any) -> None:
            block(t, [start + i * (STEP * size) for start in starts], None, dst + i * per_step)

        def ragged(i: Any, _: Any) -> None:
            left = count - i * STEP
            counts = [t.select_value(rows > r, left, 0) for r in range(COLUMNS)]
            block(t, [start + i * (STEP * size) for start in starts], counts, dst + i * per_step)

        t.loop(0, whole, body=full)
        t.loop(whole, steps, body=ragged)

    return pack_panel


def panel_from_panel(dtype: str, form: str) -> Any:
    """A tile that turns part of a packed weight's panel into another form: ``word(src, count, dst)``."""
    raw = raw_form(dtype)
    per_step, raw_step = bytes_per_k(form) * STEP, bytes_per_k(raw) * STEP

    @lang.tile("src: i64, count: i64, dst: i64")
    def convert_panel(t: Any, src: Any, count: Any, dst: Any) -> None:
        def step(i: Any, _: Any) -> None:
            for first in range(0, COLUMNS, t.LANES):
                lines = [t.load_words(src + i * raw_step + offset + first * 4) for offset in range(0, raw_step, LINE)]
                to = dst + i * per_step + first * 4
                if raw == "pairs" and form == "f32":
                    lines = [value for words in lines for value in pairs.split_pairs(dtype, words)]
                elif raw == "f32":
                    lines = [t.bitcast(words, "f32") for words in lines]
                _write_lines(t, dtype, form, lines, to)

        t.loop(0, (count + (STEP - 1)) // STEP, body=step)

    return convert_panel


def pack_panels(dtype: str, form: str) -> Callable[..., None]:
    """Body: panel `u` of B from rows ``16 u ...`` of an ``[N, K]`` matrix whose rows are dense."""
    panel = panel_from_rows(dtype, form)
    width = COLUMNS

    def body(begin, end, tid, src, ld, N, K, dst, stride):
        for u in range(begin, end):
            panel(src + u * width * ld, ld, N - u * width, K, dst + u * stride)

    return body


def panels_from_columns(dtype: str, form: str) -> Any:
    """A tile that packs one step of neighbouring panels from 32 rows of a ``[K, N]`` matrix, `ld` bytes apart.

    ``word(src, ld, columns, rows, panels, left, dst, stride)``: up to `PANELS_AT_ONCE` of `panels`, `stride` bytes
    apart; columns from `columns` on and rows from `rows` on become zeros, and nothing of them is read. A line of a
    panel is what one or two rows hold. Where `left` is not 0, 16 columns are a row block of A, whose tiles are
    those of a panel, transposed.
    """
    size, line_bytes, width, step, at_once = lang.itemsize(dtype), LINE, COLUMNS, STEP, PANELS_AT_ONCE
    pair_bytes = 2 * LINE if form == "f32" else LINE

    def write(t: Any, rows: Sequence[Any], masks: Sequence[Any], dst: Any) -> None:
        low, high = (t.load(dtype, row, mask) for row, mask in zip(rows, masks, strict=True))
        if form == "f32":
            t.store("f32", dst, low)
            t.store("f32", dst + line_bytes, high)
        else:
            store_parts(t, low, high, PARTS.get(form, 1), dst)

    def turn(t: Any, dst: Any) -> None:
        for part in range(PARTS[form]):
            lines = [dst + part * TILE + r * LINE for r in range(COLUMNS)]
            for line, words in zip(lines, t.transpose([t.load_words(line) for line in lines]), strict=True):
                t.store_words(line, words)

    @lang.tile("src: i64, ld: i64, columns: i64, rows: i64, panels: i64, left: i64, dst: i64, stride: i64")
    def pack(t: Any, src: Any, ld: Any, columns: Any, rows: Any, panels: Any, left: Any, dst: Any, stride: Any) -> None:
        firsts = range(0, width, t.LANES)
        count = t.min(panels, at_once)

        def full(i: Any, _: Any) -> None:
            pair = (src + 2 * i * ld, src + (2 * i + 1) * ld)
            for row in pair:
                # Rows are short streams for the hardware, and often so far apart that they share a set of the
                # nearest cache.
                for line in range(0, at_once * width * size, line_bytes):
                    t.prefetch(row + at_once * width * size + line, locality=2)
            for p in range(at_once):
                for first in firsts:
                    at = [row + (p * width + first) * size for row in pair]
                    write(t, at, (None, None), dst + stride * p + i * pair_bytes + first * 4)

        def ragged(i: Any, _: Any) -> None:
            p, i = i // (step // 2), i % (step // 2)
            for first in firsts:
                at = [src + (2 * i + j) * ld + (p * width + first) * size for j in range(2)]
                counts = [t.select_value(rows > 2 * i + j, columns - p * width, 0) for j in range(2)]
                masks = [t.mask_lt(left_of_row, start=first) for left_of_row in counts]
                write(t, at, masks, dst + stride * p + i * pair_bytes + first * 4)

        whole = (columns >= at_once * width) & (rows >= step)
        t.loop(0, t.select_value(whole, t.const(step // 2), 0), body=full)
        t.loop(0, t.select_value(whole, 0, count * (step // 2)), body=ragged)
        if form in PARTS:
            t.loop(0, t.select_value(left != 0, count, 0), body=lambda p, _: turn(t, dst + p * stride))

    return pack


def pack_columns(dtype: str, form: str) -> Callable[..., None]:
    """Body: panels of B from a ``[K, N]`` matrix whose rows are dense; tiles of A from ``[K, M]`` where `left` is 1.

    A unit is one step of `PANELS_AT_ONCE` of `panels`; units are numbered with the panels innermost, so that memory is
    read along its rows.
    """
    pack, per_k, size = panels_from_columns(dtype, form), bytes_per_k(form), lang.itemsize(dtype)
    at_once, width, step = PANELS_AT_ONCE, COLUMNS, STEP

    def body(begin, end, tid, src, ld, N, K, panels, left, dst, stride):
        groups = (panels + at_once - 1) // at_once
        for u in range(begin, end):
            k = u // groups * step
            p = u % groups * at_once
            at = dst + p * stride + k * per_k
            pack(src + k * ld + p * width * size, ld, N - p * width, K - k, panels - p, left, at, stride)

    return body


def beyond_bf16() -> Callable[..., None]:
    """Body: sets the word at `flag` where row `u` of a float32 matrix has an element that is not a finite bfloat16."""

    @lang.tile("src: i64, K: i64, flag: i64")
    def row(t: Any, src: Any, K: Any, flag: Any) -> None:
        def step(k: Any, found: list[Any], mask: Any = None) -> list[Any]:
            words = t.load_words(src + k * 4, mask)
            # One more in the exponent of an infinity or NaN runs over into the sign.
            special = ((words & 0x7F800000) + 0x00800000) & -0x80000000
            return [found[0] | (words & 0xFFFF) | special]

        whole = K // t.LANES * t.LANES
        found = t.loop(0, whole, t.LANES, [t.iconst(0)], step)
        found = t.loop(whole, K, t.LANES, found, lambda k, found: step(k, found, t.mask_lt(K - k)))
        t.when(lang.any_true(found[0] != 0), lambda: t.store_i64(flag, t.const(1)))

    def body(begin, end, tid, src, ld, K, flag):
        for u in range(begin, end):
            # One such element decides; most matrices have one at once.
            if lang.load_i64(flag) == 0:
                row(src + u * ld, K, flag)

    return body


def pack_row_tiles(dtype: str, parts: int) -> Callable[..., None]:
    """Body: row block `u` of A (16 rows) as AMX tiles, one per part and 32 elements."""
    size, per_step = lang.itemsize(dtype), parts * TILE
    form = f"parts{parts}"

    def store(t: Any, words: Sequence[Any], dst: Any) -> None:
        if parts == 1:
            t.store_words(dst, words[0])
        elif parts == 2:
            low, high = pairs.split_pairs(dtype, words[0])
            store_parts(t, low, high, parts, dst)
        else:
            low, high = (t.shuffle(words[0], words[1], range(first, STEP, 2)) for first in (0, 1))
            store_parts(t, low, high, parts, dst)

    @lang.tile("src: i64, ld: i64, rows: i64, count: i64, dst: i64")
    def block(t: Any, src: Any, ld: Any, rows: Any, count: Any, dst: Any) -> None:
        whole = count // STEP

        def row(r: Any, _: Any) -> None:
            start, to = src + r * ld, dst + r * LINE

            def step(i: Any, left: Any) -> None:
                words = _row_of_words(t, dtype, form, start + i * (STEP * size), left)
                store(t, words, to + i * per_step)

            t.loop(0, t.select_value(r < rows, whole, 0), body=lambda i, _: step(i, None))
            t.loop(
                t.select_value(r < rows, whole, 0),
                (count + (STEP - 1)) // STEP,
                body=lambda i, _: step(i, t.select_value(r < rows, count - i * STEP, 0)),
            )

        t.loop(0, 16, body=row)

    def body(begin, end, tid, src, ld, M, K, dst, stride):
        for u in range(begin, end):
            block(src + u * 16 * ld, ld, M - u * 16, K, dst + u * stride)

    return body


def pack_row_blocks(dtype: str, form: str, MR: int) -> Callable[..., None]:
    """Body: row block `u` of A (MR rows) for the vector units: MR words for each step of k."""
    size = lang.itemsize(dtype)
    words_per_step = STEP if form == "f32" else STEP // 2

    @lang.tile("src: i64, ld: i64, rows: i64, count: i64, dst: i64")
    def block(t: Any, src: Any, ld: Any, rows: Any, count: Any, dst: Any) -> None:
        lanes = t.LANES
        keep = None if lanes == MR else t.mask_lt(MR)
        starts = [src + ld * r for r in range(MR)]
        nothing = t.vconst(0.0) if form == "f32" else t.iconst(0)

        def step(i: Any, counts: Sequence[Any]) -> None:
            vectors = [
                _row_of_words(t, dtype, form, start + i * (STEP * size), left)
                for start, left in zip(starts, counts, strict=True)
            ]
            for first in range(words_per_step // lanes):
                group = [vector[first] for vector in vectors] + [nothing] * (lanes - MR)
                for j, words in enumerate(t.transpose(group)):
                    line = i * words_per_step + first * lanes + j
                    t.store_words(dst + line * (MR * 4), words, keep)

        def ragged(i: Any, _: Any) -> None:
            step(i, [t.select_value(rows > r, count - i * STEP, 0) for r in range(MR)])

        whole = t.select_value(rows >= MR, count // STEP, 0)
        t.loop(0, whole, body=lambda i, _: step(i, [None] * MR))
        t.loop(whole, (count + (STEP - 1)) // STEP, body=ragged)

    def body(begin, end, tid, src, ld, M, K, dst, stride):
        for u in range(begin, end):
            block(src + u * MR * ld, ld, M - u * MR, K, dst + u * stride)

    return body


def dense_rows(dtype: str, to: str) -> Callable[..., None]:
    """Body: rows of a dense matrix from a matrix of any strides (bytes, zero and negative included).

    ``body(src, row_step, k_step, rows, K, dst, ld)``; a unit is a block of LANES rows. Dense rows are copied
    by vectors; where rows are neighbours in memory (a transposed matrix) blocks are transposed in registers;
    else elements are moved one by one.

    Args:
        dtype: storage format.
        to: storage format of the copy: the same, or ``"f32"``.
    """
    size, to_size = lang.itemsize(dtype), lang.itemsize(to)
    load, store = lang.load_scalar(dtype), lang.store_scalar(to)
    lanes = lang.lanes()

    @lang.tile("src: i64, k_step: i64, rows: i64, K: i64, dst: i64, ld: i64")
    def transpose(t: Any, src: Any, k_step: Any, rows: Any, K: Any, dst: Any, ld: Any) -> None:
        def block(k: Any, _: Any) -> None:
            left = K - k
            # Masks keep what lies outside the matrix from being touched.
            lines = [
                t.load(dtype, src + (k + j) * k_step, t.mask_lt(t.select_value(left > j, rows, 0)))
                for j in range(lanes)
            ]
            for r, line in enumerate(t.transpose(lines)):
                t.store(to, dst + ld * r + k * to_size, line, t.mask_lt(t.select_value(rows > r, left, 0)))

        t.loop(0, K, lanes, body=block)

    @lang.tile("src: i64, K: i64, dst: i64")
    def copy(t: Any, src: Any, K: Any, dst: Any) -> None:
        def piece(k: Any, mask: Any) -> None:
            t.store(to, dst + k * to_size, t.load(dtype, src + k * size, mask), mask)

        whole = K // lanes * lanes
        t.loop(0, whole, lanes, body=lambda k, _: piece(k, None))
        t.loop(whole, K, lanes, body=lambda k, _: piece(k, t.mask_lt(K - k)))

    def body(begin, end, tid, src, row_step, k_step, rows, K, dst, ld):
        for u in range(begin, end):
            first = u * lanes
            last = first + lanes if first + lanes < rows else rows
            if k_step == size:
                for r in range(first, last):
                    copy(src + r * row_step, K, dst + r * ld)
            elif row_step == size:
                transpose(src + first * row_step, k_step, rows - first, K, dst + first * ld, ld)
            else:
                for r in range(first, last):
                    for k in range(K):
                        store(dst + r * ld + k * to_size, load(src + r * row_step + k * k_step))

    return body
