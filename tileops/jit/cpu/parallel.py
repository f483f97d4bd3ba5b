"""Parallel launch: which OpenMP runtime runs kernels, and how many threads are worth it.

Kernels use the team of the runtime that torch has loaded, so that both share one set of threads: nothing is
oversubscribed and no second pool spins. The runtime's GNU entry point ``GOMP_parallel`` exists in libgomp
and, on Linux, in libomp and libiomp5.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tileops import settings
from tileops.errors import LauncherWarning, warn
from tileops.jit.cpu.wrapper import PARALLEL_SYMBOLS

#: Nanoseconds of serial work below which a parallel launch costs more than it saves.
SERIAL_BELOW_NS = 3_500.0
#: Nanoseconds of serial work above which other Python threads should get the GIL meanwhile.
RELEASE_GIL_ABOVE_NS = 20_000.0
#: Nanoseconds of serial work that each further thread should at least get.
SHARE_NS = 1_700.0
_CORES = os.cpu_count() or 1


@dataclass(frozen=True)
class Launcher:
    """A way to run a kernel on a team of threads.

    Attributes:
        name: ``"torch"``, ``"system"`` or ``"serial"``.
        library: path of the OpenMP runtime, None for serial.
        symbols: addresses of the entry points that wrappers call.
    """

    name: str
    library: str | None
    symbols: dict[str, int] = field(hash=False)

    def __str__(self) -> str:
        return f"{self.name} ({self.library})" if self.library else self.name


def launcher() -> Launcher:
    """The launcher that ``TILEOPS_LAUNCHER`` and the libraries of this process give."""
    return _launcher(settings.current().launcher)


@functools.cache
def _launcher(choice: str) -> Launcher:
    if choice in ("auto", "torch"):
        found = _from_loaded_libraries()
        if found is not None:
            return found
    if choice in ("auto", "system"):
        found = _from_system()
        if found is not None:
            return found
    if choice != "serial":
        warn(
            f"no OpenMP runtime was found (TILEOPS_LAUNCHER={choice}); CPU kernels run on one thread. "
            "Install libgomp, or set TILEOPS_LAUNCHER=serial to silence this.",
            LauncherWarning,
        )
    return _serial()


def _from_loaded_libraries() -> Launcher | None:
    """The runtime that torch works with: of the loaded ones, that in torch's own directory first."""
    if sys.platform != "linux":
        return None
    import torch  # noqa: F401  # loads its runtime

    paths = {
        match[0] for match in re.finditer(r"/\S*/lib(?:gomp|omp|iomp5)[^/\s]*\.so[^/\s]*", _read("/proc/self/maps"))
    }
    for path in sorted(paths, key=lambda path: ("/torch/" not in path, path)):
        symbols = _symbols(path)
        if symbols is not None:
            return Launcher("torch", path, symbols)
    return None


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def _from_system() -> Launcher | None:
    for name in ("gomp", "omp", "iomp5"):
        found = ctypes.util.find_library(name)
        if found is not None:
            symbols = _symbols(found)
            if symbols is not None:
                return Launcher("system", found, symbols)
    return None


def _symbols(library: str) -> dict[str, int] | None:
    try:
        handle = ctypes.CDLL(library)
        return {name: ctypes.cast(getattr(handle, name), ctypes.c_void_p).value or 0 for name in PARALLEL_SYMBOLS}
    except (OSError, AttributeError):
        return None


_SERIAL_IR = """
define void @GOMP_parallel(ptr %function, ptr %data, i32 %threads, i32 %flags) {
  call void %function(ptr %data)
  ret void
}
define i32 @omp_get_thread_num() {
  ret i32 0
}
define i32 @omp_get_num_threads() {
  ret i32 1
}
"""


@functools.cache
def _serial() -> Launcher:
    """The OpenMP entry points as functions that run a team of one."""
    from tileops.jit.cpu.loader import load
    from tileops.jit.cpu.target import cpu_target, target_machine
    from tileops.jit.cpu.wrapper import compile_ir

    loaded = load([compile_ir(_SERIAL_IR, target_machine(cpu_target("generic")))], PARALLEL_SYMBOLS, {})
    _keep.append(loaded)
    return Launcher("serial", None, loaded.addresses)


_keep: list[Any] = []


# -- how many threads ----------------------------------------------------------------------------------------

_get_num_threads: Callable[[], int] | None = None
_forked = False
#: The most threads that `direct` may use in this process: what `team` knows about forks, for native code.
ceiling = ctypes.c_int64(1 << 20)


def limit(work_ns: float) -> int:
    """The `threads` to launch with at most, for work that takes one thread `work_ns` nanoseconds.

    0: serial with the GIL held; 1: serial, GIL released; more: that many threads are useful. Ask once, when a
    call's sizes are known, and pass the result to `team` at every launch.
    """
    if work_ns < SERIAL_BELOW_NS:
        return 0
    if launcher().name == "serial":
        return 1 if work_ns > RELEASE_GIL_ABOVE_NS else 0
    useful = int(work_ns / SHARE_NS)
    return 2 if useful < 3 or _CORES < 3 else min(useful, _CORES)


def team(limit: int) -> int:
    """The `threads` of one launch: `limit`, but never more than torch uses, nor than one after a fork.

    (In a forked child the threads of the OpenMP runtime are gone, and using it would hang.)
    """
    if limit < 2:
        return limit
    if _forked:
        return 1
    global _get_num_threads
    if _get_num_threads is None:
        import torch

        _get_num_threads = torch.get_num_threads
    threads = _get_num_threads()
    return limit if limit < threads else threads


def threads(work_ns: float) -> int:
    """``team(limit(work_ns))``."""
    return team(limit(work_ns))


def _after_fork_in_child() -> None:
    global _forked
    _forked = True
    ceiling.value = 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def describe() -> Iterator[tuple[str, str]]:
    """Facts for `tileops doctor`."""
    chosen = launcher()
    yield "launcher", str(chosen)
    yield "threads", str(team(1 << 20))
