"""The logistic function and its relatives."""

from __future__ import annotations

import math

from tileops.jit.lang.arith import abs_, copysign, fma, fma_exact, maxq, minq, reciprocal_lp, select
from tileops.jit.lang.maths.exponential import (
    LOG2E,
    beyond_underflow,
    exp_near,
    expm1_reduced,
    logistic_lp,
    polynomial,
    reciprocal_half,
    reduce_exp,
    scale_exp2,
    scale_floor,
    scales_natively,
    split_exp,
    split_exp2_lp,
    tail_exp_lp,
)
from tileops.jit.lang.maths.tables import TANH, near_points
from tileops.jit.lang.words import composite


@composite
def tanh(x):
    """Hyperbolic tangent: by intervals on wide vectors, else an odd polynomial below 0.625, the exponential above."""
    a = abs_(x)
    if scales_natively(x):
        a = minq(9.5, a)
        return copysign(near_points(a, a, TANH), x)
    s = x * x
    p = polynomial(s, -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
    big = 1.0 - quotient_near(2.0, exp_near(minq(20.0, a + a)) + 1.0)
    # NaN takes the polynomial: on narrow vectors the exponential may lose it.
    return copysign(select(a >= 0.625, big, fma(p * s, a, a)), x)


@composite
def tanh_lp(x):
    """`tanh` to a relative error of 3e-5: a quotient of polynomials up to 5.8, constant beyond."""
    x = minq(5.8, maxq(-5.8, x))
    s = x * x
    p = polynomial(s, 0.001539140165, 0.1152041157, 0.9999941833)
    q = polynomial(s, 5.785533705e-05, 0.01775368470, 0.4484965125, 1.0)
    return (x * p) * reciprocal_half(q)


def times_sigmoid(numerator, negative, zero, x, low=None):
    """``numerator * sigmoid(±(x + low))`` for ``-150 <= x <= 0``, the sign as `negative` says; 0 where also `zero`.

    Two roundings that matter, of the quotient and of the product with the exponential: below 2 ulp.
    """
    if scales_natively(x):
        t, n, r = reduce_exp(x, low)
        q = expm1_reduced(r)
        # What underflows to 0 stays out of the scaling, see `_flushing_exp`. Times 0 and not 0: NaN stays NaN.
        z = scale_exp2(select(zero, 0.0, 1.0 + q), n, t)
        # As in `quotient_near`, without the rounding error of 1 + z.
        v = reciprocal_lp(1.0 + z)
        quotient = numerator * v
        positive = fma(fma(-quotient, z, numerator - quotient), v, quotient)
        scaled = fma(positive, q, positive)
    else:
        high, rest, n, t = split_exp(x, low)
        z = scale_exp2(select(zero, 0.0, high + rest), n, t)
        w = 1.0 + z
        # What rounding added to the sum, over w (1 / w to 4 % for 1 <= w <= 2).
        excess = ((w - 1.0) - z) * fma(w, -0.4857, 1.4571)
        quotient = numerator / w
        positive = fma(quotient, excess, quotient)
        scaled = fma_exact(quotient, high, quotient * fma(high, excess, rest))
    small = scale_exp2(select(zero, quotient * 0.0, scaled), n, t)
    # The sign is that of the quotient, of a sum of zeros too.
    return copysign(select(negative, small, select(zero, numerator, positive)), quotient)


@composite
def sigmoid(x):
    """``1 / (1 + exp(-x))``, with subnormal results."""
    a = abs_(x)
    return times_sigmoid(1.0, x < 0.0, a > 104.0, -minq(110.0, a))


def times_logistic_lp(numerator, w, reciprocal):
    """``numerator / (1 + 2**-w)``; where `scales_natively`."""
    d, w = logistic_lp(w)
    return scale_floor(reciprocal(d) if numerator is None else numerator * reciprocal(d), w)


@composite
def sigmoid_bf16(x):
    """`sigmoid` for results that are rounded to bfloat16: the estimate of the reciprocal is enough."""
    return times_logistic_lp(None, x * LOG2E, reciprocal_lp) if scales_natively(x) else sigmoid_lp(x)


@composite
def sigmoid_lp(x):
    """`sigmoid` to a relative error of 1e-5."""
    if scales_natively(x):
        return times_logistic_lp(None, x * LOG2E, reciprocal_half)
    z, factor = tail_exp_lp(-abs_(x))
    return select(x < 0.0, z * factor, 1.0) * reciprocal_half(1.0 + z)


@composite
def silu(x):
    """``x * sigmoid(x)``, with subnormal results."""
    a = abs_(x)
    return times_sigmoid(x, x < 0.0, a > 109.0, -minq(110.0, a))


@composite
def silu_bf16(x):
    """`silu` for results that are rounded to bfloat16."""
    return times_logistic_lp(x, x * LOG2E, reciprocal_lp) if scales_natively(x) else silu_lp(x)


@composite
def silu_lp(x):
    """`silu` to a relative error of 1e-5."""
    if scales_natively(x):
        return times_logistic_lp(x, x * LOG2E, reciprocal_half)
    z, factor = tail_exp_lp(-abs_(x))
    return x * (select(x < 0.0, z, 1.0) * reciprocal_half(1.0 + z)) * select(x < 0.0, factor, 1.0)


def _exp_of_size(x, low, limit):
    """The exponential of ``-(|x| + low)`` as `split_exp` gives it, 0 from `limit` on: ``(high, rest, n, t, z, zero)``
    with z its value.
    """
    size = abs_(x)
    zero = size > limit
    high, rest, n, t = split_exp(-minq(limit, size), low)
    return high, rest, n, t, scale_exp2(select(zero, 0.0, high + rest), n, t), zero


@composite
def softplus(x, beta, threshold):
    """``log(1 + exp(beta * x)) / beta``; `x` itself where ``beta * x > threshold``."""
    scaled = x * beta
    lost = fma_exact(x, beta, -scaled)
    high, rest, n, t, z, zero = _exp_of_size(scaled, select(scaled < 0.0, lost, -lost), 150.0)
    # log(1 + z) = z * (13 / 16 + d): what is added to the product is small, and so is its rounding error.
    d = polynomial(
        z - 0.5,
        *(-0.003227530047, 0.005244986154, -0.006761017721, 0.01158053149, -0.02056762762),
        *(0.03663475439, -0.06768796593, 0.1326090395, -0.2885271013, -0.001569779939),
    )
    part = fma_exact(high, 0.8125, fma(high + rest, d, rest * 0.8125))
    # Divided before it is scaled, so that it may be small where beta is too. 1 / beta to twice the bits of float32.
    inverse = 1.0 / beta
    inverse_low = fma_exact(-inverse, beta, 1.0) * inverse
    part = fma_exact(part, inverse, part * select(abs_(inverse_low) < math.inf, inverse_low, 0.0))
    y = select(scaled > 0.0, x, 0.0) + scale_exp2(select(zero, 0.0, part), n, t)
    return select(scaled > threshold, x, y)


@composite
def mish(x):
    """``x * tanh(softplus(x))``, with subnormal results."""
    high, rest, n, t, z, zero = _exp_of_size(x, 0.0, 110.0)
    # Negative x: x z (2 + z) / (2 + 2 z + z**2), the quotient as 1 + z q.
    q = z * polynomial(
        z,
        *(-0.002325661946, 0.01030292455, -0.01102386974, -0.03185525537, 0.1375732124),
        *(-0.2530754507, 0.2504338026, -3.045024096e-05, -0.4999992549),
    )
    quotient = fma(x, q, x)
    lost = fma_exact(x, q, x - quotient)
    product = fma_exact(quotient, high, fma(lost, high, quotient * rest))
    small = scale_exp2(select(zero, quotient * 0.0, product), n, t)
    # Positive x: x - x * 2 z**2 / (1 + 2 z + 2 z**2).
    divisor = fma_exact(z, fma(z, 2.0, 2.0), 1.0)
    square = (z + z) * z
    loss = quotient_near(square, divisor)
    return copysign(select(x < 0.0, small, select(zero, x, fma_exact(-loss, x, x))), x)


def _mish_wide_lp(x, reciprocal):
    """``x * (z**2 + 2 z) / (z**2 + 2 z + 2)`` with ``z = exp(x)``."""
    w = beyond_underflow(minq(40.0, x * LOG2E))
    p = split_exp2_lp(w)
    z = scale_floor(p, w)
    upper = z + 2.0
    # One z comes last, so that it may be small where x is large.
    return scale_floor(x * (upper * reciprocal(fma(z, upper, 2.0))) * p, w)


@composite
def mish_bf16(x):
    """`mish` for results that are rounded to bfloat16."""
    return _mish_wide_lp(x, reciprocal_lp) if scales_natively(x) else mish_lp(x)


@composite
def mish_lp(x):
    """`mish` to a relative error of 1e-5."""
    if scales_natively(x):
        return _mish_wide_lp(x, reciprocal_half)
    negative = x < 0.0
    z, factor = tail_exp_lp(-abs_(x))
    upper = fma(z, select(negative, 1.0, 2.0), select(negative, 2.0, 1.0))
    lower = fma(select(negative, upper, z + z), z, select(negative, 2.0, upper))
    return x * (upper * reciprocal_half(lower)) * select(negative, z * factor, 1.0)


def quotient_near(x, y):
    """``x / y`` within 1 ulp, for normal `y` with a normal reciprocal."""
    if not scales_natively(y):
        return x / y
    # On wide vectors a division costs as much as thirty multiplications.
    v = reciprocal_lp(y)
    quotient = x * v
    return fma(fma(-quotient, y, x), v, quotient)


@composite
def hardsigmoid(x):
    """``min(max(x + 3, 0), 6) / 6``."""
    y = minq(6.0, maxq(0.0, x + 3.0))
    # See `quotient_near`.
    return fma(y, 0.16666667163, y * -4.967053731e-9) if scales_natively(y) else y / 6.0


@composite
def hardswish(x):
    """``x * hardsigmoid(x)``."""
    return x * hardsigmoid(x)
