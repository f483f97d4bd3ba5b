"""Rounding of one tensor to whole numbers; integers are whole already."""

from __future__ import annotations

import math
from typing import Any

from tileops.jit import lang


def floor(x: Any) -> Any:
    return lang.floor(x) if lang.is_float(x) else x


def ceil(x: Any) -> Any:
    return lang.ceil(x) if lang.is_float(x) else x


def trunc(x: Any) -> Any:
    return lang.trunc(x) if lang.is_float(x) else x


def round(x: Any) -> Any:
    return lang.rint(x) if lang.is_float(x) else x


def round_decimals(x: Any, decimals: Any) -> Any:
    # Large numbers are whole already. Others may still be scaled out of range: down to nothing, or up, by more places
    # than they have.
    whole = (lang.abs_(x) >= 2.0**23) & (decimals > 0.0)
    rounded = lang.select(whole, x, lang.round_decimals(x, decimals))
    beyond = lang.select((lang.abs_(x) < math.inf) & (decimals < 0.0), lang.copysign(0.0, x), x)
    return lang.select(lang.abs_(rounded) < math.inf, rounded, beyond)
