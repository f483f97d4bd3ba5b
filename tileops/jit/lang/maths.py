"""Elementary functions in float32, written over the vocabulary (no call of any mathematical library).

Accurate to 2 ulp, or 1e-6 relative where the docstring says so, with the special values of PyTorch. The ``*_lp``
versions (relative error 1e-4 or better) are for results that are rounded to bfloat16 or float16.
"""

from __future__ import annotations

import math

from tileops.jit.lang.arith import (
    abs_,
    as_float,
    as_int,
    copysign,
    fma,
    ldexp,
    maxq,
    minq,
    reciprocal_lp,
    select,
    to_float,
)
from tileops.jit.lang.words import Word, word

_LOG2E = 1.44269504
_LN2_HIGH, _LN2_LOW = 0.693145752, 1.42860677e-6  # the high part has 12 trailing zero bits: n * high is exact
# Adding and subtracting 1.5 * 2**23 rounds to the nearest integer (ties to even), which then stands in the low bits
# of the sum; unlike a conversion to int it is defined for NaN.
_ROUND = 12582912.0
_ROUND_BITS = 0x4B400000
_INF, _NAN = math.inf, math.nan


def polynomial(x, *coefficients):
    """Horner's rule, highest power first."""
    value = coefficients[0]
    for coefficient in coefficients[1:]:
        value = fma(value, x, coefficient)
    return value


def _reduce_exp(x):
    """``(t, r)`` with ``x = n * ln 2 + r``, ``|r| <= ln(2) / 2``; the low bits of `t` hold n."""
    t = fma(x, _LOG2E, _ROUND)
    n = t - _ROUND
    return t, fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x))


def _expm1_reduced(r):
    """``exp(r) - 1`` for ``|r| <= ln(2) / 2``."""
    p = polynomial(r, 1.98412698e-4, 1.3888889e-3, 8.3333333e-3, 4.16666667e-2, 1.66666667e-1, 0.5)
    return fma(p * r, r, r)


def _scale(p, t):
    """``p * 2**n`` for a normal result, by adding n (the low bits of `t`) to the exponent."""
    return as_float(as_int(p) + (as_int(t) << 23))


@word
def exp(x):
    """Exponential, with subnormal results."""
    t, r = _reduce_exp(x)
    y = ldexp(_expm1_reduced(r) + 1.0, as_int(t) - _ROUND_BITS)
    y = select(x > 88.72284, _INF, y)
    return select(x < -103.98, 0.0, y)


@word
def exp_fast(x):
    """Exponential for finite ``x <= 88.3``, -inf or NaN (softmax, sigmoid): results below 2**-126 are 0."""
    tiny = x < -87.33
    t, r = _reduce_exp(maxq(-87.33, x))
    p = polynomial(r, 1.3888889e-3, 8.3333333e-3, 4.16666667e-2, 1.66666667e-1, 0.5)
    return select(tiny, 0.0, _scale(fma(p * r, r, r) + 1.0, t))


@word
def exp_lp(x):
    """`exp_fast` to a relative error of 1e-5."""
    tiny = x < -87.0
    x = maxq(-87.0, x)
    t = fma(x, _LOG2E, _ROUND)
    r = fma(t - _ROUND, -0.693147181, x)
    return select(tiny, 0.0, _scale(polynomial(r, 4.37e-2, 1.6775e-1, 0.49998, 0.99996, 1.0), t))


@word
def exp2_fast(x):
    """``2**x`` for finite ``x < 127.5``, -inf or NaN (softmax): results below 2**-126 are 0."""
    tiny = x < -126.0
    x = maxq(-126.0, x)
    t = x + _ROUND
    r = (x - (t - _ROUND)) * 0.693147181
    p = polynomial(r, 1.3888889e-3, 8.3333333e-3, 4.16666667e-2, 1.66666667e-1, 0.5)
    return select(tiny, 0.0, _scale(fma(p * r, r, r) + 1.0, t))


@word
def exp2_lp(x):
    """`exp2_fast` to a relative error of 1e-5."""
    tiny = x < -126.0
    x = maxq(-126.0, x)
    t = x + _ROUND
    r = (x - (t - _ROUND)) * 0.693147181
    return select(tiny, 0.0, _scale(polynomial(r, 4.37e-2, 1.6775e-1, 0.49998, 0.99996, 1.0), t))


@word
def expm1(x):
    """``exp(x) - 1`` without cancellation near 0."""
    t, r = _reduce_exp(x)
    p = _expm1_reduced(r)
    # For n = 128 the scale itself overflows although the result need not: halve it there.
    n = as_int(t) - _ROUND_BITS
    half = ldexp(1.0 + 0.0 * r, n - 1)
    y = fma(p, half, half - 0.5) * 2.0
    y = select(x > 88.72284, _INF, y)
    y = select(x < -20.0, -1.0, y)
    y = select(abs_(x) < 1e-30, x, y)
    return select(x != x, x, y)


@word
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


@word
def tanh(x):
    """Hyperbolic tangent: an odd polynomial below 0.625, from the exponential above."""
    a = abs_(x)
    s = x * x
    p = polynomial(s, -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
    small = fma(p * s, x, x)
    big = 1.0 - 2.0 / (exp_fast(minq(a + a, 20.0)) + 1.0)
    big = copysign(select(a > 9.1, 1.0, big), x)
    return select(x != x, x, select(a < 0.625, small, big))


@word
def tanh_lp(x):
    """`tanh` to a relative error of 5e-5."""
    a = abs_(x)
    s = x * x
    small = fma(polynomial(s, -3.6e-2, 1.306e-1, -3.3327e-1) * s, x, x)
    big = 1.0 - 2.0 / (exp_lp(minq(a + a, 20.0)) + 1.0)
    return select(x != x, x, select(a < 0.5, small, copysign(big, x)))


@word
def sigmoid(x):
    """``1 / (1 + exp(-x))``."""
    return 1.0 / (1.0 + exp(-x))


@word
def sigmoid_lp(x):
    """`sigmoid` to a relative error of 1e-5."""
    return 1.0 / (1.0 + exp_lp(minq(88.0, -x)))


@word
def silu(x):
    """``x * sigmoid(x)``, for large negative `x` too, where ``exp(-x)`` would overflow before the result is 0."""
    e = exp(-abs_(x))
    return select(x < 0.0, x * e, x) / (1.0 + e)


@word
def silu_lp(x):
    """`silu` to a relative error of 1e-4, down to subnormal results."""
    # exp(-|x|) lies in [0, 1], so its sum with 1 suits a reciprocal of limited range.
    a = minq(126.0, abs_(x))
    t = fma(a, -_LOG2E, _ROUND)
    r = fma(t - _ROUND, -0.693147181, -a)
    p = polynomial(r, 4.37e-2, 1.6775e-1, 0.49998, 0.99996, 1.0)
    e = ldexp(p, as_int(t) - _ROUND_BITS)
    return x * (select(x < 0.0, e, 1.0) * reciprocal_lp(1.0 + e))


@word
def erf(x):
    """Error function: odd polynomial up to 0.92, ``1 - exp(polynomial)`` above."""
    a = abs_(x)
    s = x * x
    r = fma(a, -1.72853470e-5, 3.83197126e-4)
    u = fma(a, -3.88396438e-3, 2.42546219e-2)
    r = fma(r, s, u)
    r = polynomial(a, r, -1.06777877e-1, -6.34846687e-1, -1.28717512e-1)
    r = fma(r, a, -a)
    big = copysign(1.0 - exp_fast(maxq(-60.0, r)), x)
    p = polynomial(
        s, -5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1
    )
    y = select(a > 0.921875, big, fma(p, x, x))
    y = select(a > 4.0, copysign(1.0 + 0.0 * s, x), y)
    y = select(a == _INF, copysign(1.0, x), y)
    return select(x != x, x, y)


@word
def gelu(x):
    """``x * Phi(x)`` through ``erfc(a) = exp(a * P(a))``: no cancellation in the negative tail (3e-6 relative)."""
    a = minq(4.1, abs_(x) * 0.70710678)
    a2 = a * a
    a4 = a2 * a2
    p0 = fma(a, -0.6366116404533386, -1.1283795833587646)
    p1 = fma(a, 0.01925373449921608, -0.10281960666179657)
    p2 = fma(a, -0.0016072284197434783, 4.220632035867311e-05)
    p3 = fma(a, -0.00013388354273047298, 0.0006357355741783977)
    p4 = fma(a, -7.85040583650698e-07, 1.5581046682200395e-05)
    q0 = fma(p1, a2, p0)
    q1 = fma(p4, a4, fma(p3, a2, p2))
    tail = exp_fast(fma(q1, a4, q0) * a)  # erfc(|x| / sqrt(2))
    y = 0.5 * x * select(x > 0.0, 2.0 - tail, tail)
    return select(x == -_INF, 0.0 * x, y)


@word
def gelu_lp(x):
    """`gelu` for bfloat16 or float16 results (2e-3 relative only in the far negative tail)."""
    a = minq(4.1, abs_(x) * 0.70710678)
    a2 = a * a
    a4 = a2 * a2
    p0 = fma(a, -0.6364592909812927, -1.1283906698226929)
    p1 = fma(a, 0.02078474685549736, -0.10352079570293427)
    p2 = fma(a, -0.00033881296985782683, -0.0017840299988165498)
    p3 = fma(a, -9.675426554167643e-06, 0.0001135987913585268)
    tail = exp_lp(fma(fma(p3, a2, p2), a4, fma(p1, a2, p0)) * a)
    y = 0.5 * x * select(x > 0.0, 2.0 - tail, tail)
    return select(x == -_INF, 0.0 * x, y)


@word
def gelu_tanh(x):
    """The tanh form of gelu, as ``x * sigmoid(2 u)``."""
    u = x * fma(x * x, 0.0713548163, 1.5957691216)
    return x / (1.0 + exp(-u))


@word
def gelu_tanh_lp(x):
    """`gelu_tanh` to a relative error of 1e-5."""
    u = x * fma(x * x, 0.0713548163, 1.5957691216)
    return x / (1.0 + exp_lp(minq(88.0, -u)))


def _sin_quadrant(x, shift):
    """Sine of ``x + shift * pi / 2`` by reduction modulo pi / 2 in three parts (Cody and Waite)."""
    t = fma(x, 0.636619772, _ROUND)
    n = t - _ROUND
    quadrant = as_int(t) + shift
    r = fma(n, -5.39030253e-15, fma(n, -3.13916473e-7, fma(n, -1.57079601, x)))
    s = r * r
    odd = polynomial(s, 2.86567956e-6, -1.98559923e-4, 8.33338592e-3, -1.66666672e-1)
    sine = fma(odd * s, r, r)
    cosine = polynomial(s, 2.44677067e-5, -1.38877297e-3, 4.16666567e-2, -0.5, 1.0)
    y = select((quadrant & 1) == 0, sine, cosine)
    return select((quadrant & 2) == 0, y, -y)


@word
def sin(x):
    """Sine, for ``|x| <= 1e4``; accuracy is lost gradually above, and ``|x| > 1e5`` is not supported."""
    y = _sin_quadrant(x, 0)
    return select(x == 0.0, x, y)


@word
def cos(x):
    """Cosine, for ``|x| <= 1e4``; accuracy is lost gradually above, and ``|x| > 1e5`` is not supported."""
    return _sin_quadrant(x, 1)


def low_precision(function: Word) -> Word:
    """The ``*_lp`` version of a word of this module, or the word itself where there is none."""
    return globals().get(f"{function.__name__}_lp", function)


__all__ = [
    "cos", "erf", "exp", "exp2_fast", "exp2_lp", "exp_fast", "exp_lp", "expm1", "gelu", "gelu_lp", "gelu_tanh",
    "gelu_tanh_lp", "log", "low_precision", "polynomial", "sigmoid", "sigmoid_lp", "silu", "silu_lp", "sin", "tanh", "tanh_lp",
]  # fmt: skip
