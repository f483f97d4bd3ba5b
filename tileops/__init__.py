"""TileOPs: operators for language models, written in Numba and compiled on first use.

    >>> from tileops.norm import RMSNormFwdOp
    >>> op = RMSNormFwdOp(normalized_shape=(4096,))
    >>> y = op(x, weight)

Importing the package loads neither Numba nor Optuna nor a CUDA library; the first use of an operator does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tileops import settings
    from tileops.autotune import on_tune
    from tileops.jit import on_compile
    from tileops.ops.observing import preload, stats
    from tileops.ops.recording import record_calls as record
    from tileops.ops.warming import warm

__all__ = ["__version__", "on_compile", "on_tune", "preload", "record", "settings", "stats", "warm"]
__version__ = "0.1.0"

#: Where each name lives. The package itself must load neither torch nor anything behind it.
_HOMES = {
    "on_compile": ("tileops.jit", "on_compile"),
    "on_tune": ("tileops.autotune", "on_tune"),
    "preload": ("tileops.ops.observing", "preload"),
    "record": ("tileops.ops.recording", "record_calls"),
    "stats": ("tileops.ops.observing", "stats"),
    "warm": ("tileops.ops.warming", "warm"),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "settings":
        return import_module("tileops.settings")
    if name in _HOMES:
        module, attribute = _HOMES[name]
        return getattr(import_module(module), attribute)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
