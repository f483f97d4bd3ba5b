"""The error function and gelu."""

from __future__ import annotations

from tileops.jit.lang.arith import abs_, copysign, fma, fma_exact, maxq, minq, reciprocal_lp, select
from tileops.jit.lang.maths.exponential import (
    LN2_HIGH,
    LN2_LOW,
    LOG2E,
    ROUND,
    beyond_underflow,
    exp_fast,
    polynomial,
    reciprocal_half,
    scale_exp2,
    scale_floor,
    scales_natively,
    split_exp,
    split_exp2_lp,
    tail_exp_lp,
)
from tileops.jit.lang.maths.sigmoid import quotient_near, times_logistic_lp, times_sigmoid
from tileops.jit.lang.maths.tables import ERF, GELU, GELU_LP, by_powers, near_points
from tileops.jit.lang.words import composite


@composite
def erf(x):
    """Error function: by intervals on wide vectors, else an odd polynomial, from 0.92 on ``1 - exp(polynomial)``."""
    a = abs_(x)
    if scales_natively(x):
        a = minq(4.1, a)
        return copysign(near_points(a, fma(a, 0.128379166, a), ERF), x)
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
    if scales_natively(x):
        return _gelu_wide(x)
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
    high, rest, n, t = split_exp(-0.5 * square, -0.5 * error)
    # The reciprocal with its rounding error: g changes by more than |x| does.
    b = a + 2.0
    v = quotient_near(1.0, b)
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


def _gelu_wide(x):
    """`gelu` on wide vectors: ``|x| Phi(-|x|)`` for every x, where one polynomial does not reach, by intervals."""
    size = abs_(x)
    a = minq(14.5, size)
    square = a * a
    error = fma_exact(a, a, -square)
    # exp(-x**2 / 2) = (1 + q) * 2**n, with -2 times the usual reduced argument.
    t = fma(square, -0.5 * LOG2E, ROUND)
    n = t - ROUND
    r = fma(n, 2 * LN2_HIGH, square) + fma(n, 2 * LN2_LOW, error)
    p = polynomial(r, 2.158521784e-05, -0.0002615232952, 0.002604274312, -0.02083315141, 0.1249999851, -0.5)
    g = near_points(a, 0.5 * a, GELU)
    # What underflows to 0 stays out of the scaling, see `_flushing_exp`.
    tail = scale_exp2(select(size > 14.4, 0.0, fma(p * r, g, g)), n, t)
    # Times 0 and not 0: -inf gives NaN.
    return select(x < 0.0, x * 0.0, x) - tail


@composite
def gelu_lp(x):
    """`gelu` to a relative error of 3e-5."""
    size = abs_(x)
    if scales_natively(x):
        # From 15 on the polynomial is another's, and the scale takes every number below 2**11 to 0.
        a = minq(40.0, size)
        w = beyond_underflow(a * (-0.5 * LOG2E) * a)
        tail = scale_floor(by_powers(a, GELU_LP) * split_exp2_lp(w), w)
        # Times 0 and not 0: -inf gives NaN.
        return select(x < 0.0, x * 0.0, x) - tail
    a = minq(14.5, size)
    v = reciprocal_half(a + 2.0)
    p = polynomial(
        v,
        *(-5.37940073, 13.91465282, -12.50846291, 3.165542364, 0.9185509682, 0.8142076731, 0.398570329),
    )
    z, factor = tail_exp_lp(-0.5 * a * a)
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
    return times_sigmoid(x, x < 0.0, size > 10.8, u, u_low)


def _gelu_tanh_wide_lp(x, reciprocal):
    """``x * sigmoid(2 u)``, 2 u as an exponent of 2."""
    return times_logistic_lp(x, x * fma(x * x, 0.1029432397, 2.302208199), reciprocal)


@composite
def gelu_tanh_bf16(x):
    """`gelu_tanh` for results that are rounded to bfloat16."""
    return _gelu_tanh_wide_lp(x, reciprocal_lp) if scales_natively(x) else gelu_tanh_lp(x)


@composite
def gelu_tanh_lp(x):
    """`gelu_tanh` to a relative error of 3e-5."""
    if scales_natively(x):
        return _gelu_tanh_wide_lp(x, reciprocal_half)
    u = x * fma(x * x, 0.0713548163, 1.5957691216)
    z, factor = tail_exp_lp(-abs_(u))
    return x * (select(u < 0.0, z, 1.0) * reciprocal_half(1.0 + z)) * select(u < 0.0, factor, 1.0)
