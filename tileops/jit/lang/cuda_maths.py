"""What some words of the vocabulary are on a GPU, which has instructions for powers of two and quotients.

A word that is not here runs its general form (polynomials in float32), which needs no such instruction, so that its
bits are those of the CPU. The hardware's exponentials and quotients have errors of 2 ulp each, so that they serve
softmax and results of 16 bits, with the special values of the general forms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from tileops.jit.lang import context
from tileops.jit.lang.arith import abs_, as_float, as_int, fma, ldexp, maxq, minq, select
from tileops.jit.lang.values import Value, as_f32

if TYPE_CHECKING:
    from tileops.jit.lang.cuda_emitter import CudaEmitter

_LOG2E = 1.44269504
_LN2_HIGH, _LN2_LOW = 0.693145752, 1.42860677e-6
# Adding and subtracting 1.5 * 2**23 rounds to an integer, which stands in the low bits of the sum.
_ROUND = 12582912.0
_ROUND_BITS = 0x4B400000


def _ptx(instruction: str, *args: Value) -> Value:
    """A float32 instruction of the GPU."""
    sources = ", ".join(f"${i + 1}" for i in range(len(args)))
    emitter = cast("CudaEmitter", context.emitter())
    (result,) = emitter.ptx(f"{instruction} $0, {sources};", [args[0].ir.type], [arg.ir for arg in args])
    return Value(result, args[0].kind)


def _quotient(x: Value, y: Value) -> Value:
    return _ptx("div.full.f32", as_f32(x), as_f32(y))


def _reduced_exp(x: Value) -> tuple[Value, Value]:
    """``(t, p)``: ``exp(x) = p * 2**n`` with p near 1; the low bits of t hold n."""
    t = fma(x, _LOG2E, _ROUND)
    n = t - _ROUND
    r = fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x))
    return t, _ptx("ex2.approx.ftz.f32", r * _LOG2E)


def exp(x: Value) -> Value:
    """With subnormal results."""
    t, p = _reduced_exp(x)
    y = ldexp(p, as_int(t) - _ROUND_BITS)
    y = select(x > 88.72284, float("inf"), y)
    return select(x < -103.98, 0.0, y)


def exp_fast(x: Value) -> Value:
    t, p = _reduced_exp(maxq(-87.33, x))
    return select(x < -87.33, 0.0, as_float(as_int(p) + (as_int(t) << 23)))


def exp2_fast(x: Value) -> Value:
    return _ptx("ex2.approx.ftz.f32", x)


def _logistic(numerator: Value, x: Value) -> Value:
    """``numerator * sigmoid(x)``; the exponential is that of a negative number, so that small results stay exact."""
    z = exp(-abs_(x))
    return _quotient(select(x < 0.0, numerator * z, numerator), 1.0 + z)


def sigmoid(x: Value) -> Value:
    return _logistic(as_f32(1.0, x.kind), x)


def silu(x: Value) -> Value:
    return _logistic(x, x)


def gelu_tanh(x: Value) -> Value:
    return _logistic(x, x * fma(x * x, 0.0713548163, 1.5957691216))


def mish(x: Value) -> Value:
    # tanh(log(1 + e)) = n / (n + 2) with n = e (e + 2)
    e = exp(minq(20.0, x))
    n = e * (e + 2.0)
    return x * _quotient(n, n + 2.0)


#: Name of a word -> its form on CUDA.
FORMS: dict[str, Callable[..., Any]] = {
    "exp_fast": exp_fast,
    "exp_lp": exp_fast,
    "exp2_fast": exp2_fast,
    "exp2_lp": exp2_fast,
    "gelu_tanh_lp": gelu_tanh,
    "mish_lp": mish,
    "sigmoid_lp": sigmoid,
    "silu_lp": silu,
}
#: Likewise where results are rounded to 16 bits, a thousand times the error of these forms or more.
HALF_FORMS = FORMS | {"exp": exp, "gelu_tanh": gelu_tanh, "mish": mish, "sigmoid": sigmoid, "silu": silu}
