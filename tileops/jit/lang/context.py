"""What the vocabulary knows about the compile in progress: its target, and where code is being emitted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from tileops.jit.cpu.target import CpuTarget, cpu_target

if TYPE_CHECKING:
    from tileops.jit.lang.emitter import Emitter

_target: ContextVar[CpuTarget | None] = ContextVar("tileops_compile_target", default=None)
_emitter: ContextVar[Emitter | None] = ContextVar("tileops_emitter", default=None)


def target() -> CpuTarget:
    """The CPU that is being compiled for; outside a compile, the one that ``TILEOPS_CPU`` chooses."""
    return _target.get() or cpu_target()


def lanes() -> int:
    """float32 lanes of a vector of the compile target: 16, 8 or 4. Read it in the factory, not at import."""
    return target().lanes


@contextmanager
def compiling_for(chosen: CpuTarget) -> Iterator[None]:
    """Makes `chosen` the compile target inside a ``with`` block."""
    token = _target.set(chosen)
    try:
        yield
    finally:
        _target.reset(token)


def emitter() -> Emitter:
    """The emitter of the code being traced.

    Raises:
        TypeError: nothing is being traced: a vocabulary function was called from ordinary Python.
    """
    current = _emitter.get()
    if current is None:
        raise TypeError(
            "functions of tileops.jit.lang work inside a kernel body, a traced function or a tile; "
            "they cannot be called from ordinary Python"
        )
    return current


@contextmanager
def emitting(chosen: Emitter) -> Iterator[Emitter]:
    """Makes `chosen` the emitter inside a ``with`` block."""
    token = _emitter.set(chosen)
    try:
        yield chosen
    finally:
        _emitter.reset(token)
