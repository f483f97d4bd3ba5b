"""Compiling many programs in worker processes, into the store.

Each worker is ``python -m tileops.jit.pool <file descriptor>`` and answers one task at a time over a pipe. A compiler
that takes its process down costs that one program; a fresh worker goes on with the others.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

from tileops.errors import TileOpsError
from tileops.jit.child import Child, child_environment, die_with_parent
from tileops.jit.program import Program


@dataclass(frozen=True)
class Task:
    """One program to put into the store.

    Attributes:
        program: what to compile.
        arch: what for: a CPU ("native", "generic", "sapphirerapids") or a compute capability ("sm_90a").
        op: the operator that wants it, for listings; None where an application asks for it itself.
    """

    program: Program
    arch: str
    op: str | None


@dataclass(frozen=True)
class Outcome:
    """What became of a task.

    Attributes:
        task: the task.
        state: "compiled", "present" (it was in the store) or "failed".
        reason: why it failed.
    """

    task: Task
    state: Literal["compiled", "present", "failed"]
    reason: str = ""


def target_of(arch: str) -> Any:
    """The compile target that `arch` names; it need not be a GPU or CPU of this machine.

    Raises:
        SettingsError: this machine cannot compile for it.
    """
    from tileops import jit
    from tileops.jit.cpu.target import compiling_elsewhere

    with compiling_elsewhere():
        return jit.cuda_target(arch) if arch.startswith("sm_") else jit.cpu_target(arch)


def refusal_of(arch: str) -> str | None:
    """Why nothing can be compiled for `arch` here, with the remedy; None if it can, as far as an installation tells."""
    from tileops.jit import _numba_cuda

    return _numba_cuda.unavailable() if arch.startswith("sm_") else None


def compile_all(tasks: Sequence[Task], jobs: int, progress: Callable[[Outcome], None] | None = None) -> list[Outcome]:
    """Puts every task's program into the store of the settings in force.

    Args:
        tasks: what to compile.
        jobs: processes that compile at a time.
        progress: called in this process after each task.

    Returns:
        One outcome for each task, in the order in which they ended.

    Raises:
        TileOpsError: no worker process can be started.
    """
    waiting, outcomes = deque(tasks), []
    idle = [_Worker() for _ in range(min(jobs, len(tasks)))]
    busy: dict[Connection, tuple[_Worker, Task]] = {}
    workers = list(idle)
    try:
        while waiting or busy:
            while waiting and idle:
                worker, task = idle.pop(), waiting.popleft()
                busy[worker.send(task)] = worker, task
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)
                worker, task = busy.pop(connection)
                outcome = worker.receive(task)
                outcomes.append(outcome)
                idle.append(worker)
                if progress is not None:
                    progress(outcome)
    finally:
        for worker in workers:
            worker.kill()
    return outcomes


class _Worker:
    """A process that compiles; started on first use, replaced after it died."""

    def __init__(self) -> None:
        self._child: Child | None = None

    def send(self, task: Task) -> Connection:
        child = self._child or self._start()
        try:
            child.connection.send(task)
        except BrokenPipeError:  # it died since: start another
            self.kill()
            child = self._start()
            child.connection.send(task)
        return child.connection

    def receive(self, task: Task) -> Outcome:
        assert self._child is not None
        try:
            state, reason = self._child.connection.recv()
            return Outcome(task, state, reason)
        except (EOFError, OSError):
            return Outcome(task, "failed", self._obituary())

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()
        self._child = None

    def _start(self) -> Child:
        try:
            self._child = Child("tileops.jit.pool", environment=child_environment())
        except OSError as error:
            raise TileOpsError(f"cannot start a compiling process ({sys.executable}): {error}") from error
        if not self._child.is_ready():
            raise TileOpsError(f"a compiling process did not start: {self._obituary()}")
        return self._child

    def _obituary(self) -> str:
        assert self._child is not None
        death, self._child = self._child.death(), None
        return f"the compiling process {death}"


def _serve(connection: Connection) -> None:
    from tileops import jit
    from tileops.jit.store import built_for

    connection.send("ready")
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        try:
            with built_for(task.op):
                compiled = jit.warm(task.program, target_of(task.arch))
            connection.send(("compiled" if compiled else "present", ""))
        except TileOpsError as error:
            connection.send(("failed", str(error)))


if __name__ == "__main__":
    die_with_parent()
    _serve(Connection(int(sys.argv[1])))
