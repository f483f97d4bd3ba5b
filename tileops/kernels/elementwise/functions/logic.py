"""Comparisons, logic and bits."""

from __future__ import annotations

import math
from typing import Any

from tileops.jit import lang


def eq(a: Any, b: Any) -> Any:
    return a == b


def ne(a: Any, b: Any) -> Any:
    return a != b


def gt(a: Any, b: Any) -> Any:
    return a > b


def lt(a: Any, b: Any) -> Any:
    return a < b


def ge(a: Any, b: Any) -> Any:
    return a >= b


def le(a: Any, b: Any) -> Any:
    return a <= b


def _truth(x: Any) -> Any:
    return x if lang.is_mask(x) else x != 0


def logical_and(a: Any, b: Any) -> Any:
    return _truth(a) & _truth(b)


def logical_or(a: Any, b: Any) -> Any:
    return _truth(a) | _truth(b)


def logical_not(x: Any) -> Any:
    return ~_truth(x)


def bitwise_and(a: Any, b: Any) -> Any:
    return a & b


def bitwise_or(a: Any, b: Any) -> Any:
    return a | b


def bitwise_xor(a: Any, b: Any) -> Any:
    return a ^ b


def bitwise_not(x: Any) -> Any:
    return ~x


def isnan(x: Any) -> Any:
    return x != x


def isinf(x: Any) -> Any:
    return lang.abs_(x) == math.inf if lang.is_float(x) else x != x


def isfinite(x: Any) -> Any:
    return lang.abs_(x) < math.inf if lang.is_float(x) else x == x
