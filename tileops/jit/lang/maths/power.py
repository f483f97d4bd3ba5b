"""Powers and roots."""

from __future__ import annotations

import math

from tileops.jit.lang import context
from tileops.jit.lang.arith import (
    abs_,
    as_float,
    as_int,
    fma,
    fma_exact,
    maxq,
    minq,
    reciprocal_lp,
    rsqrt_exact,
    select,
    trunc,
)
from tileops.jit.lang.maths.doubles import fma_double, polynomial_double, to_double, to_single
from tileops.jit.lang.maths.exponential import EXP2, ROUND, polynomial, scale_exp2, scales_natively
from tileops.jit.lang.maths.logarithm import reduce_log
from tileops.jit.lang.values import Value
from tileops.jit.lang.words import composite, word

_INF, _NAN = math.inf, math.nan
_MAX = 3.4028234663852886e38

#: ``log2(1 + f) / f`` for ``-0.25 <= f <= 0.5``, relative error 1.1e-10
_LOG2 = (
    *(-0.044953488280599259, 0.11550222618402514, -0.15286998942070448, 0.16465719861638878),
    *(-0.18031468727264241, 0.20582039658922674, -0.24042821484695684, 0.28854602324293227),
    *(-0.36067435940972103, 0.48089828223022202, -0.72134751685582321, 1.4426950409945385),
)
#: ``2**x`` for ``|x| <= 1/2``, relative error 2.6e-6
_EXP2_LP = (0.009570927359, 0.05591768771, 0.2402471453, 0.6931218505, 0.9999992847)


def _exp2_special(x, y, r, n, t, coefficients=EXP2):
    """``2**(r + n)`` with the sign and the special values of ``x**y``."""
    r = minq(1.0, maxq(-1.0, r))
    size = scale_exp2(polynomial(r, *coefficients), n, t)
    whole = trunc(y)
    half = y * 0.5
    odd = (whole == y) & (trunc(half) != half)
    value = as_float(as_int(size) ^ select(odd, as_int(x) & -0x80000000, 0))
    value = select((x < 0.0) & (x > -_INF) & (whole != y), _NAN, value)
    return select((y == 0.0) | (x == 1.0), 1.0, value)


@composite
def power(x, y):
    """``x**y``, with the special values of C (torch.pow)."""
    f, e = reduce_log(abs_(x))
    f = to_double(f)
    logarithm = fma_double(polynomial_double(f, *_LOG2), f, to_double(e))
    # Finite, so that (-1)**inf is 1; powers of anything else are 0 or infinite there, too.
    product = to_double(minq(_MAX, maxq(-_MAX, y))) * logarithm
    t = minq(129.0, maxq(-151.0, to_single(product))) + ROUND
    n = t - ROUND
    return _exp2_special(x, y, to_single(product - to_double(n)), n, t)


@composite
def power_lp(x, y):
    """`power` to a relative error of 3e-5."""
    f, e = reduce_log(abs_(x))
    p = polynomial(
        f,
        *(0.07867672294, -0.1747348756, 0.2162822783, -0.2426142693, 0.2881827056),
        *(-0.3605828881, 0.480902791, -0.7213483453, 1.442695022),
    )
    logarithm = fma(p, f, e)
    y_finite = minq(_MAX, maxq(-_MAX, y))
    t = minq(129.0, maxq(-151.0, y_finite * logarithm)) + ROUND
    n = t - ROUND
    return _exp2_special(x, y, fma_exact(y_finite, logarithm, -n), n, t, _EXP2_LP)


@word
def rsqrt(x):
    """``1 / sqrt(x)``."""
    estimate = context.emitter().rsqrt_lp(x.ir)
    if estimate is None:
        return rsqrt_exact(x)
    v = Value(estimate, x.kind)
    correction = fma(-(x * v), v, 1.0)
    # NaN where x is 0 or infinite, which the estimate is right for.
    return select(correction == correction, fma(v * 0.5, correction, v), v)


@composite
def reciprocal(x):
    """``1 / x``, rounded once."""
    return 1.0 / x


@composite
def quotient_f16(x, y):
    """``x / y`` of numbers that float16 can hold, to a relative error of 1e-7."""
    if not scales_natively(y):
        return x / y
    v = reciprocal_lp(y)
    quotient = x * v
    missing = fma(-quotient, y, x)
    # The first quotient is right where nothing is missing, of zeros too, and for a divisor of 0 and infinities (NaN).
    return select(abs_(missing) > 0.0, fma(missing, v, quotient), quotient)
