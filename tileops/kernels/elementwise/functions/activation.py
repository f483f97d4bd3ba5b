"""Activations."""

from __future__ import annotations

from typing import Any

from tileops.jit import lang


def relu(x: Any) -> Any:
    return lang.max_nan(x, 0.0)


def leaky_relu(x: Any, negative_slope: Any) -> Any:
    return lang.select(x > 0.0, x, x * negative_slope)
