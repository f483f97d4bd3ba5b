"""Logarithms."""

from __future__ import annotations

import math

from tileops.jit.lang.arith import as_float, as_int, fma, select, to_float
from tileops.jit.lang.maths.exponential import polynomial
from tileops.jit.lang.words import composite

_INF, _NAN = math.inf, math.nan


@composite
def log(x):
    """Natural logarithm, of subnormals too."""
    subnormal = x < 1.17549435e-38
    scaled = as_int(select(subnormal, x * 8388608.0, x))
    k = (scaled - 0x3F3504F3) >> 23  # the mantissa lies in [sqrt(1/2), sqrt(2))
    f = as_float(scaled - (k << 23)) - 1.0
    e = to_float(k) - select(subnormal, 23.0, 0.0)
    p = polynomial(
        f,
        *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
        *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
    )
    z = f * f
    y = fma(z, -0.5, fma(e, -2.12194440e-4, p * f * z))
    y = fma(e, 0.693359375, f + y)
    y = select(x == _INF, _INF, y)
    y = select(x == 0.0, -_INF, y)
    y = select(x < 0.0, _NAN, y)
    return select(x != x, x, y)
