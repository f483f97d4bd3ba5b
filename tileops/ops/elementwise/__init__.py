"""Elementwise operators.

A class is made from its manifest entry when its name is first asked for (`family`). The few that need code of their
own are in the modules that `_WRITTEN` names.
"""

from __future__ import annotations

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


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return manifest.implemented_names("elementwise")
    if not name.endswith("Op") or name not in manifest.implemented_names("elementwise"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _WRITTEN:
        made = getattr(import_module(f"{__name__}.{_WRITTEN[name]}"), name)
    else:
        made = import_module(f"{__name__}.family").pointwise(name, __name__)
    return globals().setdefault(name, made)


def __dir__() -> list[str]:
    return sorted({*globals(), *manifest.implemented_names("elementwise")})
