"""Compiling many programs in worker processes, into the store.

Each worker is ``python -m tileops.jit.pool <file descriptor>`` and answers one task at a time over a pipe. A compiler
that takes its process down costs that one program; a fresh worker goes on with the others.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import IO, Any, Literal

from tileops import settings
from tileops.errors import TileOpsError
from tileops.jit.program import Program

_START_SECONDS = 120.0


@dataclass(frozen=True)
class Task:
    """One program to put into the store.

    Attributes:
        program: what to compile.
        arch: what for: a CPU ("native", "x86-64-v3", "generic") or a compute capability ("sm_90a").
        op: the operator that wants it, for listings.
    """

    program: Program
    arch: str
    op: str


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
    """The compile target that `arch` names; needs no GPU.

    Raises:
        SettingsError: this machine cannot compile for it.
    """
    from tileops import jit

    return jit.cuda_target(arch) if arch.startswith("sm_") else jit.cpu_target(arch)


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
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._errors: IO[bytes] | None = None

    def send(self, task: Task) -> Connection:
        connection = self._connection or self._start()
        try:
            connection.send(task)
        except BrokenPipeError:  # it died since: start another
            self.kill()
            connection = self._start()
            connection.send(task)
        return connection

    def receive(self, task: Task) -> Outcome:
        assert self._connection is not None
        try:
            state, reason = self._connection.recv()
            return Outcome(task, state, reason)
        except (EOFError, OSError):
            return Outcome(task, "failed", self._obituary())

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for handle in (self._connection, self._errors):
            if handle is not None:
                handle.close()
        self._process = self._connection = self._errors = None

    def _start(self) -> Connection:
        ours, theirs = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tileops.jit.pool", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                env=worker_environment(),
                pass_fds=[theirs.fileno()],
            )
        except OSError as error:
            raise TileOpsError(f"cannot start a compiling process ({sys.executable}): {error}") from error
        finally:
            theirs.close()
        self._connection = Connection(ours.detach())
        if not self._connection.poll(_START_SECONDS) or self._ended():
            raise TileOpsError(f"a compiling process did not start: {self._obituary()}")
        return self._connection

    def _ended(self) -> bool:
        assert self._connection is not None
        try:
            return self._connection.recv() != "ready"
        except EOFError:
            return True

    def _obituary(self) -> str:
        assert self._process is not None
        assert self._errors is not None
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = 0
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        self.kill()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return f"the compiling process died with {how}{f': {lines[-1][:300]}' if lines else ''}"


def worker_environment(**overrides: str) -> dict[str, str]:
    """Environment in which a worker process finds the same modules and settings as this process."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(os.path.abspath(place) for place in sys.path),
        **settings.current().to_environ(),
        "TILEOPS_RECORD": "",
        **overrides,
    }


def die_with_parent() -> None:
    """Ends this process when its parent ends (Linux)."""
    set_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
    try:
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
    except (OSError, AttributeError):
        return  # not Linux: a worker that hangs when its parent is killed has to be ended by hand


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
