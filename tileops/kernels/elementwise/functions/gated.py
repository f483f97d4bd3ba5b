"""Gated activations: of a gate and a value."""

from __future__ import annotations

from typing import Any

from tileops.jit import lang


def silu_and_mul(gate: Any, up: Any) -> Any:
    return lang.silu(gate) * up


def silu_and_mul_bf16(gate: Any, up: Any) -> Any:
    return lang.silu_bf16(gate) * up


def silu_and_mul_lp(gate: Any, up: Any) -> Any:
    return lang.silu_lp(gate) * up


def gelu_and_mul(gate: Any, up: Any) -> Any:
    return lang.gelu(gate) * up


def gelu_and_mul_lp(gate: Any, up: Any) -> Any:
    return lang.gelu_lp(gate) * up


def gelu_tanh_and_mul(gate: Any, up: Any) -> Any:
    return lang.gelu_tanh(gate) * up


def gelu_tanh_and_mul_bf16(gate: Any, up: Any) -> Any:
    return lang.gelu_tanh_bf16(gate) * up


def gelu_tanh_and_mul_lp(gate: Any, up: Any) -> Any:
    return lang.gelu_tanh_lp(gate) * up
