"""Remainder and rounded quotient of float32, exact for quotients of any size, and rounding to decimals."""

from __future__ import annotations

import math

from tileops.jit.lang.arith import abs_, as_int, copysign, floor, fma_exact, rint, select, to_int
from tileops.jit.lang.maths.doubles import (
    double_bits,
    double_of_bits,
    select_double,
    to_double,
    to_single,
)
from tileops.jit.lang.rare import repeat_while, replace_where
from tileops.jit.lang.values import Value, is_number
from tileops.jit.lang.words import composite, word

_ROUND = 6755399441055744.0  # 1.5 * 2**52: adding and subtracting it rounds float64 to an integer
_EXPONENT = 0x7FF0000000000000
_MAX = 3.4028234663852886e38


def _fmod_far(x: Value, y: Value) -> Value:
    """``fmod(x, y)``, by steps of 28 bits of the quotient; 1 where that is not defined."""
    a, b = abs_(x), abs_(y)
    defined = (a <= _MAX) & (b <= _MAX) & (b > 0.0)
    rest, divisor = (to_double(select(defined, value, 1.0)) for value in (a, b))

    def step(rest: Value) -> Value:
        # The divisor is scaled so that the rounded quotient stays below 2**29: then its product is exact.
        scale = double_of_bits(double_bits(rest / divisor) & _EXPONENT) * 2.0**-28
        scaled = divisor * select_double(scale > 1.0, scale, 1.0)
        quotient = (rest / scaled + _ROUND) - _ROUND
        rest = rest - quotient * scaled
        return select_double(rest < 0.0, rest + scaled, rest)

    return copysign(to_single(repeat_while(lambda rest: rest >= divisor, rest, step)), x)


def _opposite(rest, y):
    """Where a remainder that is not 0 has the sign opposite to the divisor's."""
    return (rest != 0.0) & ((as_int(rest) ^ as_int(y)) < 0)


def _floored(x, y):
    """``(q, r)`` with ``q = floor(x / y)``, one too large where r has the wrong sign, and ``r = x - q y``."""
    q = floor(x / y)
    # Not of an infinite y; and the difference is exact or, where r is of the size of y, rounded once.
    return q, select(q == 0.0, x, fma_exact(-q, y, x))


def _remainder_far(x: Value, y: Value) -> tuple[Value]:
    rest = _fmod_far(x, y)
    rest = select(_opposite(rest, y), rest + y, rest)
    defined = (abs_(x) <= _MAX) & (abs_(y) <= _MAX) & (y != 0.0)
    return (select(defined, rest, math.nan),)


@composite
def remainder(x, y):
    """``x - floor(x / y) * y`` with the sign of `y` (torch.remainder), rounded once; NaN for ``y = 0``."""
    q, rest = _floored(x, y)
    rest = select(_opposite(rest, y), rest + y, rest)
    rest = select(rest == 0.0, copysign(0.0, x), rest)
    (rest,) = replace_where(abs_(q) >= 2.0**23, (rest,), _remainder_far, x, y)
    return rest


def _floor_divide_far(x: Value, y: Value) -> tuple[Value]:
    rest = _fmod_far(x, y)
    defined = (abs_(x) <= _MAX) & (abs_(y) <= _MAX)
    quotient = (x - select(defined, rest, math.nan)) / y
    quotient = select(_opposite(rest, y), quotient - 1.0, quotient)
    rounded = floor(quotient)
    rounded = select(quotient - rounded > 0.5, rounded + 1.0, rounded)
    rounded = select(quotient == 0.0, copysign(0.0, x / y), rounded)
    return (select(y == 0.0, x / y, rounded),)


@composite
def floor_divide(x, y):
    """``floor(x / y)`` of the exact quotient where that is below 2**21, else as torch.floor_divide rounds it."""
    q, rest = _floored(x, y)
    q = select(_opposite(rest, y), q - 1.0, q)
    (q,) = replace_where(abs_(q) >= 2.0**21, (q,), _floor_divide_far, x, y)
    return q


@word
def _power_of_ten(n):
    """``10**n`` for integral n from 0 on, rounded once; infinite from 39 on."""
    n = to_int(n)
    value = to_double(n * 0) + 1.0
    for bit in range(6):
        value = select_double(((n >> bit) & 1) == 1, value * 10.0 ** (1 << bit), value)
    return select(n < 39, to_single(value), math.inf)


@composite
def round_decimals(x, decimals):
    """`x` rounded to `decimals` decimal places (negative: to tens, hundreds, ...), by torch's formula."""
    if is_number(decimals):
        ten = 10.0 ** abs(int(decimals)) if abs(decimals) < 39 else math.inf
        return rint(x / ten) * ten if decimals < 0 else rint(x * ten) / ten
    ten = _power_of_ten(abs_(decimals))
    negative = decimals < 0.0
    scaled = rint(select(negative, x / ten, x * ten))
    return select(negative, scaled * ten, scaled / ten)
