"""What a tuning run found."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tileops.autotune.problem import OUTCOMES
from tileops.autotune.record import Point


@dataclass(frozen=True)
class KernelReport:
    """The result for one kernel and call.

    Attributes:
        kernel: name of the kernel class.
        op: the operator, or "".
        call: the call, in one line.
        default: the kernel's own choice.
        best: the config that builds use from now on.
        default_seconds: time of one launch with `default`.
        best_seconds: with `best`.
        points: everything measured, in this run and before.
        measured: points measured in this run.
        seconds: how long the run took.
        persisted: the record was written, or was there already.
        note: why the result is not what one may expect, or "".
    """

    kernel: str
    op: str
    call: str
    default: Mapping[str, Any]
    best: Mapping[str, Any]
    default_seconds: float
    best_seconds: float
    points: tuple[Point, ...]
    measured: int
    seconds: float
    persisted: bool
    note: str = ""

    @property
    def speedup(self) -> float:
        """Time of the default over time of the choice, both from the same rounds."""
        return self.default_seconds / self.best_seconds

    @property
    def near_best(self) -> int:
        """How many of the points that work are within 5 % of the fastest: the fewer, the more a search is worth."""
        ratios = [point.ratio for point in self.points if point.ok]
        return sum(ratio * 0.95 <= min(ratios) for ratio in ratios)

    @property
    def outcomes(self) -> dict[str, int]:
        """Number of points by outcome; only those that occur."""
        counts = {outcome: sum(point.outcome == outcome for point in self.points) for outcome in OUTCOMES}
        return {outcome: count for outcome, count in counts.items() if count}

    def to_dict(self) -> dict[str, Any]:
        """Plain values; a time that is not known is None."""
        return {
            "kernel": self.kernel,
            "op": self.op,
            "call": self.call,
            "default": dict(self.default),
            "best": dict(self.best),
            "default_us": _micro(self.default_seconds),
            "best_us": _micro(self.best_seconds),
            "speedup": None if math.isnan(self.speedup) else self.speedup,
            "outcomes": self.outcomes,
            "near_best": self.near_best,
            "measured": self.measured,
            "seconds": self.seconds,
            "persisted": self.persisted,
            "note": self.note,
            "points": [
                {
                    "config": dict(point.config),
                    "outcome": point.outcome,
                    "us": _micro(point.seconds),
                    "ratio": None if math.isnan(point.ratio) else point.ratio,
                    "cause": point.cause,
                }
                for point in self.points
            ],
        }

    def summary(self) -> str:
        """One line."""
        bad = {outcome: count for outcome, count in self.outcomes.items() if outcome != "ok"}
        failed = f", {', '.join(f'{count} {outcome}' for outcome, count in bad.items())}" if bad else ""
        if self.measured == 0:
            return f"{self.kernel}: {_show(self.best)} ({self.note or 'nothing to measure'})"
        return (
            f"{self.kernel}: {_show(self.best)} {_time(self.best_seconds)}, default {_show(self.default)} "
            f"{_time(self.default_seconds)}: {self.speedup:.2f}x, {self.measured} measured in "
            f"{self.seconds:.1f} s{failed}{f' ({self.note})' if self.note else ''}"
        )


@dataclass(frozen=True)
class Report:
    """The result of a tuning run over any number of kernels.

    Attributes:
        kernels: one result for each kernel and call.
        note: what to do where there is no result, or "".
    """

    kernels: tuple[KernelReport, ...] = ()
    note: str = ""

    @classmethod
    def merge(cls, reports: list[Report], note: str = "") -> Report:
        """One report of several."""
        notes = [found.note for found in reports if found.note]
        return cls(tuple(kernel for found in reports for kernel in found.kernels), note or "; ".join(notes))

    @property
    def speedup(self) -> float:
        """Geometric mean of the kernels' speed-ups; 1.0 without kernels."""
        known = [kernel.speedup for kernel in self.kernels if not math.isnan(kernel.speedup)]
        return math.exp(sum(map(math.log, known)) / len(known)) if known else 1.0

    @property
    def measured(self) -> int:
        """Points measured in this run."""
        return sum(kernel.measured for kernel in self.kernels)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "kernels": [kernel.to_dict() for kernel in self.kernels],
            "speedup": self.speedup,
            "measured": self.measured,
            "note": self.note,
        }

    def table(self) -> str:
        """A text table with one row for each kernel, and notes; "within 5 %" counts the points so close to the best."""
        head = ("kernel", "default", "us", "best", "us", "speed-up", "outcomes", "within 5 %", "s")
        rows = [
            (
                kernel.kernel,
                _show(kernel.default),
                _number(kernel.default_seconds),
                _show(kernel.best),
                _number(kernel.best_seconds),
                "" if math.isnan(kernel.speedup) else f"{kernel.speedup:.2f}x",
                " ".join(f"{outcome}:{count}" for outcome, count in kernel.outcomes.items()),
                str(kernel.near_best),
                f"{kernel.seconds:.1f}",
            )
            for kernel in self.kernels
        ]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (head, *rows)]
        notes = Counter(f"{kernel.kernel}: {kernel.note}" for kernel in self.kernels if kernel.note)
        lines += [note if count == 1 else f"{note} ({count} calls)" for note, count in notes.items()]
        if self.note:
            lines.append(self.note)
        return "\n".join(lines)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws time against each tile parameter, one row of axes for each kernel, and writes the picture to `path`.

        Every measured point is a dot at its time over the default's; the chosen config is marked.

        Args:
            path: the file; its suffix chooses the format (png, svg, pdf, ...).

        Raises:
            TuningError: nothing was measured, or matplotlib is not installed.
            OSError: the file cannot be written.
        """
        from tileops.autotune.plots import draw

        draw(self.kernels, path)

    def __str__(self) -> str:
        return self.table()


def _show(config: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items()) or "-"


def _micro(seconds: float) -> float | None:
    return None if math.isnan(seconds) else seconds * 1e6


def _number(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{seconds * 1e6:.1f}"


def _time(seconds: float) -> str:
    return f"{_number(seconds)} us"
