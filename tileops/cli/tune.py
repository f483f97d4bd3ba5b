"""`tileops tune`: search tile parameters before production."""

from __future__ import annotations

from typing import Annotated

import typer

from tileops.cli import catalogue
from tileops.cli.console import JsonFlag, output, print_json, usage_error


def command(
    op: Annotated[str, typer.Argument(help="Operator.")],
    case: Annotated[
        list[str] | None,
        typer.Option("--case", help="Case id (repeatable; default: every case of the operator)."),
    ] = None,
    trials: Annotated[int | None, typer.Option("--trials", min=1, help="Most points to measure.")] = None,
    budget: Annotated[float, typer.Option("--budget", min=1.0, help="Seconds for each problem.")] = 60.0,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the search.")] = 0,
    progress: Annotated[bool, typer.Option(help="Show where the search stands.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Measure tile parameters for an operator's cases; later processes use what was found."""
    from tileops.autotune import Report, tune
    from tileops.ops.planned import RefusedCall, device_for, planned_calls

    entry = catalogue.find_entry(op)
    cls = catalogue.op_class(entry)
    if cls is None:
        raise usage_error(f"{entry.name} is {entry.status}: it has no kernel to tune")
    planned = list(planned_calls(cls, device_for(_arch()), case))
    missing = set(case or ()) - {call.case_id for call in planned}
    if missing:
        raise usage_error(f"{entry.name} has no case {sorted(missing)[0]!r}; `tileops show {entry.name}` lists them")
    tunable = [call for call in planned if not isinstance(call, RefusedCall) and call.kernel.tile_space is not None]
    if not tunable:
        raise usage_error(f"{entry.name}: the kernels of these cases have no tile parameters")
    reports = [
        tune(call.kernel, call.call, op=entry.name, budget=budget, trials=trials, seed=seed, progress=progress)
        for call in tunable
    ]
    report = Report.merge(reports)
    if as_json:
        print_json(report.to_dict())
        return
    output().print(report.table(), highlight=False, markup=False, soft_wrap=True)


def _arch() -> str | None:
    import torch

    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"
