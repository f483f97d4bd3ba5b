"""CPU programs: compiled to an artifact, and loaded into an entry that Python can launch."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.metadata
import os
import platform
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from tileops.errors import KernelCompileError
from tileops.jit.artifact import Artifact
from tileops.jit.cpu import direct_ir, parallel, wrapper
from tileops.jit.cpu._torch_tensors import address_of
from tileops.jit.cpu.elf import undefined_symbols
from tileops.jit.cpu.loader import LIBC_SYMBOLS, Loaded, load, python_symbol
from tileops.jit.cpu.target import CpuTarget
from tileops.jit.program import Program

_compile_lock = threading.RLock()
_METH_FASTCALL = 0x80
#: Seconds that a fork waits for a compile in another thread.
_FORK_PATIENCE = 60.0
# Error paths of code made through Numba's public interface refer to these; they are never called.
_NUMBA_SYMBOLS = (
    *("numba_gil_ensure", "numba_gil_release", "numba_do_raise", "numba_unpickle", "NRT_Free"),
    "numba_runtime_build_excinfo_struct",
)


class CpuEntry:
    """A loaded CPU kernel.

    Attributes:
        launch: ``launch(threads, n, *args)``; see `tileops.jit.cpu.wrapper`. It keeps its code in memory.
        loaded: the code.
        program: what was compiled.
        facts: facts of the artifact.
    """

    __slots__ = ("facts", "launch", "loaded", "program")

    launch: Callable[..., None]

    def __init__(self, program: Program, loaded: Loaded, facts: dict[str, Any]) -> None:
        self.program = program
        self.facts = facts
        self.loaded = loaded
        self.launch = self.builtin(wrapper.ENTRY, f"launch(threads, n{''.join(', ' + kind for kind in program.args)})")

    def builtin(self, symbol: str, doc: str, state: tuple[Any, ...] = ()) -> Callable[..., Any]:
        """A built-in function of Python that runs `symbol` of the loaded code.

        Args:
            symbol: an exported function of the convention ``METH_FASTCALL``.
            doc: its docstring.
            state: what the function finds in the tuple that is its first argument.
        """
        return self.builtins(symbol, doc)(state)

    def builtins(self, symbol: str, doc: str) -> Callable[[tuple[Any, ...]], Callable[..., Any]]:
        """`builtin` for functions that differ in their state."""
        return _builtins(self.program.name, self.loaded, symbol, doc)

    def __repr__(self) -> str:
        return f"CpuEntry({self.program})"


_new_function = ctypes.pythonapi.PyCFunction_NewEx
_new_function.restype = ctypes.py_object
_new_function.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]


def _builtins(name: str, loaded: Loaded, symbol: str, doc: str) -> Callable[[tuple[Any, ...]], Callable[..., Any]]:
    """From a state to a built-in function of Python that runs `symbol` of `loaded`; its ``__self__`` begins with the
    state.

    The interpreter reads a built-in function's ``PyMethodDef`` when it collects garbage and when it frees the
    function, so the definition must outlive the function: it is kept by ``__self__``, which is the last thing a
    function lets go of. It lies in a bytes object because the collector cannot clear one (it can a ctypes structure).
    """
    strings = (name.encode(), doc.encode())
    definition = struct.pack(
        "@PPiP", address_of(strings[0]), loaded.addresses[symbol], _METH_FASTCALL, address_of(strings[1])
    )
    kept, where = (loaded, definition, *strings), address_of(definition)
    return lambda state: _new_function(where, state + kept, None)


def compile_program(program: Program, target: CpuTarget) -> Artifact:
    """Compiles the body and its wrapper.

    Raises:
        KernelCompileError: the body does not compile, or uses functions that a kernel may not call.
    """
    start = time.perf_counter()
    # Factories register words with Numba, which is not safe beside another compile (and Numba has one lock for all of
    # them anyway).
    with _compile_lock, _collector_at_rest():
        return _compile(program, target, start)


@contextlib.contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Defers the collection of garbage. In the middle of a compile it would take what the compile still needs for
    long-lived, and that soon brings about a pass over all objects of the process, which takes longer than a compile.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _compile(program: Program, target: CpuTarget, start: float) -> Artifact:
    from tileops.jit import _numba
    from tileops.jit.lang import compiling_for

    args = ["i64", "i64", "i64", *program.args]
    try:
        with compiling_for(target):
            body = _numba.compile_function(program.make(), args, target)
    except Exception as error:
        raise KernelCompileError(f"{program} for {target} did not compile: {error}") from error
    allowed = {*LIBC_SYMBOLS, *(_NUMBA_SYMBOLS if body.convention == "c" else ())}
    foreign = [name for name in body.undefined if name not in allowed]
    if foreign:
        raise KernelCompileError(
            f"{program} for {target} calls {', '.join(foreign)}; a body may use numbers, ranges, tuples and "
            "tileops.jit.lang, but no library function, and it may not raise"
        )
    around = wrapper.wrapper_object(program.args, program.grain, body.convention, target)
    parts = {"kernel": body.object, "wrapper": around}
    facts = {
        "convention": body.convention,
        "compile_s": round(time.perf_counter() - start, 4),
        "llvmlite": importlib.metadata.version("llvmlite"),
        "host": platform.machine(),
    }
    return Artifact(parts, facts)


def load_entry(program: Program, target: CpuTarget, artifact: Artifact) -> CpuEntry:
    """Loads an artifact of `program`; neither compiles nor imports Numba.

    Raises:
        KernelCompileError: the object code cannot be linked.
    """
    objects = [artifact.parts["kernel"], artifact.parts["wrapper"]]
    runtime = parallel.launcher().symbols
    messages = wrapper.messages(program.name, program.args)
    symbols = {}
    for name in sorted({name for code in objects for name in undefined_symbols(code)}):
        if name in runtime:
            symbols[name] = runtime[name]
        elif name in messages:
            symbols[name] = address_of(messages[name])
        elif name in wrapper.PYTHON_SYMBOLS or name in direct_ir.PYTHON_SYMBOLS or name in LIBC_SYMBOLS:
            symbols[name] = python_symbol(name)
        elif name in _NUMBA_SYMBOLS:
            symbols[name] = python_symbol("abort")
        elif name != wrapper.BODY:
            raise KernelCompileError(f"{program}: the stored object needs the unknown symbol {name!r}")
    return CpuEntry(program, load(objects, [wrapper.ENTRY, *direct_ir.FUNCTIONS], symbols), dict(artifact.facts))


class _Fork(threading.local):
    """Whether this thread, which forks, has the compile lock."""

    waited = False


_fork = _Fork()


def _before_fork() -> None:
    """Lets a compile in another thread finish: a child that begins in the middle of it would wait for ever for locks
    of that thread, ours, Numba's, LLVM's and those of imports.
    """
    _fork.waited = _compile_lock.acquire(timeout=_FORK_PATIENCE)


def _after_fork_in_parent() -> None:
    if _fork.waited:
        _compile_lock.release()


def _after_fork_in_child() -> None:
    global _compile_lock
    _compile_lock = threading.RLock()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
