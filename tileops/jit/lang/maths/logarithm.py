"""Logarithms."""

from __future__ import annotations

import math

from tileops.jit.lang.arith import as_float, as_int, fma, maximum, select, to_float
from tileops.jit.lang.maths.exponential import polynomial
from tileops.jit.lang.words import composite

_INF, _NAN = math.inf, math.nan


def _log_near_one(f, e):
    """``e ln 2 + log(1 + f)`` for ``sqrt(1/2) - 1 <= f < sqrt(2) - 1`` and integral e."""
    p = polynomial(
        f,
        *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
        *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
    )
    z = f * f
    y = fma(z, -0.5, fma(e, -2.12194440e-4, p * f * z))
    return fma(e, 0.693359375, f + y)


def reduce_log(x):
    """``(f, e)`` with ``x = (1 + f) * 2**e`` and ``sqrt(1/2) <= 1 + f < sqrt(2)``, for positive finite `x`."""
    subnormal = x < 1.17549435e-38
    scaled = as_int(select(subnormal, x * 8388608.0, x))
    k = (scaled - 0x3F3504F3) >> 23
    f = as_float(scaled - (k << 23)) - 1.0
    return f, to_float(k) - select(subnormal, 23.0, 0.0)


@composite
def log(x):
    """Natural logarithm, of subnormals too."""
    y = _log_near_one(*reduce_log(x))
    y = select(x < _INF, y, x)
    y = select(x == 0.0, -_INF, y)
    return select(x < 0.0, _NAN, y)


@composite
def log1p(x):
    """``log(1 + x)`` without the rounding of the sum."""
    k = (as_int(1.0 + x) - 0x3F3504F3) >> 23
    shift = k << 23
    # x * 2**-k + (2**-k - 1), where 2**-k may be 0 for large k.
    f = as_float(as_int(x) - shift) + (as_float(maximum(0x3F800000 - shift, 0)) - 1.0)
    y = select((x == 0.0) | ~(x < _INF), x, _log_near_one(f, to_float(k)))
    y = select(x == -1.0, -_INF, y)
    return select(x < -1.0, _NAN, y)
