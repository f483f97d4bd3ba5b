"""Arithmetic of two tensors, and of three."""

from __future__ import annotations

from typing import Any

from tileops.jit import lang


def add(a: Any, b: Any, alpha: Any) -> Any:
    if lang.is_mask(a):
        return a | (b & alpha)
    return lang.fma_exact(alpha, b, a) if lang.is_float(a) else a + alpha * b


def sub(a: Any, b: Any, alpha: Any) -> Any:
    return lang.fma_exact(-alpha, b, a) if lang.is_float(a) else a - alpha * b


def mul(a: Any, b: Any) -> Any:
    return a & b if lang.is_mask(a) else a * b


def div(a: Any, b: Any, *, rounding_mode: str | None) -> Any:
    if rounding_mode == "floor":
        return lang.floor_divide(a, b)
    return a / b if rounding_mode is None else lang.trunc(a / b)


def div_f16(a: Any, b: Any, *, rounding_mode: str | None) -> Any:
    return lang.quotient_f16(a, b) if rounding_mode is None else div(a, b, rounding_mode=rounding_mode)


def floor_divide(a: Any, b: Any) -> Any:
    return lang.floor_divide(a, b)


def remainder(a: Any, b: Any) -> Any:
    return lang.remainder(a, b)


def pow(a: Any, exponent: Any) -> Any:
    return lang.power(a, exponent)


def pow_lp(a: Any, exponent: Any) -> Any:
    return lang.power_lp(a, exponent)


def maximum(a: Any, b: Any) -> Any:
    return lang.maximum(a, b)


def minimum(a: Any, b: Any) -> Any:
    return lang.minimum(a, b)


def lerp(start: Any, end: Any, weight: Any) -> Any:
    # From the nearer end: exact at both, and monotonic.
    way = end - start
    return lang.select(lang.abs_(weight) < 0.5, lang.fma(weight, way, start), lang.fma(weight - 1.0, way, end))


# Of a number or a tensor.
lerp_tensor = lerp
