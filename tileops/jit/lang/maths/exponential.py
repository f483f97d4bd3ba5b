"""Exponentials, and what other functions need of them."""

from __future__ import annotations

from tileops.jit.lang import context
from tileops.jit.lang.arith import abs_, as_float, as_int, fma, fma_exact, maxq, minq, reciprocal_lp, select
from tileops.jit.lang.values import Lockstep, Value, as_f32
from tileops.jit.lang.words import composite, word

LOG2E = 1.44269504
LN2_HIGH, LN2_LOW = 0.693145752, 1.42860677e-6  # the high part has 12 trailing zero bits: n * high is exact
# Adding and subtracting 1.5 * 2**23 rounds to the nearest integer (ties to even), which then stands in the
# low bits of the sum; unlike a conversion to int it is defined for NaN.
ROUND = 12582912.0
_ROUND_BITS = 0x4B400000


def polynomial(x, *coefficients):
    """Horner's rule, highest power first."""
    value = coefficients[0]
    for coefficient in coefficients[1:]:
        value = fma(value, x, coefficient)
    return value


def reduce_exp(x, low=None):
    """``(t, n, r)`` with ``x + low = n * ln 2 + r``, ``|r| <= ln(2) / 2``; the low bits of `t` hold n."""
    t = fma(x, LOG2E, ROUND)
    n = t - ROUND
    high = fma(n, -LN2_HIGH, x)  # exact
    return t, n, fma(n, -LN2_LOW, high) if low is None else high + fma(n, -LN2_LOW, low)


def expm1_reduced(r):
    """``exp(r) - 1`` for ``|r| <= ln(2) / 2`` (minimax, 3e-9)."""
    p = polynomial(r, 0.001381453942, 0.008368745446, 0.04166838899, 0.1666652113, 0.4999999404)
    return fma(p * r, r, r)


@word
def scale_exp2(p, n, t):
    """``p * 2**n`` rounded once, n integral; the low bits of `t` hold n."""
    bits = as_int(t) - _ROUND_BITS
    return Value(context.emitter().scale_exp2(p.ir, n.ir, bits.ir), p.kind)


def split_exp(x, low=None):
    """``(high, rest, n, t)``: ``exp(x + low) = (high + rest) * 2**n`` to 0.06 ulp (0.3 ulp without `low`), for finite
    ``-150 <= x <= 0`` and small `low`; high is in [0.7, 1.42], the low bits of `t` hold n.
    """
    if low is None:
        t, n, r = reduce_exp(x)
        high = 1.0 + r
        rest = (1.0 - high) + r
    else:
        t = fma(x, LOG2E, ROUND)
        n = t - ROUND
        h = fma(n, -LN2_HIGH, x)  # exact
        correction = fma(n, -LN2_LOW, low)
        r = h + correction
        lost = (h - r) + correction
        high = 1.0 + r
        rest = ((1.0 - high) + r) + lost
    p = polynomial(r, 0.001381453942, 0.008368745446, 0.04166838899, 0.1666652113, 0.4999999404)
    return high, fma(p * r, r, rest), n, t


def scales_natively(x):
    """Whether `scale_exp2` is one instruction (AVX-512), so that short cuts around it do not pay."""
    return (x.members[0] if isinstance(x, Lockstep) else x).kind.lanes == 16


@word
def fraction(x):
    """``x - floor(x)``, 0 of infinities; where `scales_natively`."""
    return Value(context.emitter().fraction(x.ir), x.kind)


@word
def scale_floor(p, x):
    """``p * 2**floor(x)`` rounded once, for any numbers; where `scales_natively`.

    Results below 2**-126 take hundreds of cycles, but not from exponents of -512 down; see `beyond_underflow`.
    """
    return Value(context.emitter().scale_floor(as_f32(p, x.kind).ir, x.ir), x.kind)


#: ``2**x`` and ``2**-x`` for ``0 <= x < 1`` (minimax, 3e-6)
_EXP2_UP_LP = (0.01353416778, 0.05201146007, 0.2414427549, 0.6930038333, 1.000002623)
_EXP2_DOWN_LP = (0.006767083891, -0.0530740656, 0.2393410802, -0.6930301785, 0.9999973774)


def beyond_underflow(w):
    """`w`, but where ``2**w`` is 0 in bfloat16 as an exponent that `scale_floor` is not slow for; -inf and NaN stay."""
    return select(w < -151.0, w * 8.0, w)


def split_exp2_lp(w):
    """``2**w`` as p, which is to be scaled by ``2**floor(w)``, to a relative error of 3e-6; where `scales_natively`."""
    return polynomial(fraction(w), *_EXP2_UP_LP)


def logistic_lp(w):
    """``(d, w)``: ``2**floor(w) / d`` is ``1 / (1 + 2**-w)`` to a relative error of 3e-6; where `scales_natively`.

    As both the sum and the result are scaled exactly, no exponential overflows or loses bits.
    """
    # Above, the sum is its first term; NaN stays.
    w = beyond_underflow(minq(64.0, w))
    return scale_floor(1.0, w) + polynomial(fraction(w), *_EXP2_DOWN_LP), w


@composite
def exp(x):
    """Exponential, with subnormal results."""
    # Beyond these bounds the result is inf or 0 anyway; infinite x would make r NaN. NaN passes through both.
    # Zeros are kept out of the scaling, which takes a hundred cycles where it underflows.
    zero = x < -103.98
    t, n, r = reduce_exp(select(zero, 0.0, minq(89.0, x)))
    return select(zero, 0.0, scale_exp2(expm1_reduced(r) + 1.0, n, t))


def exp_near(x):
    """The exponential of ``-87 <= x <= 88`` (or NaN)."""
    t, n, r = reduce_exp(x)
    p = expm1_reduced(r) + 1.0
    return scale_exp2(p, n, t) if scales_natively(x) else as_float(as_int(p) + (as_int(t) << 23))


def _flushing_exp(x, reduce, reduced):
    """The exponential of ``x <= 88`` whose results below 2**-126 may be 0."""
    if scales_natively(x):
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
    return _flushing_exp(x, reduce_exp, lambda r: expm1_reduced(r) + 1.0)


@composite
def exp_lp(x):
    """`exp_fast` to a relative error of 3e-6."""

    def reduce(x):
        t = fma(x, LOG2E, ROUND)
        n = t - ROUND
        return t, n, fma(n, -0.693147181, x)

    p = (0.04146308079, 0.1679091752, 0.5000428557, 0.9999634027, 0.9999992847)  # minimax on |r| <= ln(2) / 2
    return _flushing_exp(x, reduce, lambda r: polynomial(r, *p))


def tail_exp_lp(x):
    """``(z, factor)``: ``exp(x) = z * factor`` to a relative error of 1e-5, for ``-103 <= x <= 0``.

    Where `exp_lp` would return 0 for results that are small but may be multiplied by something large, z is larger.
    """
    if scales_natively(x):
        return exp_lp(x), 1.0
    far = x < -64.0
    return exp_lp(select(far, x + 16.6355324, x)), select(far, 2.0**-24, 1.0)


def _exp2(x, coefficients):
    native = scales_natively(x)
    tiny = x < (-151.0 if native else -126.0)
    # As in `_flushing_exp`: an underflow in the instruction would be slow.
    clamped = select(tiny, 0.0, x) if native else maxq(-126.0, x)
    t = clamped + ROUND
    n = t - ROUND
    p = polynomial(clamped - n, *coefficients)
    scaled = scale_exp2(p, n, t) if native else as_float(as_int(p) + (as_int(t) << 23))
    return select(tiny, 0.0, scaled)


#: ``2**x`` for ``|x| <= 1/2`` (minimax, 3e-9)
EXP2 = (0.0001535331976, 0.001339892624, 0.009618437849, 0.05550332367, 0.2402264774, 0.6931471825, 1.0)


@composite
def exp2(x):
    """``2**x``, with subnormal results."""
    tiny = x < -150.0
    clamped = select(tiny, 0.0, minq(130.0, x))
    t = clamped + ROUND
    n = t - ROUND
    return select(tiny, 0.0, scale_exp2(polynomial(clamped - n, *EXP2), n, t))


@composite
def exp_half(x):
    """`exp` for results that are rounded to bfloat16 or float16, to a relative error of 1e-5."""
    if not scales_natively(x):
        return exp(x)
    w = beyond_underflow(x * LOG2E)
    return scale_floor(split_exp2_lp(w), w)


@composite
def exp2_fast(x):
    """``2**x`` for finite ``x < 127.5``, -inf or NaN (softmax); results below 2**-126 may be 0."""
    return _exp2(x, EXP2)


@composite
def exp2_lp(x):
    """`exp2_fast` to a relative error of 8e-5."""
    return _exp2(x, (0.05517140031, 0.2426130176, 0.6932611465, 0.999927938))


@composite
def expm1(x):
    """``exp(x) - 1`` without cancellation near 0."""
    t, n, r = reduce_exp(minq(89.0, maxq(-25.0, x)))
    p = expm1_reduced(r)
    # Half the scale, because 2**128 is not a number although the result may be.
    half = scale_exp2(fma(0.0, r, 0.5), n, t)
    return select(abs_(x) < 1e-30, x, fma(p, half, half - 0.5) * 2.0)


def _elu(x, times, times_low):
    """``(exp(x) - 1) * (times + times_low)`` for negative `x`."""
    t, _, r = reduce_exp(maxq(-25.0, x))
    scale = as_float((as_int(t) << 23) + 0x3F800000)
    # scale * (1 + r + q) - 1, the sum of the first parts with its rounding error
    q = polynomial(r, 0.001381453942, 0.008368745446, 0.04166838899, 0.1666652113, 0.4999999404) * r * r
    start, part = scale - 1.0, scale * r
    high = start + part
    low = fma(scale, q, (start - high) + part)
    return fma_exact(high, times, fma(high, times_low, low * times) if times_low else low * times)


@composite
def elu(x, alpha):
    """`x` where it is positive, else ``alpha * (exp(x) - 1)``."""
    return select(x < 0.0, _elu(x, alpha, 0.0), x)


@composite
def selu(x):
    """``scale * elu(x, alpha)`` with the constants of self-normalising networks."""
    return select(x < 0.0, _elu(x, 1.758099318, 2.32967174e-08), x * 1.050701022)


def reciprocal_half(x):
    """``1 / x`` to a relative error of 1e-7, for normal `x` with a normal reciprocal."""
    v = reciprocal_lp(x)
    return v * fma(-x, v, 2.0) if scales_natively(x) else v
