"""Sine and cosine over the whole range of float32.

An angle is reduced to within an eighth of a turn of a multiple of a quarter turn: up to 1e5 by subtracting three
parts of pi / 2 (Cody and Waite, "Software Manual for the Elementary Functions", 1980), beyond with as many bits of
1 / (2 pi) as the exponent asks for (Payne and Hanek, "Radian Reduction for Trigonometric Functions", 1983). The second
way runs only where some lane needs it.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from tileops.jit.lang import context
from tileops.jit.lang.arith import abs_, as_int, fma, fma_exact, select, shift_right_logical
from tileops.jit.lang.emitter import constant
from tileops.jit.lang.maths import ROUND, polynomial
from tileops.jit.lang.rare import replace_where
from tileops.jit.lang.values import Value
from tileops.jit.lang.words import composite

#: Up to here three parts of pi / 2 are enough; at least 2**16, where `_reduce_far` begins to hold.
_NEAR = 1e5
#: 1 / (2 pi) in words of 32 bits, the first of them before the binary point.
_TURN = (0, 0x28BE60DB, 0x9391054A, 0x7F09D5F4, 0x7D4D3770, 0x36D8A566, 0x4F10E410, 0x7F9458EA)


def _reduce(x: Any) -> tuple[Any, Any]:
    """``(r, quadrant)`` with ``x = quadrant * pi / 2 + r`` modulo whole turns, ``|r| <= pi / 4``."""
    t = fma(x, 0.636619772, ROUND)
    n = t - ROUND
    r = fma_exact(n, -1.57079601, x)
    r = fma_exact(n, -5.39030253e-15, fma_exact(n, -3.13916473e-7, r))
    size = abs_(x)
    far = (size > _NEAR) & (size < math.inf)
    r, quadrant = replace_where(far, (r, as_int(t)), _reduce_far, x)
    return r, quadrant


def _reduce_far(x: Value) -> tuple[Value, Value]:
    """`_reduce` for finite ``|x| >= 2**16``, in 64-bit fixed point."""
    build = context.emitter().builder
    longs = x.kind.of("i64")

    def long(value: Value) -> Value:
        return Value(build.zext(value.ir, longs.ir), longs)

    bits = as_int(abs_(x))
    mantissa = long((bits & 0x7FFFFF) | 0x800000)
    # |x| = mantissa * 2**(exponent - 23): of 1 / (2 pi) shifted left by that, only what stands after the point counts.
    start = (bits >> 23) - 127 - 23 + 32
    index, shift = start >> 5, long(start & 31)
    words = []
    for k in range(4):
        chosen = Value(constant(bits.kind, _TURN[k]), bits.kind)
        for i in range(1, len(_TURN) - 3):
            chosen = select(index == i, Value(constant(bits.kind, _TURN[k + i]), bits.kind), chosen)
        words.append(long(chosen))
    window = [shift_right_logical(((high << 32) | low) << shift, 32) for high, low in itertools.pairwise(words)]
    high, middle, low = (mantissa * word for word in window)
    turns = (high << 32) + middle + shift_right_logical(low, 32)  # the fraction of a turn, in units of 2**-64
    turns = select(x < 0.0, -turns, turns)
    quarter = (turns + (1 << 61)) >> 62
    rest = turns - (quarter << 62)
    doubles = x.kind.of("f64")
    angle = build.fmul(build.sitofp(rest.ir, doubles.ir), constant(doubles, 2 * math.pi / 2.0**64))
    return (
        Value(build.fptrunc(angle, x.kind.ir), x.kind),
        Value(build.trunc(quarter.ir, bits.kind.ir), bits.kind),
    )


def _wave(x: Any, shift: int) -> Any:
    """Sine of ``x + shift * pi / 2``."""
    r, quadrant = _reduce(x)
    quadrant = quadrant + shift
    s = r * r
    odd = polynomial(s, 2.86567956e-6, -1.98559923e-4, 8.33338592e-3, -1.66666672e-1)
    sine = fma(odd * s, r, r)
    cosine = polynomial(s, 2.44677067e-5, -1.38877297e-3, 4.16666567e-2, -0.5, 1.0)
    y = select((quadrant & 1) == 0, sine, cosine)
    return select((quadrant & 2) == 0, y, -y)


@composite
def sin(x):
    """Sine of any float32; NaN for infinities."""
    return select(x == 0.0, x, _wave(x, 0))


@composite
def cos(x):
    """Cosine of any float32; NaN for infinities."""
    return _wave(x, 1)


__all__ = ["cos", "sin"]
