"""Choices among elements: by a condition, by bounds, by what is not a number."""

from __future__ import annotations

import math
from typing import Any

from tileops.jit import lang


def where(condition: Any, a: Any, b: Any) -> Any:
    return lang.select(condition, a, b)


def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    return lang.select(mask, value, x)


def clamp_scalar(x: Any, low: Any, high: Any) -> Any:
    # The bounds first: of zeros of both signs the second stays.
    x = x if low is None else lang.maximum(low, x)
    return x if high is None else lang.minimum(high, x)


def nan_to_num(x: Any, nan: Any, posinf: Any, neginf: Any) -> Any:
    finite = lang.select(x == math.inf, posinf, lang.select(x == -math.inf, neginf, x))
    return lang.select(x != x, nan, finite)


# Operators that differ in what is a tensor, and no more.
masked_fill_scalar = masked_fill
clamp_tensor = clamp_scalar
# Choosing moves values and does not look at them.
where_bits = where
masked_fill_bits = masked_fill_scalar_bits = masked_fill
