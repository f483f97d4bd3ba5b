"""Mathematics of one tensor."""

from __future__ import annotations

from typing import Any

from tileops.jit import lang


def exp(x: Any) -> Any:
    return lang.exp(x)


def exp_lp(x: Any) -> Any:
    return lang.exp_half(x)


def expm1(x: Any) -> Any:
    return lang.expm1(x)


def log(x: Any) -> Any:
    return lang.log(x)


def log1p(x: Any) -> Any:
    return lang.log1p(x)


def sqrt(x: Any) -> Any:
    return lang.sqrt(x)


def rsqrt(x: Any) -> Any:
    return lang.rsqrt(x)


def reciprocal(x: Any) -> Any:
    return lang.reciprocal(x) if lang.is_float(x) else 1.0 / lang.to_float(x)


def reciprocal_f16(x: Any) -> Any:
    return lang.quotient_f16(1.0, x)


def abs(x: Any) -> Any:
    return lang.abs_(x)


def abs_bits(x: Any) -> Any:
    return x & 0x7FFF


def neg(x: Any) -> Any:
    return -x


def neg_bits(x: Any) -> Any:
    return x ^ -0x8000


def sign(x: Any) -> Any:
    return lang.sign(x)


def sin(x: Any) -> Any:
    return lang.sin(x)


def cos(x: Any) -> Any:
    return lang.cos(x)


def tanh(x: Any) -> Any:
    return lang.tanh(x)


def tanh_lp(x: Any) -> Any:
    return lang.tanh_lp(x)


def sigmoid(x: Any) -> Any:
    return lang.sigmoid(x)


def sigmoid_bf16(x: Any) -> Any:
    return lang.sigmoid_bf16(x)


def sigmoid_lp(x: Any) -> Any:
    return lang.sigmoid_lp(x)


def erf(x: Any) -> Any:
    return lang.erf(x)
