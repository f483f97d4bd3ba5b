"""Rounding of one tensor to whole numbers; integers are whole already."""

from __future__ import annotations

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
    # Large numbers are whole already; scaled up, they might overflow.
    whole = (lang.abs_(x) >= 2.0**23) & (decimals > 0.0)
    return lang.select(whole, x, lang.round_decimals(x, decimals))
