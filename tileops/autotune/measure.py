"""Running candidates in processes that may die: compile, check and time, each with a time limit.

`Measurer` is what a search needs; `ProcessMeasurer` does it in worker processes. A worker that crashes or
does not answer in time costs one outcome and a restart: neither a GPU context nor memory of this process is
ever at risk.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any, Protocol

from tileops.autotune.problem import Outcome, Problem
from tileops.autotune.space import Config
from tileops.errors import TuningError
from tileops.jit.child import Child, child_environment
from tileops.jit.store import Store

log = logging.getLogger("tileops.autotune")

_PREFIX = "tileops-tune-"  # of directories below the system's temporary one
_CLAIM = "in-use"


@dataclass(frozen=True)
class Result:
    """What became of a request: `seconds` where it was a measurement that worked, `cause` where it failed."""

    outcome: Outcome
    seconds: float = math.nan
    cause: str = ""

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"


class Measurer(Protocol):
    """Runs the configs of one problem. No method raises for what a config does."""

    def compile(self, configs: Sequence[Config], limit: float, budget: float) -> list[Result]:
        """Compiles each config, within `limit` seconds each and `budget` in all; what is not begun by then, or
        cut off, has timed out.
        """
        ...

    def check(self, config: Config, limit: float) -> Result:
        """Runs `config` and compares its outputs with the default's; `seconds` is a first estimate of a
        launch.
        """
        ...

    def time(self, config: Config, repeats: int, limit: float) -> Result:
        """Seconds of one launch, averaged over `repeats` launches in a row."""
        ...

    def exclusive(self) -> AbstractContextManager[None]:
        """A lock over the device, held while timing."""
        ...

    def renew(self) -> None:
        """Goes on with a fresh process and fresh tensors."""
        ...

    def publish(self, config: Config) -> None:
        """Keeps the compiled kernels of `config`; those of all others are dropped when the measurer is
        closed.
        """
        ...

    def close(self) -> None:
        """Ends the workers and removes what they left."""
        ...


class Worker:
    """One worker process and the pipe to it; started on first use, replaced after it died."""

    def __init__(self, problem: Problem, cache_dir: str, threads: int) -> None:
        self._problem = problem
        self._environment = child_environment(
            TILEOPS_CACHE_DIR=cache_dir, TILEOPS_CACHE_TRUST="private", TILEOPS_JIT="lazy"
        )
        self._threads = threads
        self._child: Child | None = None

    def send(self, *request: Any) -> Connection:
        """Sends a request; the connection to wait on for its answer.

        Raises:
            TuningError: no worker process can be started.
        """
        connection = (self._child or self._start()).connection
        with contextlib.suppress(BrokenPipeError):  # it died since: `receive` will say so
            connection.send(request)
        return connection

    def receive(self) -> Result:
        """The answer, which must be there; a worker that has died answers ``crashed`` (or ``oom``)."""
        assert self._child is not None
        try:
            return Result(*self._child.connection.recv())
        except (EOFError, OSError):
            return self._obituary()

    def call(self, limit: float, *request: Any) -> Result:
        """A request and its answer; a worker that needs more than `limit` seconds is killed: ``timeout``."""
        connection = self.send(*request)
        if connection.poll(max(0.0, limit)):
            return self.receive()
        self.kill()
        return Result("timeout", cause=f"no answer to '{request[0]}' within {limit:.1f} s")

    def kill(self) -> None:
        """Ends the process, whatever it does."""
        if self._child is not None:
            self._child.kill()
        self._child = None

    def _start(self) -> Child:
        kind = getattr(getattr(self._problem.call, "device", None), "type", "cpu")
        # CUDA reserves address space far beyond the memory of the machine.
        arguments = [str(self._threads), "limited" if kind == "cpu" else "unlimited"]
        try:
            child = self._child = Child("tileops.autotune.worker", *arguments, environment=self._environment)
        except OSError as error:
            raise TuningError(f"cannot start a measuring process ({sys.executable}): {error}") from error
        if not child.is_ready():
            raise TuningError(f"a measuring process did not start: {self._obituary().cause}")
        child.connection.send(("problem", self._problem))
        result = self.receive()
        if not result.ok:
            self.kill()
            raise TuningError(f"a measuring process cannot load {self._problem.kernel}: {result.cause}")
        return child

    def _obituary(self) -> Result:
        assert self._child is not None
        death, self._child = self._child.death(), None
        if death.code == -signal.SIGKILL:  # not by us, so by the kernel when memory ran out
            return Result("oom", cause=f"killed by the operating system{death.last_words}")
        return Result("crashed", cause=f"the process {death}")


class ProcessMeasurer:
    """Measures in one worker process and compiles in several, with a private store that ends with it.

    Args:
        problem: what to run.
        store: the store of this process; its root holds the device lock and receives what is published.
        jobs: processes that compile at a time.

    Raises:
        TuningError: no worker process can be started, or it cannot load the kernel class.
    """

    def __init__(self, problem: Problem, store: Store, jobs: int | None = None) -> None:
        import torch

        self._problem = problem
        self._store = store
        _remove_left_behind()
        self._directory = tempfile.mkdtemp(prefix=_PREFIX)
        self._claim = _claim(self._directory)
        threads = torch.get_num_threads()
        count = jobs if jobs is not None else max(1, min(4, len(os.sched_getaffinity(0))))
        self._workers = [Worker(problem, self._directory, threads) for _ in range(count)]

    def compile(self, configs: Sequence[Config], limit: float, budget: float) -> list[Result]:
        results: list[Result] = [Result("timeout", cause="not started")] * len(configs)
        waiting = deque(enumerate(configs))
        end = time.monotonic() + budget
        idle = list(self._workers)
        busy: dict[Connection, tuple[Worker, int, float]] = {}
        while True:
            while waiting and idle and time.monotonic() < end:
                worker = idle.pop(0)
                index, config = waiting.popleft()
                until = min(time.monotonic() + limit, end)
                busy[worker.send("compile", dict(config))] = worker, index, until
            if not busy:
                return results
            patience = min(until for _, _, until in busy.values()) - time.monotonic()
            ready = wait(list(busy), max(0.0, patience))
            for connection in [found for found in busy if found in ready]:
                worker, index, _ = busy.pop(connection)
                results[index] = worker.receive()
                idle.append(worker)
            for connection in [found for found, (_, _, until) in busy.items() if until <= time.monotonic()]:
                worker, index, _ = busy.pop(connection)
                worker.kill()
                results[index] = Result("timeout", cause=f"not compiled within {limit:.1f} s")
                idle.append(worker)

    def check(self, config: Config, limit: float) -> Result:
        return self._workers[0].call(limit, "check", dict(config))

    def time(self, config: Config, repeats: int, limit: float) -> Result:
        return self._workers[0].call(limit, "time", dict(config), repeats)

    def renew(self) -> None:
        self._workers[0].kill()  # the next request starts another

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        device = getattr(getattr(self._problem.call, "device", None), "type", "cpu")
        index = getattr(getattr(self._problem.call, "device", None), "index", 0)
        with self._store.device_lock(f"{device}-{index}"):
            yield

    def publish(self, config: Config) -> None:
        from tileops import jit
        from tileops.autotune.worker import Runner
        from tileops.jit.keys import key_for

        kernel = Runner(self._problem).kernel
        made = Store(Path(self._directory))
        for program in kernel.programs(self._problem.call, dict(config)).values():
            key = key_for(program, jit.default_target(program.device))
            artifact = made.get(key)
            if artifact is not None and self._store.get(key) is None:
                self._store.put(key, artifact)

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._claim.close()


def _claim(directory: str) -> IO[bytes]:
    """An open file whose lock says, for as long as this process lives, that `directory` is in use."""
    early, name = os.path.join(directory, "claimed"), os.path.join(directory, _CLAIM)
    file = open(early, "wb")  # noqa: SIM115 - for as long as the measurer
    with contextlib.suppress(OSError):  # a file system without locks: nobody else gets one either
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.rename(early, name)  # only now may others ask for the lock
    return file


def _remove_left_behind() -> None:
    """Removes the directories of our runs that were killed."""
    for place in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # Another user's, in use, or gone meanwhile: not ours to remove.
        with contextlib.suppress(OSError), open(place / _CLAIM, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if place.lstat().st_uid == os.getuid():
                shutil.rmtree(place, ignore_errors=True)
