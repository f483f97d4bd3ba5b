"""Mathematics of one tensor."""

from __future__ import annotations

from typing import Any

from tileops.jit import lang


def exp(x: Any) -> Any:
    return lang.exp(x)
