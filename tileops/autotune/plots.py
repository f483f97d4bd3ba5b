"""Pictures of tuning results (matplotlib, the extra ``plots``)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tileops.errors import TuningError

if TYPE_CHECKING:
    from tileops.autotune.report import KernelReport


def draw(kernels: Sequence[KernelReport], path: str | os.PathLike[str]) -> None:
    """See `Report.plot`."""
    shown = [kernel for kernel in kernels if any(point.ok for point in kernel.points)]
    if not shown:
        raise TuningError("there is nothing to plot: no kernel was measured")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise TuningError("plots need matplotlib: pip install 'tileops[plots]'") from error
    columns = max(len(kernel.best) for kernel in shown)
    # Not pyplot: it would choose a backend for the whole process.
    figure = Figure(figsize=(2.6 * columns + 1.0, 2.4 * len(shown)), layout="constrained")
    grid = figure.subplots(len(shown), columns, squeeze=False, sharey="row")
    for row, kernel in zip(grid, shown, strict=True):
        for axes, name in zip(row, kernel.best, strict=False):
            _panel(axes, kernel, name)
        for axes in row[len(kernel.best) :]:
            axes.set_axis_off()
        row[0].set_ylabel(f"{kernel.kernel}\ntime / default's")
    figure.savefig(path)


def _panel(axes: Any, kernel: KernelReport, name: str) -> None:
    points = [point for point in kernel.points if point.ok and name in point.config]
    values = sorted({point.config[name] for point in points}, key=lambda value: (str(type(value)), value))
    place = {value: i for i, value in enumerate(values)}
    axes.axhline(1.0, linewidth=0.8, color="0.7")
    axes.scatter([place[point.config[name]] for point in points], [point.ratio for point in points], s=12, alpha=0.6)
    best = [point for point in points if dict(point.config) == dict(kernel.best)]
    axes.scatter([place[point.config[name]] for point in best], [point.ratio for point in best], marker="*", s=90)
    axes.set_xticks(range(len(values)), [str(value) for value in values], fontsize=7)
    axes.set_xlabel(name)
    if max(point.ratio for point in points) > 10:
        axes.set_yscale("log")
