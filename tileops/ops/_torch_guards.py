"""When may a call skip torch's dispatcher? The one module of `tileops.ops` that reads private names of torch.

A call on plain tensors launches its kernel directly, which saves several microseconds. That is only right
while nothing has to see the call: no dispatch mode, no functorch transform, no `torch.jit.trace`, no
profiler, no autocast. Torch answers these questions cheaply through private functions. They were read in
torch 2.13; each is checked at start-up for the two answers that matter. If one is missing, has changed, or
torch is outside `SUPPORTED`, every call takes the dispatcher, which is slower and always right.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from typing import Any

import torch

#: Versions of torch, first inclusive and last exclusive, in which these names were checked.
SUPPORTED = ((2, 13), (2, 15))

_NAMES = {
    "mode_depth": ("_C", "_len_torch_dispatch_stack"),
    "transform": ("_C", "_functorch", "peek_interpreter_stack"),
    "tracing": ("_C", "_is_tracing"),
    "profiling": ("_C", "_autograd", "_profiler_enabled"),
    "autocast": ("_C", "_is_any_autocast_enabled"),
}

_log = logging.getLogger("tileops.ops")


@dataclass(frozen=True)
class Guards:
    """The test that generated call functions inline.

    Attributes:
        expression: Python source that is true where a call on plain tensors may skip the dispatcher.
        names: the globals that `expression` reads.
        reason: why the expression is constantly false, or None.
    """

    expression: str
    names: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None


def _lookup(path: tuple[str, ...]) -> Any:
    found: Any = torch
    for name in path:
        found = getattr(found, name)
    return found


def _self_check(names: dict[str, Any]) -> str | None:
    """What answers wrongly, or None. Compares the answers with and without each thing that they detect."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Passive(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    depth = names["mode_depth"]()
    with Passive():
        if names["mode_depth"]() != depth + 1:
            return "mode_depth does not count dispatch modes"

    seen = []

    def probe(value: torch.Tensor) -> torch.Tensor:
        seen.append(names["transform"]())
        return value

    torch.func.vmap(probe)(torch.zeros(1))
    if not seen or seen[0] is None:
        return "transform does not see vmap"

    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=True):
        if not names["autocast"]():
            return "autocast does not see torch.autocast"
    if not isinstance(names["tracing"](), bool) or not isinstance(names["profiling"](), bool):
        return "tracing or profiling is no longer a flag"
    return None


def _version() -> tuple[int, int]:
    major, minor = re.match(r"(\d+)\.(\d+)", torch.__version__).groups()  # type: ignore[union-attr]
    return int(major), int(minor)


def _load() -> Guards:
    first, last = SUPPORTED
    if not first <= _version() < last:
        return Guards("False", reason=f"torch {torch.__version__} is outside {first} <= version < {last}")
    try:
        names = {name: _lookup(path) for name, path in _NAMES.items()}
    except AttributeError as error:
        return Guards("False", reason=f"torch {torch.__version__}: {error}")
    try:
        wrong = _self_check(names)
    except Exception as error:  # whatever a changed private function raises
        wrong = f"{type(error).__name__}: {error}"
    if wrong is not None:
        return Guards("False", reason=f"torch {torch.__version__}: {wrong}")
    return Guards(
        "not (mode_depth() or transform() is not None or tracing() or profiling() or autocast())", names
    )


_guards: Guards | None = None


def guards() -> Guards:
    """The guards of this process; looked up and checked once."""
    global _guards
    if _guards is None:
        _guards = _load()
        if _guards.reason is not None:
            _log.warning("calls take torch's dispatcher, which is slower: %s", _guards.reason)
    return _guards
