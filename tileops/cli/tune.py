"""`tileops tune`: search tile parameters before production."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tileops.cli import catalogue
from tileops.cli.console import JsonFlag, output, print_error, print_json, usage_error, writable

if TYPE_CHECKING:
    from tileops.kernels.base import CallSpec, Kernel


def command(
    ops: Annotated[list[str] | None, typer.Argument(help="Operators (default: all).")] = None,
    case: Annotated[
        list[str] | None,
        typer.Option("--case", help="Case id of one operator (repeatable; default: every case)."),
    ] = None,
    calls: Annotated[
        Path | None, typer.Option("--calls", help="Tune for the recorded calls of this file instead of the cases.")
    ] = None,
    effort: Annotated[
        Literal["quick", "full"],
        typer.Option("--effort", help="For each problem, quick: 15 s, 16 points; full: 60 s, 64 points."),
    ] = "full",
    trials: Annotated[int | None, typer.Option("--trials", min=1, help="Most points to measure.")] = None,
    budget: Annotated[
        float | None, typer.Option("--budget", min=1.0, help="Seconds for each problem (default: 60, quick 15).")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Compile processes; 0: one for each core, at most 4.")] = 0,
    storage: Annotated[
        str | None,
        typer.Option("--storage", help="Optuna storage: postgresql://... lets many machines tune one study."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the search.")] = 0,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", callback=writable, help="Draw parameters against time into this file."),
    ] = None,
    progress: Annotated[bool, typer.Option(help="Show where the search stands.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Measure tile parameters for operators' cases, or for recorded calls; later processes use what was found."""
    from tileops.autotune import Report, tune
    from tileops.autotune.session import DefaultFailedError

    if case and (not ops or len(ops) != 1):
        raise usage_error("--case needs exactly one operator")
    if case and calls is not None:
        raise usage_error("--case and --calls exclude each other")
    names = [catalogue.find_entry(name).name for name in ops] if ops else None
    reports, failed = [], 0
    for op, kernel, call in _problems(names, case, calls):
        try:
            found = tune(
                kernel,
                call,
                op=op,
                effort=effort,
                budget=budget,
                trials=trials,
                seed=seed,
                jobs=jobs or None,
                storage=storage,
                progress=progress,
            )
        except DefaultFailedError as error:  # the others are tuned all the same
            print_error(f"{op}: {error}")
            failed += 1
        else:
            reports.append(found)
    report = Report.merge(reports)
    if as_json:
        print_json(report.to_dict())
    else:
        output().print(report.table(), highlight=False, markup=False, soft_wrap=True)
        if sum(not math.isnan(kernel.speedup) for kernel in report.kernels) > 1:
            output().print(f"geometric mean of the speed-ups: {report.speedup:.2f}x", highlight=False)
    if plot is not None:
        report.plot(plot)
    if failed:
        raise typer.Exit(1)


def _problems(
    names: list[str] | None, case: list[str] | None, calls: Path | None
) -> list[tuple[str, type[Kernel], CallSpec]]:
    """What there is to tune as (operator, kernel, call), each tuning problem once.

    Raises:
        typer.BadParameter: there is no such case, or nothing with tile parameters.
    """
    from tileops.autotune.problem import record_key
    from tileops.ops.planned import RefusedCall
    from tileops.ops.warming import planned

    known: set[str] = set()
    found: dict[str, tuple[str, type[Kernel], CallSpec]] = {}
    for op, call in planned(names, calls=calls, case_ids=case, arch=_arch()):
        known.add(call.case_id)
        if not isinstance(call, RefusedCall) and call.kernel.tile_space is not None:
            found.setdefault(record_key(call.kernel, call.call).digest, (op, call.kernel, call.call))
    missing = set(case or ()) - known
    if names and missing:
        raise usage_error(f"{names[0]} has no case {min(missing)!r}; `tileops show {names[0]}` lists them")
    if not found:
        what = ", ".join(names) if names else "all operators"
        raise usage_error(f"{what}: no kernel of these calls has tile parameters")
    return list(found.values())


def _arch() -> str:
    """The architecture to tune on: this machine's GPU, if it has one."""
    import torch

    if not torch.cuda.is_available():
        return "native"
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}" + ("a" if major == 9 else "")
