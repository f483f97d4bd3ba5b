"""Elementary functions in float32, written over the vocabulary (no call of any mathematical library).

Accurate to 2 ulp over the whole range, or over the one that the docstring names, with the special values of PyTorch.
The ``*_lp`` versions (relative error 2e-4 or better) are for results that are rounded to bfloat16 or float16.
"""

from __future__ import annotations

import math

from tileops.jit.lang import context
from tileops.jit.lang.arith import (
    abs_,
    as_float,
    as_int,
    copysign,
    fma,
    fma_exact,
    maxq,
    minq,
    reciprocal_lp,
    select,
    to_float,
)
from tileops.jit.lang.values import Lockstep, Value
from tileops.jit.lang.words import Word, composite, word

_LOG2E = 1.44269504
_LN2_HIGH, _LN2_LOW = 0.693145752, 1.42860677e-6  # the high part has 12 trailing zero bits: n * high is exact
# Adding and subtracting 1.5 * 2**23 rounds to the nearest integer (ties to even), which then stands in the
# low bits of the sum; unlike a conversion to int it is defined for NaN.
ROUND = 12582912.0
_ROUND_BITS = 0x4B400000
_INF, _NAN = math.inf, math.nan


def polynomial(x, *coefficients):
    """Horner's rule, highest power first."""
    value = coefficients[0]
    for coefficient in coefficients[1:]:
        value = fma(value, x, coefficient)
    return value


def _reduce_exp(x):
    """``(t, n, r)`` with ``x = n * ln 2 + r``, ``|r| <= ln(2) / 2``; the low bits of `t` hold n."""
    t = fma(x, _LOG2E, ROUND)
    n = t - ROUND
    return t, n, fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x))


def _expm1_reduced(r):
    """``exp(r) - 1`` for ``|r| <= ln(2) / 2`` (minimax, 3e-9)."""
    p = polynomial(r, 0.001381453942, 0.008368745446, 0.04166838899, 0.1666652113, 0.4999999404)
    return fma(p * r, r, r)


def _exp_reduced_lp(r):
    """``exp(r)`` for ``|r| <= ln(2) / 2`` (minimax, 7.5e-5)."""
    return polynomial(r, 0.1656674147, 0.5049681664, 1.000164509, 0.999927938)


@word
def scale_exp2(p, n, t):
    """``p * 2**n`` rounded once, n integral; the low bits of `t` hold n."""
    bits = as_int(t) - _ROUND_BITS
    return Value(context.emitter().scale_exp2(p.ir, n.ir, bits.ir), p.kind)


def _split_exp(x, low=0.0):
    """``(high, rest, n, t)``: ``exp(x + low) = (high + rest) * 2**n`` to 0.06 ulp, for finite ``-150 <= x <= 0`` and
    small `low`; high is in [0.7, 1.42], the low bits of `t` hold n.
    """
    t = fma(x, _LOG2E, ROUND)
    n = t - ROUND
    h = fma(n, -_LN2_HIGH, x)  # exact
    correction = fma(n, -_LN2_LOW, low)
    r = h + correction
    lost = (h - r) + correction
    high = 1.0 + r
    p = polynomial(r, 0.001381453942, 0.008368745446, 0.04166838899, 0.1666652113, 0.4999999404)
    return high, fma(p * r, r, ((1.0 - high) + r) + lost), n, t


def _scales_natively(x):
    """Whether `scale_exp2` is one instruction (AVX-512), so that short cuts around it do not pay."""
    return (x.members[0] if isinstance(x, Lockstep) else x).kind.lanes == 16


@composite
def exp(x):
    """Exponential, with subnormal results."""
    # Beyond these bounds the result is inf or 0 anyway; infinite x would make r NaN. NaN passes through both.
    # Zeros are kept out of the scaling, which takes a hundred cycles where it underflows.
    zero = x < -103.98
    t, n, r = _reduce_exp(select(zero, 0.0, minq(89.0, x)))
    return select(zero, 0.0, scale_exp2(_expm1_reduced(r) + 1.0, n, t))


def _flushing_exp(x, reduce, reduced):
    """The exponential of ``x <= 88`` whose results below 2**-126 may be 0."""
    if _scales_natively(x):
        # What underflows to 0 is kept out of the instruction, not only out of the result: it takes a hundred cycles
        # there, which masked softmax would pay at every masked score. Subnormal results stay exact.
        tiny = x < -104.0
        t, n, r = reduce(select(tiny, 0.0, x))
        return select(tiny, 0.0, scale_exp2(reduced(r), n, t))
    t, n, r = reduce(maxq(-87.33, x))
    return select(x < -87.33, 0.0, as_float(as_int(reduced(r)) + (as_int(t) << 23)))


@composite
def exp_fast(x):
    """Exponential for finite ``x <= 88``, -inf or NaN (softmax, sigmoid); results below 2**-126 may be 0."""
    return _flushing_exp(x, _reduce_exp, lambda r: _expm1_reduced(r) + 1.0)


@composite
def exp_lp(x):
    """`exp_fast` to a relative error of 8e-5."""

    def reduce(x):
        t = fma(x, _LOG2E, ROUND)
        n = t - ROUND
        return t, n, fma(n, -0.693147181, x)

    p = (0.1656674147, 0.5049681664, 1.000164509, 0.999927938)  # minimax on |r| <= ln(2) / 2
    return _flushing_exp(x, reduce, lambda r: polynomial(r, *p))


def _tail_exp_lp(x):
    """``(z, factor)``: ``exp(x) = z * factor`` to a relative error of 1e-4, for ``-103 <= x <= 0``.

    Where `exp_lp` would return 0 for results that are small but may be multiplied by something large, z is larger.
    """
    if _scales_natively(x):
        return exp_lp(x), 1.0
    far = x < -64.0
    return exp_lp(select(far, x + 16.6355324, x)), select(far, 2.0**-24, 1.0)


def _exp2(x, coefficients):
    native = _scales_natively(x)
    tiny = x < (-151.0 if native else -126.0)
    # As in `_flushing_exp`: an underflow in the instruction would be slow.
    clamped = select(tiny, 0.0, x) if native else maxq(-126.0, x)
    t = clamped + ROUND
    n = t - ROUND
    p = polynomial(clamped - n, *coefficients)
    scaled = scale_exp2(p, n, t) if native else as_float(as_int(p) + (as_int(t) << 23))
    return select(tiny, 0.0, scaled)


@composite
def exp2_fast(x):
    """``2**x`` for finite ``x < 127.5``, -inf or NaN (softmax); results below 2**-126 may be 0."""
    return _exp2(
        x,
        (0.0001535331976, 0.001339892624, 0.009618437849, 0.05550332367, 0.2402264774, 0.6931471825, 1.0),
    )


@composite
def exp2_lp(x):
    """`exp2_fast` to a relative error of 8e-5."""
    return _exp2(x, (0.05517140031, 0.2426130176, 0.6932611465, 0.999927938))


@composite
def expm1(x):
    """``exp(x) - 1`` without cancellation near 0."""
    t, n, r = _reduce_exp(minq(89.0, maxq(-25.0, x)))
    p = _expm1_reduced(r)
    # Half the scale, because 2**128 is not a number although the result may be.
    half = scale_exp2(fma(0.0, r, 0.5), n, t)
    return select(abs_(x) < 1e-30, x, fma(p, half, half - 0.5) * 2.0)


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


@composite
def tanh(x):
    """Hyperbolic tangent: an odd polynomial below 0.625, from the exponential above."""
    a = abs_(x)
    s = x * x
    p = polynomial(s, -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
    big = 1.0 - 2.0 / (exp_fast(minq(20.0, a + a)) + 1.0)
    return copysign(select(a < 0.625, fma(p * s, a, a), big), x)


@composite
def tanh_lp(x):
    """`tanh` to a relative error of 1e-4."""
    a = abs_(x)
    s = x * x
    small = fma(polynomial(s, -3.6e-2, 1.306e-1, -3.3327e-1) * s, a, a)
    big = 1.0 - 2.0 * reciprocal_lp(exp_lp(minq(20.0, a + a)) + 1.0)
    return copysign(select(a < 0.5, small, big), x)


def _times_sigmoid(numerator, negative, zero, x, low=0.0):
    """``numerator * sigmoid(±(x + low))`` for ``-150 <= x <= 0``, the sign as `negative` says; 0 where also `zero`.

    Two roundings that matter, of the quotient and of the product with the exponential: below 2 ulp.
    """
    high, rest, n, t = _split_exp(x, low)
    # What underflows to 0 stays out of the scaling, see `_flushing_exp`. Times 0 and not 0: NaN stays NaN.
    z = scale_exp2(select(zero, 0.0, high + rest), n, t)
    w = 1.0 + z
    # What rounding added to the sum, over w (1 / w to 4 % for 1 <= w <= 2). Its zeros keep the sign of the quotient's.
    excess = ((w - 1.0) - z) * fma(w, -0.4857, 1.4571)
    quotient = numerator / w
    scaled = fma(quotient, high, quotient * fma(high, excess, rest))
    small = scale_exp2(select(zero, quotient * 0.0, scaled), n, t)
    return select(negative, small, select(zero, quotient, fma(quotient, excess, quotient)))


@composite
def sigmoid(x):
    """``1 / (1 + exp(-x))``, with subnormal results."""
    a = abs_(x)
    return _times_sigmoid(1.0, x < 0.0, a > 104.0, -minq(110.0, a))


@composite
def sigmoid_lp(x):
    """`sigmoid` to a relative error of 1.6e-4."""
    z, factor = _tail_exp_lp(-abs_(x))
    return select(x < 0.0, z * factor, 1.0) * reciprocal_lp(1.0 + z)


@composite
def silu(x):
    """``x * sigmoid(x)``, with subnormal results."""
    a = abs_(x)
    return _times_sigmoid(x, x < 0.0, a > 109.0, -minq(110.0, a))


@composite
def silu_lp(x):
    """`silu` to a relative error of 1.6e-4."""
    z, factor = _tail_exp_lp(-abs_(x))
    return x * (select(x < 0.0, z, 1.0) * reciprocal_lp(1.0 + z)) * select(x < 0.0, factor, 1.0)


@composite
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
    p = polynomial(s, -5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1)
    y = select(a > 0.921875, big, fma(p, x, x))
    return select(a > 4.0, copysign(1.0, x), y)


@composite
def gelu(x):
    """``x * Phi(x)``, with subnormal results.

    Up to 1 a polynomial for ``Phi(x) - 1/2``; beyond, ``|x| Phi(-|x|) = exp(-x**2 / 2) * g(|x|)`` with a polynomial
    in ``1 / (|x| + 2)`` for g, which goes from 0.24 to ``1 / sqrt(2 pi)``.
    """
    size = abs_(x)
    zero = size > 14.4
    a = minq(14.5, size)
    square = a * a
    error = fma_exact(a, a, -square)
    # x / 2 + x**2 (0.3984375 + d): the part that cancels is rounded once.
    d = polynomial(
        square,
        *(-7.589977940e-6, 0.0001133379119, -0.001186211128, 0.009973284788, -0.06649035215, 0.0005047803861),
    )
    near = fma_exact(square, 0.3984375, 0.5 * x) + fma(square, d, error * 0.3984375)
    high, rest, n, t = _split_exp(-0.5 * square, -0.5 * error)
    # The reciprocal with its rounding error: g changes by more than |x| does.
    b = a + 2.0
    v = 1.0 / b
    residue = fma_exact(-v, b, 1.0) - v * (a - (b - 2.0))
    u = fma(v * 7.25, residue, fma_exact(v, 7.25, -1.4375))
    q = polynomial(
        u,
        *(1.065808665e-5, -2.366456101e-5, -0.0001056635010, 0.0004595485807, 0.001070616883),
        *(-0.007630080916, -0.03858447447, -0.06217886135),
    )
    g = fma_exact(u, q, 0.3653251231)
    tail = scale_exp2(select(zero, 0.0, fma_exact(high, g, rest * g)), n, t)
    far = select(x < 0.0, select(zero, x * 0.0, -tail), x - tail)
    return select(size < 1.0, copysign(near, x), far)


@composite
def gelu_lp(x):
    """`gelu` to a relative error of 1.6e-4."""
    size = abs_(x)
    a = minq(14.5, size)
    b = a + 2.0
    v = reciprocal_lp(b)
    v = v * fma(-b, v, 2.0)
    p = polynomial(v, 5.010216713, -6.753772259, 1.331421852, 1.217778802, 0.7909280062, 0.399235189)
    z, factor = _tail_exp_lp(-0.5 * a * a)
    tail = a * v * p * z * factor
    return select(x < 0.0, select(size > 14.4, x * 0.0, -tail), x - tail)


@composite
def gelu_tanh(x):
    """The tanh form of gelu, as ``x * sigmoid(2 u)``, with subnormal results; 2 u to twice the bits of float32."""
    size = abs_(x)
    a = minq(11.0, size)
    square = a * a
    square_low = fma_exact(a, a, -square)
    # w = 2 sqrt(2 / pi) (1 + 0.044715 x**2)
    cubic = square * 0.07135481387
    cubic_low = fma_exact(square, 0.07135481387, -cubic) + fma(square, 2.398832466e-9, square_low * 0.07135481387)
    w = cubic + 1.595769167
    added = w - cubic
    w_low = ((cubic - (w - added)) + (1.595769167 - added)) + (cubic_low - 4.534068054e-8)
    u = -a * w
    u_low = fma_exact(-a, w, -u) - a * w_low
    return _times_sigmoid(x, x < 0.0, size > 10.8, u, u_low)


def _gelu_tanh_argument(x):
    """``2 u`` with ``gelu_tanh(x) = x * sigmoid(2 u)``."""
    return x * fma(x * x, 0.0713548163, 1.5957691216)


@composite
def gelu_tanh_lp(x):
    """`gelu_tanh` to a relative error of 2e-4."""
    u = _gelu_tanh_argument(x)
    z, factor = _tail_exp_lp(-abs_(u))
    return x * (select(u < 0.0, z, 1.0) * reciprocal_lp(1.0 + z)) * select(u < 0.0, factor, 1.0)


def low_precision(function: Word) -> Word:
    """The ``*_lp`` version of a word of this module, or the word itself where there is none."""
    return globals().get(f"{function.__name__}_lp", function)


__all__ = [
    "ROUND", "erf", "exp", "exp2_fast", "exp2_lp", "exp_fast", "exp_lp", "expm1", "gelu", "gelu_lp",
    "gelu_tanh", "gelu_tanh_lp", "log", "low_precision", "polynomial", "sigmoid", "sigmoid_lp", "silu",
    "silu_lp", "tanh", "tanh_lp",
]  # fmt: skip
