"""What a process did with kernels, and doing it early: counts, hooks, loading at start-up.

tileops.stats()                     counts of the process
tileops.stats(by="op")              the same for each operator
tileops.preload("calls.jsonl")      loads what recorded calls need; compiles nothing
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

from tileops import autotune, jit
from tileops.jit.store import built_for, built_label

if TYPE_CHECKING:
    from tileops.ops.base import Op

_log = logging.getLogger("tileops.ops")


@dataclass(frozen=True)
class Stats:
    """Counts since the process started.

    Attributes:
        hits: new kinds of calls that a kernel served which the operator held already. (Calls of a kind that was
            seen before are not counted: counting would cost as much as the call.)
        misses: new kinds of calls that needed another kernel.
        loaded: compiled kernels that were found in a cache.
        compiled: kernels that were compiled.
        failed: kernels that did not compile.
        refused: calls that no kernel serves.
        tuned: searches for tile parameters that measured something; a record that is used is none.
        seconds: time spent compiling and loading.
    """

    hits: int = 0
    misses: int = 0
    loaded: int = 0
    compiled: int = 0
    failed: int = 0
    refused: int = 0
    tuned: int = 0
    seconds: float = 0.0


Countable = Literal["hits", "misses", "refused", "tuned"]
_COUNTED = ("hits", "misses", "refused", "tuned")

_lock = threading.Lock()
_counts: defaultdict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(_COUNTED, 0))


def count(op: str, what: Countable) -> None:
    """Adds one to a count of an operator."""
    with _lock:
        _counts[op][what] += 1


@contextmanager
def counting_tunes(op: str) -> Iterator[None]:
    """Inside the block, searches that this thread makes count for an operator."""
    thread = threading.get_ident()

    def tuned(report: Any) -> None:
        if report.measured and threading.get_ident() == thread:  # else the report is of a record
            count(op, "tuned")

    stop = autotune.on_tune(tuned)
    try:
        yield
    finally:
        stop()


@overload
def stats(by: None = None) -> Stats: ...
@overload
def stats(by: Literal["op"]) -> dict[str, Stats]: ...


def stats(by: Literal["op"] | None = None) -> Stats | dict[str, Stats]:
    """What this process did with kernels.

    Args:
        by: "op" for the counts of each operator by name, None for their sums. Kernels that no operator asked for
            (those of `tileops.gemm.pack`, for example) are in the sums alone.

    Raises:
        ValueError: `by` is something else.
    """
    if by not in (None, "op"):
        raise ValueError(f"tileops.stats: by={by!r}: expected None or 'op'")
    with _lock:
        counts = {op: dict(of) for op, of in _counts.items()}
    if by is None:
        total = {name: sum(of[name] for of in counts.values()) for name in _COUNTED}
        return _stats(jit.stats(), total)
    built = jit.stats_by_label()
    return {op: _stats(built.get(op, jit.Stats()), counts.get(op, {})) for op in sorted({*counts, *built})}


def _stats(built: jit.Stats, counts: Mapping[str, int]) -> Stats:
    return Stats(
        loaded=built.loaded,
        compiled=built.compiled,
        failed=built.failed,
        seconds=built.compile_seconds + built.load_seconds,
        **counts,
    )


def reset() -> None:
    """Forgets the counts (tests)."""
    with _lock:
        _counts.clear()


# At start-up


@dataclass(frozen=True)
class PreloadReport:
    """What `preload` did.

    Attributes:
        loaded: kernels that are ready now.
        missing: (operator, program) of those that no cache holds; their first call compiles them.
        seconds: how long it took.
    """

    loaded: int
    missing: tuple[tuple[str, str], ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing

    def __str__(self) -> str:
        lines = [f"{self.loaded} kernels loaded, {len(self.missing)} missing, {self.seconds:.2f} s"]
        return "\n".join([*lines, *(f"  {op}: {program}" for op, program in self.missing)])


def preload(
    calls: str | os.PathLike[str] | None = None, *, ops: Iterable[str | type[Op]] | None = None
) -> PreloadReport:
    """Loads the kernels of calls into this process, so that no request waits for it. Compiles nothing.

    Args:
        calls: a file that ``TILEOPS_RECORD`` or `tileops.record` wrote; by default the manifest's cases.
        ops: only these operators, by class or name.

    Returns:
        Counts, and what no cache holds (`tileops.warm` compiles it).

    Raises:
        TileOpsError: an unknown operator, or a calls file that cannot be read.
    """
    from tileops.ops.warming import needs

    started = time.perf_counter()
    loaded = 0
    missing = []
    for need in needs(ops, calls=calls).programs:
        with built_for(need.op):
            if jit.load(need.program):
                loaded += 1
            else:
                missing.append((need.op or "the application", need.program.factory))
    return PreloadReport(loaded, tuple(missing), time.perf_counter() - started)


_watching = False


def warmed() -> None:
    """From now on a compile in this process is worth a warning: `tileops.warm` said that it was done."""
    global _watching
    if not _watching:
        _watching = True
        jit.on_compile(_report)


def _report(event: jit.CompileEvent) -> None:
    _log.warning(
        "%s: compiled %s in %.2f s although tileops.warm had finished: the call was not among those warmed. Record "
        "the calls of the application (TILEOPS_RECORD) and warm those",
        built_label() or "tileops",
        event.program.factory,
        event.seconds,
    )


def _renew_lock() -> None:
    """In a forked child: a lock that another thread of the parent held would never be released."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
