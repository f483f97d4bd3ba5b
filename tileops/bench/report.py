"""Tables and summaries of benchmark results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from tileops.bench.runner import Result

#: torch.compile is compared on cases in which ours takes longer than this only: below, its guards are what is timed. By
#: its own time its slow cases would count and its fast ones would not.
COMPILE_MIN_US = 50.0


def line(result: Result) -> str:
    """One row for people."""
    seconds = result.ours.median
    compared = "  ".join(
        f"{name} {timing.microseconds:.4g} us x{timing.median / seconds:.2f}"
        for name, timing in result.baselines.items()
    )
    return (
        f"{result.op:26s} {result.case:40s} {result.ours.microseconds:10.4g} us  {compared}  "
        f"{result.bytes / seconds / 1e9:6.1f} GB/s {result.flops / seconds / 1e9:7.1f} GF/s  "
        f"{100 * result.efficiency:4.0f} % of limit"
    )


def geometric_mean(values: Iterable[float]) -> float:
    """Geometric mean; NaN of nothing."""
    found = list(values)
    return statistics.geometric_mean(found) if found else float("nan")


def counted(result: Result, baseline: str) -> bool:
    """Whether a ratio enters the means: torch.compile counts only where ours takes long enough."""
    return baseline in result.baselines and (baseline != "torch-compile" or result.ours.microseconds > COMPILE_MIN_US)


def operator_means(results: Sequence[Result], baseline: str) -> dict[str, float]:
    """Geometric mean of the ratios of each operator's cases."""
    by_op: dict[str, list[float]] = {}
    for result in results:
        if counted(result, baseline):
            by_op.setdefault(result.op, []).append(result.ratios[baseline])
    return {op: geometric_mean(ratios) for op, ratios in by_op.items()}


def _cells(values: Sequence[float]) -> str:
    return "".join(f"{'-':>12s}" if math.isnan(value) else f"{value:12.2f}" for value in values)


def summary(results: Sequence[Result]) -> list[str]:
    """Means per operator, per dtype and in all, and every case that is slower than a baseline."""
    if not results:
        return ["no case was run"]
    baselines = list(dict.fromkeys(name for result in results for name in result.baselines))
    dtypes = list(dict.fromkeys(result.dtype for result in results))
    lines = []
    for baseline in baselines:
        note = f", only cases in which ours takes over {COMPILE_MIN_US:.0f} us" if baseline == "torch-compile" else ""
        lines.append(f"ratio to {baseline} (geometric means{note}):")
        header = "".join(f"{dtype:>12s}" for dtype in [*dtypes, "all"])
        lines.append(f"  {'':28s}{header}")
        per_dtype = {
            dtype: operator_means([item for item in results if item.dtype == dtype], baseline) for dtype in dtypes
        }
        overall = operator_means(results, baseline)
        for op, mean in overall.items():
            cells = [per_dtype[dtype].get(op, float("nan")) for dtype in dtypes]
            lines.append(f"  {op:28s}{_cells([*cells, mean])}")
        totals = [geometric_mean(per_dtype[dtype].values()) for dtype in dtypes]
        total = geometric_mean(overall.values())
        lines.append(f"  {'total (mean of operators)':28s}{_cells([*totals, total])}")
    slower = [
        (result, name, ratio)
        for result in results
        for name, ratio in result.ratios.items()
        if ratio < 1.0 and counted(result, name)
    ]
    if slower:
        lines.append("slower than a baseline:")
        lines += [f"  {result.op} {result.case}: x{ratio:.2f} of {name}" for result, name, ratio in slower]
    return lines
