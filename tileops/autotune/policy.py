"""Which config a kernel is built with: a record's, a fresh search's, or the default."""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

from tileops import settings
from tileops.autotune.problem import record_key
from tileops.autotune.record import applicable, default_records
from tileops.jit.artifact import ArtifactKey

log = logging.getLogger("tileops.autotune")

_locks: dict[str, threading.Lock] = {}
_locks_guard = threading.Lock()
_said: set[str] = set()


def tuning_refusal() -> str | None:
    """Why nothing may be measured just now, or None.

    Under deterministic algorithms the choice must not depend on timing; under ``TILEOPS_JIT=forbid``
    nothing may be compiled; a call that is being traced or captured into a CUDA graph must not launch
    anything else.
    """
    if settings.current().jit == "forbid":
        return "TILEOPS_JIT=forbid"
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    if torch.are_deterministic_algorithms_enabled():
        return "torch.use_deterministic_algorithms"
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return "tracing"
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return "CUDA graph capture"
    return None


def lookup(kernel: type[Any], call: Any, key: ArtifactKey | None = None) -> dict[str, Any] | None:
    """The recorded config of `kernel` for `call`, if there is a record and it is still a valid point for
    this call.

    Costs one read of the store for each problem and process; a record that does not fit is ignored with one
    log line. None under `torch.use_deterministic_algorithms`, where results must not depend on what was
    measured.

    Args:
        kernel: a kernel class.
        call: its call spec.
        key: `record_key` of both, where it is known.
    """
    if kernel.tile_space is None:
        return None
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.are_deterministic_algorithms_enabled():
        return None
    return applicable(kernel, call, default_records().get(key or record_key(kernel, call)))


def config_for(kernel: type[Any], call: Any, tuned: bool, **options: Any) -> dict[str, Any]:
    """The config to build `kernel` with for `call`.

    Args:
        kernel: a kernel class.
        call: its call spec.
        tuned: whether the op is in tuned mode: use a record, or search once before the first launch. Else the
            default.
        **options: passed on to `tune`.

    Returns:
        The recorded or newly found config; the default where nothing may be measured now (one log line).

    Raises:
        TuningError: a search was made, and its every candidate failed.
    """
    if not tuned or kernel.tile_space is None:
        return dict(kernel.default_config(call))
    found = lookup(kernel, call)
    if found is not None:
        return found
    reason = tuning_refusal()
    if reason is not None:
        _say_once(f"{kernel.__qualname__} runs with its default config: no tuning under {reason}")
        return dict(kernel.default_config(call))
    from tileops.autotune.session import tune

    with _lock(record_key(kernel, call).digest):
        found = lookup(kernel, call)  # another thread may have searched meanwhile
        if found is None:
            (result,) = tune(kernel, call, **options).kernels
            found = dict(result.best)
    return found


def _lock(name: str) -> threading.Lock:
    with _locks_guard:
        return _locks.setdefault(name, threading.Lock())


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        log.warning("%s", text)
