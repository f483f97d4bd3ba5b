"""Elementwise operators.

A class is made from its manifest entry when its name is first asked for (`family`). The few that need code of their
own are in the modules that `_WRITTEN` names.
"""

from __future__ import annotations

import os
import threading
from importlib import import_module
from typing import Any

from tileops import manifest

#: Module of each class that is written out.
_WRITTEN = {
    "AlibiFwdOp": "positions",
    "DropoutFwdOp": "variations",
    "EluFwdOp": "variations",
    "GeluAndMulFwdOp": "gated",
    "GeluTanhAndMulFwdOp": "gated",
    "NanToNumFwdOp": "variations",
    "PreluFwdOp": "variations",
    "RoundFwdOp": "variations",
    "SiluAndMulBwdOp": "silu_and_mul_bwd",
    "SiluAndMulFwdOp": "gated",
    "SinusoidalFwdOp": "positions",
}

#: One thread makes a class, whose operators torch takes once.
_making = threading.RLock()


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return manifest.implemented_names("elementwise")
    if not name.endswith("Op") or name not in manifest.implemented_names("elementwise"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _making:
        if name not in globals():
            globals()[name] = _made(name)
    return globals()[name]


def _made(name: str) -> Any:
    if name in _WRITTEN:
        return getattr(import_module(f"{__name__}.{_WRITTEN[name]}"), name)
    return import_module(f"{__name__}.family").pointwise(name, __name__)


def _after_fork() -> None:
    """A child does not wait for a thread that it does not have."""
    global _making
    _making = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def __dir__() -> list[str]:
    return sorted({*globals(), *manifest.implemented_names("elementwise")})
