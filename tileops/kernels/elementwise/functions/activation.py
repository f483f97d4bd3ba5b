"""Activations."""

from __future__ import annotations

from typing import Any

from tileops.jit import lang


def relu(x: Any) -> Any:
    return lang.maximum(0.0, x)  # the second where they are equal: -0 stays


def leaky_relu(x: Any, negative_slope: Any) -> Any:
    return lang.select(x > 0.0, x, x * negative_slope)


def prelu(x: Any, weight: Any) -> Any:
    return lang.select(x > 0.0, x, x * weight)


def elu(x: Any, alpha: Any) -> Any:
    return lang.elu(x, alpha)


def elu_unbounded(x: Any, alpha: Any) -> Any:
    """`elu` of an infinite `alpha`, which the parts of its result cancel to NaN."""
    return lang.select(x < 0.0, -alpha, x)


def selu(x: Any) -> Any:
    return lang.selu(x)


def silu(x: Any) -> Any:
    return lang.silu(x)


def silu_bf16(x: Any) -> Any:
    return lang.silu_bf16(x)


def silu_lp(x: Any) -> Any:
    return lang.silu_lp(x)


def mish(x: Any) -> Any:
    return lang.mish(x)


def mish_bf16(x: Any) -> Any:
    return lang.mish_bf16(x)


def mish_lp(x: Any) -> Any:
    return lang.mish_lp(x)


def softplus(x: Any, beta: Any, threshold: Any) -> Any:
    return lang.softplus(x, beta, threshold)


def gelu(x: Any, *, approximate: str) -> Any:
    return lang.gelu_tanh(x) if approximate == "tanh" else lang.gelu(x)


def gelu_bf16(x: Any, *, approximate: str) -> Any:
    return lang.gelu_tanh_bf16(x) if approximate == "tanh" else lang.gelu_lp(x)


def gelu_lp(x: Any, *, approximate: str) -> Any:
    return lang.gelu_tanh_lp(x) if approximate == "tanh" else lang.gelu_lp(x)


def hardsigmoid(x: Any) -> Any:
    return lang.hardsigmoid(x)


def hardswish(x: Any) -> Any:
    return lang.hardswish(x)


def hardtanh(x: Any, low: Any, high: Any) -> Any:
    return lang.minimum(high, lang.maximum(low, x))
