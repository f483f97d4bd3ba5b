"""Infinite and NaN values in blocked attention.

A hidden key has weight 0, but 0 times infinity or NaN is NaN, and the product of weights and values has no masks.
So non-finite values are packed as zeros, the blocks of keys that had any are marked, and their products are added
one by one for the queries that see them. Calls without such values pay nothing for it but the check while packing.
"""

from __future__ import annotations

import math

from tileops.jit import lang
from tileops.kernels.attention._panels import BLOCK_ROWS

#: Bytes of the mark of a block of keys: 0 where all values of the block are finite.
MARK_BYTES = 4


def add_products(dtype: str) -> lang.Word:
    """Adds ``weight * value`` of the non-finite values of marked blocks, for the queries that see their keys.

    ``add(marks, key, n, v, v_s, v_d, head_dim, panels, scores, score_panel, outputs, out_panel, peaks, lows,
    highs, factor)``: for `n` keys from `key` on. Values lie at `v`, `v_s` bytes from key to key and `v_d` from
    element to element; `marks` has a mark for each block of keys from the first on. Weights are ``2 ** (score *
    factor - peak)``; peaks and limits have a vector per panel.
    """

    @lang.tile(
        "marks: i64, key: i64, n: i64, v: i64, v_s: i64, v_d: i64, head_dim: i64, panels: i64, scores: i64,"
        "score_panel: i64, outputs: i64, out_panel: i64, peaks: i64, lows: i64, highs: i64, factor: f32"
    )
    def add(
        t, marks, key, n, v, v_s, v_d, head_dim, panels, scores, score_panel, outputs, out_panel, peaks, lows, highs,
        factor,
    ):  # fmt: skip
        vector = 4 * t.LANES
        factors = t.splat(factor)

        def block(first, _):
            mark = t.load_i32(marks + (key + first) // BLOCK_ROWS * MARK_BYTES)
            last = t.min(first + BLOCK_ROWS, n)
            t.when(mark != 0, lambda: t.loop(first, last, 1, (), row))

        def row(r, _):
            def element(d, _):
                value = t.load_scalar(dtype, v + v_s * (key + r) + v_d * d)
                t.when(value - value != 0.0, lambda: t.loop(0, panels, 1, (), lambda j, _: panel(j, d, value)))

            def panel(j, d, value):
                peak = t.load("f32", peaks + j * vector)
                shift = t.select(peak == -math.inf, 0.0, -peak)
                score = t.load("f32", scores + score_panel * j + r * vector)
                index, aside = t.splat(key + r), j * vector
                visible = (index >= t.load_words(lows + aside)) & (index <= t.load_words(highs + aside))
                product = lang.exp2_fast(t.fma(score, factors, shift)) * t.splat(value)
                place = outputs + out_panel * j + d * vector
                t.store("f32", place, t.load("f32", place) + t.select(visible, product, 0.0))

            t.loop(0, head_dim, 1, (), element)

        t.loop(0, n, BLOCK_ROWS, (), block)

    return add
