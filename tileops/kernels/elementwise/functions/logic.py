"""Comparisons, logic and bits."""

from __future__ import annotations

from typing import Any


def eq(a: Any, b: Any) -> Any:
    return a == b
