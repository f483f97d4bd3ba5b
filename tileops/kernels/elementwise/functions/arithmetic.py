"""Arithmetic of two tensors."""

from __future__ import annotations

from typing import Any

from tileops.jit import lang


def add(a: Any, b: Any, alpha: Any) -> Any:
    if lang.is_mask(a):
        return a | (b & alpha)
    return lang.fma(alpha, b, a) if lang.is_float(a) else a + alpha * b


def sub(a: Any, b: Any, alpha: Any) -> Any:
    return lang.fma(-alpha, b, a) if lang.is_float(a) else a - alpha * b


def mul(a: Any, b: Any) -> Any:
    return a & b if lang.is_mask(a) else a * b
