"""Runs many cases: chooses them, shares out the time, collects results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from tileops import manifest
from tileops.bench import baselines, report
from tileops.bench.case import Case, cases
from tileops.bench.runner import DEFAULT_BUDGET_S, Result, Runner
from tileops.errors import DispatchError, OpNotAvailableError, TileOpsError

#: What a whole run may take, in seconds, with the default budget: cases share what they leave to each other.
TOTAL_S = 17 * 60.0
#: Timing of one case when time is short, in seconds.
LEAST_S = 0.4


@dataclass
class Session:
    """The results of a run.

    Attributes:
        results: one per case that was measured.
        declined: cases that no kernel serves, with the reason.
        failures: cases that went wrong, with the reason.
        skipped: baselines that do not apply to a case, as (case, baseline, reason).
    """

    results: list[Result] = field(default_factory=list)
    declined: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    skipped: list[tuple[str, str, str]] = field(default_factory=list)

    def to_json(self) -> list[dict[str, Any]]:
        """One row for each result."""
        return [result.to_json() for result in self.results]


def selected(
    ops: Sequence[str] | None = None,
    case: str | None = None,
    dtype: str | None = None,
    max_output: int | None = None,
) -> list[Case]:
    """The cases of implemented operators that match.

    Args:
        ops: names of operators, by default all.
        case: case id, or the label that several dtypes share.
        dtype: dtype of the first input.
        max_output: most bytes of the outputs together.
    """
    names = ops if ops is not None else [entry.name for entry in manifest.load_all().values()]
    return [
        item
        for name in names
        if manifest.load_entry(name).status == "implemented"
        for item in cases(name)
        if case in (None, item.id, item.call.label) and dtype in (None, item.dtype)
        if max_output is None or sum(output.nbytes for output in item.call.outputs.values()) <= max_output
    ]


def run(
    ops: Sequence[str] | None = None,
    *,
    case: str | None = None,
    dtype: str | None = None,
    max_output: int | None = None,
    against: Sequence[str] = (baselines.TORCH,),
    budget: float | None = None,
    json_path: str | Path | None = None,
    target: str | None = None,
    device: str | torch.device | None = None,
    show: Callable[[str], None] = lambda text: None,
) -> Session:
    """Measures operators against baselines.

    Args:
        ops, case, dtype, max_output: which cases, see `selected`.
        against: names of baselines: ``torch``, ``torch-compile`` and whatever an operator's workload
            registers.
        budget: most seconds that timing one case takes, by default 20; a run of many cases takes less for
            each, so that all are done within 20 minutes.
        json_path: file for the results, rewritten after every case.
        target: whose kernels serve the operators.
        device: where, by default the CPU.
        show: receives every line for people: one per case, then the summary.
    """
    chosen = selected(ops, case, dtype, max_output)
    where = str(device or "cpu")
    session = Session()
    start = time.monotonic()
    with torch.inference_mode():
        for position, item in enumerate(chosen):
            seconds = _share(start, len(chosen) - position, DEFAULT_BUDGET_S if budget is None else budget)
            try:
                result = _measure(item, against, where, target, seconds, session)
            except (DispatchError, OpNotAvailableError) as error:
                session.declined[str(item)] = str(error)
                show(f"{item}: declined: {error}")
                continue
            except (TileOpsError, AssertionError) as error:
                session.failures[str(item)] = str(error)
                show(f"{item}: {error}")
                continue
            session.results.append(result)
            show(report.line(result))
            if json_path is not None:
                Path(json_path).write_text(json.dumps(session.to_json(), indent=1) + "\n")
    for line in report.summary(session.results):
        show(line)
    for where_, name, reason in session.skipped:
        show(f"{where_}: no {name}: {reason}")
    if session.declined:
        show(f"{len(session.declined)} of {len(chosen)} cases declined: no kernel serves them here")
    if session.failures:
        show(f"{len(session.failures)} of {len(chosen)} cases failed")
    return session


def _share(start: float, left: int, budget: float) -> float:
    """Seconds for timing the next case: the budget, or its share of the time that is left for all."""
    remaining = TOTAL_S - (time.monotonic() - start)
    # Half of a share goes into drawing inputs, checking and compiling.
    return min(budget, max(LEAST_S, remaining / left / 2))


def _measure(
    case: Case, against: Sequence[str], device: str, target: str | None, budget_s: float, session: Session
) -> Result:
    op = getattr(import_module(f"tileops.{case.call.entry.family}"), case.op)
    runner = Runner(op, case, device=device, target=target, budget_s=budget_s)
    implementations, groups, missing = baselines.select(runner, against)
    result = runner.compare(implementations, groups=groups)
    grouped = {name for names in groups.values() for name in names}
    absent = {name: note for name, note in result.notes.items() if name in implementations.keys() - grouped}
    for group in groups.keys() - result.baselines.keys():
        absent[group] = "; ".join({note for name, note in result.notes.items() if name in groups[group]})
    session.skipped += [(str(case), name, reason) for name, reason in {**missing, **absent}.items()]
    return result
