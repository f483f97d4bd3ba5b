"""Where a tuning run stands: one line that is redrawn on a terminal, a plain line every ten seconds
elsewhere.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

#: Between two plain lines.
PLAIN_SECONDS = 10.0


@dataclass(frozen=True)
class Progress:
    """Where a run stands.

    Attributes:
        kernel: name of the kernel class.
        phase: "compile", "measure" or "confirm".
        done: points settled so far.
        total: points that the run may settle.
        best: the best speed-up over the default so far.
        seconds: since the start.
        budget: seconds that the run may take.
    """

    kernel: str
    phase: str
    done: int
    total: int
    best: float
    seconds: float
    budget: float

    def __str__(self) -> str:
        return (
            f"tuning {self.kernel}: {self.phase} {self.done}/{self.total}, best so far {self.best:.2f}x, "
            f"{self.seconds:.0f}/{self.budget:.0f} s"
        )


Listener = Callable[[Progress], None]


class StderrLine:
    """A listener that writes to stderr."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._last = time.monotonic()
        self._width = 0

    def __call__(self, progress: Progress) -> None:
        text = str(progress)
        if self._terminal:
            print(f"\r{text.ljust(self._width)}", end="", file=sys.stderr, flush=True)
            self._width = len(text)
        elif time.monotonic() - self._last >= PLAIN_SECONDS:
            self._last = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Clears the line."""
        if self._terminal and self._width:
            print(f"\r{' ' * self._width}\r", end="", file=sys.stderr, flush=True)
