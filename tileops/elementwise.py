"""Elementwise operators."""

from __future__ import annotations

from typing import Any

from tileops.ops import elementwise


def __getattr__(name: str) -> Any:
    return getattr(elementwise, name)


def __dir__() -> list[str]:
    return dir(elementwise)
