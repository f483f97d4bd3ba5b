"""The logistic function and its relatives."""

from __future__ import annotations

from tileops.jit.lang.arith import abs_, copysign, fma, minq, reciprocal_lp, select
from tileops.jit.lang.maths.exponential import exp_fast, exp_lp, polynomial, scale_exp2, split_exp, tail_exp_lp
from tileops.jit.lang.words import composite


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


def times_sigmoid(numerator, negative, zero, x, low=0.0):
    """``numerator * sigmoid(±(x + low))`` for ``-150 <= x <= 0``, the sign as `negative` says; 0 where also `zero`.

    Two roundings that matter, of the quotient and of the product with the exponential: below 2 ulp.
    """
    high, rest, n, t = split_exp(x, low)
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
    return times_sigmoid(1.0, x < 0.0, a > 104.0, -minq(110.0, a))


@composite
def sigmoid_lp(x):
    """`sigmoid` to a relative error of 1.6e-4."""
    z, factor = tail_exp_lp(-abs_(x))
    return select(x < 0.0, z * factor, 1.0) * reciprocal_lp(1.0 + z)


@composite
def silu(x):
    """``x * sigmoid(x)``, with subnormal results."""
    a = abs_(x)
    return times_sigmoid(x, x < 0.0, a > 109.0, -minq(110.0, a))


@composite
def silu_lp(x):
    """`silu` to a relative error of 1.6e-4."""
    z, factor = tail_exp_lp(-abs_(x))
    return x * (select(x < 0.0, z, 1.0) * reciprocal_lp(1.0 + z)) * select(x < 0.0, factor, 1.0)
