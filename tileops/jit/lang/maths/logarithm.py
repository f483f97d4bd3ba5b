"""Logarithms."""

from __future__ import annotations

import math

from tileops.jit.lang import context
from tileops.jit.lang.arith import as_float, as_int, fma, maximum, select, to_float
from tileops.jit.lang.maths.exponential import LN2_HIGH, LN2_LOW, polynomial, scales_natively
from tileops.jit.lang.values import Value
from tileops.jit.lang.words import composite, word

_INF, _NAN = math.inf, math.nan
_THREE_QUARTERS = 0x3F400000


def _log_near_one(f, e):
    """``e ln 2 + log(1 + f)`` for ``-0.25 <= f < 0.5`` and integral or infinite e."""
    p = polynomial(
        f,
        *(-0.0451120548, 0.104688786, -0.1316387355, 0.1447832137, -0.1664699912),
        *(0.1999081969, -0.2500010431, 0.3333345056),
    )
    z = f * f
    y = fma(z, -0.5, fma(e, LN2_LOW, p * f * z))
    return fma(e, LN2_HIGH, f + y)


@word
def _mantissa(x):
    """1 + f of `reduce_log`, where `scales_natively`."""
    return Value(context.emitter().split_exponent(x.ir)[0], x.kind)


@word
def _exponent(x):
    """e of `reduce_log`, where `scales_natively`."""
    return Value(context.emitter().split_exponent(x.ir)[1], x.kind)


def reduce_log(x):
    """``(f, e)`` with ``x = (1 + f) * 2**e`` and ``-0.25 <= f < 0.5``.

    One of them is NaN where `x` is NaN or negative; e is infinite, and f finite, for 0 and infinity.
    """
    if scales_natively(x):
        return _mantissa(x) - 1.0, _exponent(x)
    subnormal = x < 1.17549435e-38
    scaled = as_int(select(subnormal, x * 8388608.0, x))
    k = (scaled - _THREE_QUARTERS) >> 23
    f = as_float(scaled - (k << 23)) - 1.0
    e = to_float(k) - select(subnormal, 23.0, 0.0)
    e = select(x < _INF, e, x)
    e = select(x == 0.0, -_INF, e)
    return f, select(x < 0.0, _NAN, e)


@composite
def log(x):
    """Natural logarithm, of subnormals too."""
    return _log_near_one(*reduce_log(x))


@composite
def log1p(x):
    """``log(1 + x)`` without the rounding of the sum."""
    k = (as_int(1.0 + x) - _THREE_QUARTERS) >> 23
    shift = k << 23
    # x * 2**-k + (2**-k - 1), where 2**-k may be 0 for large k.
    f = as_float(as_int(x) - shift) + (as_float(maximum(0x3F800000 - shift, 0)) - 1.0)
    y = select((x == 0.0) | ~(x < _INF), x, _log_near_one(f, to_float(k)))
    y = select(x == -1.0, -_INF, y)
    return select(x < -1.0, _NAN, y)
