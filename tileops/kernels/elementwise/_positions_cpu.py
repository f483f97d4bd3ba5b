"""Device bodies of the operators that compute from positions alone, on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tileops.jit import lang
from tileops.jit.lang.maths.doubles import double_bits, to_single

#: Adding and subtracting it rounds a float64 below 2**51 to a whole number, which then stands in the low bits.
_ROUND = 1.5 * 2.0**52
#: Vectors of biases computed side by side.
_UNROLL = 4


def alibi(dtype: str) -> Callable[..., None]:
    """``body(begin, end, tid, slopes, out, size)``: one unit is a row of one head."""
    itemsize = lang.itemsize(dtype)

    @lang.tile("slope:f32, row:i64, out:i64, size:i64")
    def line(t: Any, slope: Any, row: Any, out: Any, size: Any) -> None:
        down, lanes = t.spread("f32", slope, t.LANES) * -1.0, t.LANES
        # Distances from the first positions of the row. They are exact, and so are those of later ones: only of fewer
        # than 2**24 positions does the square fit in memory.
        first = lang.to_float(lang.iota() - t.spread("i32", row, lanes))
        starts = [first + float(u * lanes) for u in range(_UNROLL)]

        def biases(j: Any, count: int) -> list[Any]:
            moved = lang.to_float(t.spread("i32", j, lanes))
            return [down * lang.abs_(start + moved) for start in starts[:count]]

        def vectors(j: Any, count: int) -> None:
            t.store_narrowed(dtype, out + j * itemsize, t.narrow_group(dtype, biases(j, count)))

        step = lanes * _UNROLL
        unrolled, whole = size // step * step, size // lanes * lanes
        t.loop(0, unrolled, step, body=lambda j, _: vectors(j, _UNROLL))
        t.loop(unrolled, whole, lanes, body=lambda j, _: vectors(j, 1))
        rest = size - whole
        t.when(rest > 0, lambda: t.store(dtype, out + whole * itemsize, *biases(whole, 1), t.mask_lt(rest)))

    load_slope = lang.load_scalar("f32")

    def body(begin, end, tid, slopes, out, size):
        for unit in range(begin, end):
            head = unit // size
            line(load_slope(slopes + 4 * head), unit - head * size, out + unit * size * itemsize, size)

    return body


def sinusoidal(dtype: str) -> Callable[..., None]:
    """``body(begin, end, tid, rates, out, pairs)``: one unit is a position; rates in quarter turns, float64."""
    itemsize = lang.itemsize(dtype)

    @lang.tile("position:i64, rates:i64, out:i64, pairs:i64")
    def line(t: Any, position: Any, rates: Any, out: Any, pairs: Any) -> None:
        lanes = t.LANES
        place = t.spread("f64", position, lanes)

        def waves(i: Any, mask: Any = None) -> tuple[Any, Any]:
            """Sines and cosines of a vector of pairs, alternating, in two vectors."""
            quarters = place * t.bitcast(t.load_integers("i64", rates + 8 * i, mask, lanes), "f64")
            rounded = quarters + _ROUND
            angle = to_single((quarters - (rounded - _ROUND)) * (math.pi / 2))
            quadrant = lang.low_word(double_bits(rounded))
            sine, cosine = lang.sin(angle), lang.cos(angle)
            swapped = (quadrant & 1) == 1
            first, second = lang.select(swapped, cosine, sine), lang.select(swapped, sine, cosine)
            first = lang.select((quadrant & 2) == 2, -first, first)
            second = lang.select(((quadrant + 1) & 2) == 2, -second, second)
            order = [lane // 2 + lanes * (lane % 2) for lane in range(2 * lanes)]
            return t.shuffle(first, second, order[:lanes]), t.shuffle(first, second, order[lanes:])

        def whole(i: Any) -> None:
            places = [out + (2 * i + k * lanes) * itemsize for k in range(2)]
            t.store_group(dtype, places, waves(i))

        def rest(i: Any) -> None:
            left = 2 * (pairs - i)
            for k, values in enumerate(waves(i, t.mask_lt(pairs - i))):
                t.store(dtype, out + (2 * i + k * lanes) * itemsize, values, t.mask_lt(left, start=k * lanes))

        last = pairs // lanes * lanes
        t.loop(0, last, lanes, body=lambda i, _: whole(i))
        t.when(last < pairs, lambda: rest(last))

    def body(begin, end, tid, rates, out, pairs):
        for position in range(begin, end):
            line(position, rates, out + position * 2 * pairs * itemsize, pairs)

    return body
