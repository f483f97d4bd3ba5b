"""Child processes that run a module of ours and may die: start, pipe, end, and what is known of a death."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from multiprocessing.connection import Connection

from tileops import settings

_START_SECONDS = 120.0


@dataclass(frozen=True)
class Death:
    """How a child ended.

    Attributes:
        code: its exit status, or minus the number of the signal that ended it.
        last_words: a colon and the last line that it printed; empty if it printed nothing.
    """

    code: int
    last_words: str

    def __str__(self) -> str:
        how = f"signal {signal.Signals(-self.code).name}" if self.code < 0 else f"exit status {self.code}"
        return f"died with {how}{self.last_words}"


class Child:
    """``python -m <module> <file descriptor> <arguments>``, with a pipe at that descriptor.

    Attributes:
        connection: our end of the pipe.

    Raises:
        OSError: no process can be started.
    """

    def __init__(self, module: str, *arguments: str, environment: dict[str, str]) -> None:
        ours, theirs = socket.socketpair()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        self.connection = Connection(ours.detach())
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(theirs.fileno()), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env=environment,
                pass_fds=[theirs.fileno()],
            )
        except OSError:
            self._close()
            raise
        finally:
            theirs.close()

    def is_ready(self) -> bool:
        """Waits for its first message, which must be "ready"."""
        try:
            return self.connection.poll(_START_SECONDS) and self.connection.recv() == "ready"
        except EOFError:
            return False

    def kill(self) -> None:
        """Ends the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        self._close()

    def death(self) -> Death:
        """How the process, whose end of the pipe has closed, ended; it is gone afterwards."""
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = 0
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        self.kill()
        return Death(code, f": {lines[-1][:300]}" if lines else "")

    def _close(self) -> None:
        self.connection.close()
        self._output.close()


def child_environment(**overrides: str) -> dict[str, str]:
    """Environment in which a child finds the same modules and settings as this process."""
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
        return  # not Linux: a child that hangs when its parent is killed has to be ended by hand
