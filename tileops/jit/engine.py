"""From programs to loaded entries: memory, then the stores, then the compiler; each key once per process."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tileops import settings
from tileops.errors import ColdKernelError, KernelCompileError, TileOpsError
from tileops.jit import recording
from tileops.jit.artifact import Artifact, ArtifactKey
from tileops.jit.interrupts import to_the_end
from tileops.jit.keys import key_for
from tileops.jit.program import Program
from tileops.jit.store import Store, built_label, default_store


class Entry(Protocol):
    """A loaded kernel.

    Attributes:
        launch: CPU: ``launch(threads, n, *args)``; CUDA: ``launch(grid, *args)`` on torch's current stream.
        program: what was compiled.
    """

    program: Program
    launch: Callable[..., None]


@dataclass(frozen=True)
class Stats:
    """Counts of this process.

    Attributes:
        compiled: kernels compiled here.
        loaded: kernels found in a store and loaded.
        compile_seconds: time spent compiling.
        load_seconds: time spent reading and loading, of kernels compiled here too.
        failed: kernels that did not compile.
    """

    compiled: int = 0
    loaded: int = 0
    compile_seconds: float = 0.0
    load_seconds: float = 0.0
    failed: int = 0


@dataclass(frozen=True)
class CompileEvent:
    """What `on_compile` hooks are told.

    Attributes:
        program: what was compiled.
        target: what it was compiled for.
        seconds: how long that took.
    """

    program: Program
    target: Any
    seconds: float


class _Slot:
    """The state of one program for one target: being built, loaded, or failed for good."""

    __slots__ = ("entry", "error", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.entry: Entry | None = None
        self.error: KernelCompileError | None = None


_slots: dict[tuple[Program, Any], _Slot] = {}
_guard = threading.Lock()
_stats = Stats()
_stats_of: dict[str, Stats] = {}
_hooks: list[Callable[[CompileEvent], None]] = []


def get_entry(program: Program, target: Any = None) -> Entry:
    """The loaded entry of `program`: from memory, else from a store, else compiled, published and loaded.

    Threads that ask for the same program at once wait for one build. An error of the compiler is remembered:
    the same request raises it again at once. Processes that share a store compile a program once between
    them.

    Args:
        program: what is wanted.
        target: what for; by default the CPU that ``TILEOPS_CPU`` chooses, or the current CUDA device.

    Raises:
        KernelCompileError: the program does not compile.
        ColdKernelError: it is in no store and ``TILEOPS_JIT=forbid``, or it is not in memory and a CUDA graph is being
            captured.
    """
    if built_label() is None:
        recording.record_program(program)  # what an operator asks for follows from its call, which is recorded
    if target is None:
        target = default_target(program.device)
    slot = _slots.get((program, target))
    if slot is None:
        with _guard:
            slot = _slots.setdefault((program, target), _Slot())
    if slot.entry is not None:
        return slot.entry
    if program.device == "cuda":
        _refuse_capture(program)
    with slot.lock:
        if slot.entry is None:
            if slot.error is not None:
                raise KernelCompileError(str(slot.error)) from slot.error
            try:
                slot.entry = _build(program, target)
            except ColdKernelError:
                raise
            except KernelCompileError as error:
                slot.error = error
                _count(failed=1)
                raise
        return slot.entry


def _refuse_capture(program: Program) -> None:
    """Loading a kernel waits for the device, which would end the capture with an error of the driver."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise ColdKernelError(
            f"{program} is not loaded yet, and no kernel can be loaded while a CUDA graph is captured; make this call "
            "once before the capture, or load it at start-up with `tileops.preload`."
        )


def compile_program(program: Program, target: Any = None) -> Artifact:
    """Compiles `program` for `target`, without looking in any store and without loading it.

    Raises:
        KernelCompileError: it does not compile.
    """
    if target is None:
        target = default_target(program.device)
    start = time.perf_counter()
    artifact = to_the_end(_compiler(program.device), program, target)
    seconds = time.perf_counter() - start
    _count(compiled=1, compile_seconds=seconds)
    for hook in tuple(_hooks):
        hook(CompileEvent(program, target, seconds))
    return artifact


def _compiler(device: str) -> Callable[[Program, Any], Artifact]:
    if device == "cpu":
        from tileops.jit.cpu import kernel

        return kernel.compile_program
    from tileops.jit import cuda

    return cuda.compile_program


def warm(program: Program, target: Any = None) -> bool:
    """Puts `program` into the store unless it is there; True if it was compiled now. Nothing is loaded.

    Raises:
        KernelCompileError: it does not compile.
        TileOpsError: the store cannot keep it.
    """
    if target is None:
        target = default_target(program.device)
    store, key = default_store(), key_for(program, target)
    if store.get(key) is not None:
        return False
    with store.lock(key):
        if store.get(key) is not None:
            return False
        if not store.put(key, compile_program(program, target)):
            raise TileOpsError(f"compiled, but the cache at {store.root} does not keep it: {store.fault()}")
    return True


def default_target(device: str) -> Any:
    """The CPU target in force, or that of the current CUDA device."""
    if device == "cpu":
        from tileops.jit.cpu.target import cpu_target

        return cpu_target()
    from tileops.jit import cuda

    return cuda.cuda_target()


def stats() -> Stats:
    """Counts of this process since its start or the last `reset`."""
    return _stats


def on_compile(hook: Callable[[CompileEvent], None]) -> Callable[[], None]:
    """Calls `hook` after each compile, in the compiling thread, until the returned function is called."""
    _hooks.append(hook)

    def stop() -> None:
        if hook in _hooks:
            _hooks.remove(hook)

    return stop


def stats_by_label() -> dict[str, Stats]:
    """The same counts by what the kernels were built for (see `store.built_for`)."""
    with _guard:
        return dict(_stats_of)


def load(program: Program, target: Any = None) -> bool:
    """Loads `program` if a store holds it, and never compiles; whether it is loaded now.

    Args:
        program: what is wanted.
        target: what for; by default as for `get_entry`.
    """
    if target is None:
        target = default_target(program.device)
    with _guard:
        slot = _slots.setdefault((program, target), _Slot())
    with slot.lock:
        if slot.entry is None:
            slot.entry = _load_stored(default_store(), key_for(program, target), program, target)
        return slot.entry is not None


def reset() -> None:
    """Forgets every entry, error and count of this process (tests)."""
    global _stats
    with _guard:
        _slots.clear()
        _stats_of.clear()
        _stats = Stats()


def _count(**changes: float) -> None:
    global _stats
    label = built_label()
    with _guard:
        _stats = _plus(_stats, changes)
        if label is not None:
            _stats_of[label] = _plus(_stats_of.get(label, Stats()), changes)


def _plus(before: Stats, changes: dict[str, float]) -> Stats:
    return replace(before, **{name: getattr(before, name) + value for name, value in changes.items()})


def _build(program: Program, target: Any) -> Entry:
    store, key = default_store(), key_for(program, target)
    entry = _load_stored(store, key, program, target)
    if entry is not None:
        return entry
    if settings.current().jit == "forbid":
        raise ColdKernelError(_cold_message(store, key, program, target))
    with store.lock(key):
        # Another process may have published it while we waited for the lock.
        entry = _load_stored(store, key, program, target)
        if entry is not None:
            return entry
        artifact = compile_program(program, target)
        store.put(key, artifact)
    start = time.perf_counter()
    entry = _load(program, target, artifact)
    _count(load_seconds=time.perf_counter() - start)
    return entry


def _load_stored(store: Store, key: ArtifactKey, program: Program, target: Any) -> Entry | None:
    start = time.perf_counter()
    artifact = store.get(key)
    if artifact is None:
        return None
    try:
        entry = _load(program, target, artifact)
    except (KernelCompileError, KeyError) as error:
        store.reject(key, str(error))
        return None
    _count(loaded=1, load_seconds=time.perf_counter() - start)
    return entry


def _load(program: Program, target: Any, artifact: Artifact) -> Entry:
    if program.device == "cpu":
        from tileops.jit.cpu import kernel

        return kernel.load_entry(program, target, artifact)
    from tileops.jit import cuda

    return cuda.load(artifact, program)


def _cold_message(store: Store, key: ArtifactKey, program: Program, target: Any) -> str:
    text = (
        f"{program} for {target} is in no cache and compiling is forbidden (TILEOPS_JIT=forbid); "
        f"its key is {key.digest}."
    )
    nearest = store.nearest(key)
    if nearest is not None:
        digest, fields = nearest
        listed = "; ".join(f"{name}: wanted {ours!r}, stored {theirs!r}" for name, (ours, theirs) in fields.items())
        text += f" The nearest stored key {digest[:12]} differs in {listed}."
    return text + " Compile it beforehand with `tileops warm`, or unset TILEOPS_JIT."


def _renew_locks() -> None:
    """In a forked child: a lock that another thread of the parent held would never be released."""
    global _guard
    _guard = threading.Lock()
    for slot in list(_slots.values()):
        slot.lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)
