"""Tuning of tile parameters by measurement.

`tune` searches the tile space of a kernel class for one call and records the winner, `lookup` finds a
record, and `config_for` decides which of the two, or the kernel's default, a build uses.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tileops.autotune.policy import config_for, lookup, tuning_refusal
    from tileops.autotune.report import KernelReport, Report
    from tileops.autotune.session import on_tune, tune
    from tileops.autotune.space import TileSpace

__all__ = ["KernelReport", "Report", "TileSpace", "config_for", "lookup", "on_tune", "tune", "tuning_refusal"]

_HOMES = {
    "KernelReport": "report",
    "Report": "report",
    "TileSpace": "space",
    "config_for": "policy",
    "lookup": "policy",
    "on_tune": "session",
    "tune": "session",
    "tuning_refusal": "policy",
}


def __getattr__(name: str) -> Any:
    # Kernel modules import `autotune.space`, so the package itself must load nothing else.
    if name in _HOMES:
        return getattr(import_module(f"tileops.autotune.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
