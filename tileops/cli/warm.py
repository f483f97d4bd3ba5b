"""`tileops warm`: compile before deployment."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tileops.cli import catalogue
from tileops.cli.console import JsonFlag, errors, output, print_json, usage_error

if TYPE_CHECKING:
    from tileops.jit import Program

_ARCHES = ("native", "sm_80", "sm_86", "sm_89", "sm_90a")


def command(
    ops: Annotated[list[str] | None, typer.Argument(help="Operators (default: all).")] = None,
    arch: Annotated[
        str,
        typer.Option("--arch", help="Comma-separated: native (this CPU), sm_80, sm_90a, ... (no GPU is needed)."),
    ] = "native",
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Compile processes; 0: one for each core.")] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Compile what the manifest's cases need and put it into the cache."""
    arches = [name.strip() for name in arch.split(",") if name.strip()]
    unknown = [name for name in arches if name not in _ARCHES]
    if unknown or not arches:
        raise usage_error(f"--arch {arch!r}: expected some of {', '.join(_ARCHES)}")
    entries = [catalogue.find_entry(name) for name in ops] if ops else catalogue.entries()
    started = time.perf_counter()
    tasks, refused = _collect(entries, arches)
    outcomes = _compile(tasks, jobs or os.cpu_count() or 1)
    failures = [outcome for outcome in outcomes if outcome["error"] is not None]
    summary = {
        "compiled": sum(outcome["compiled"] for outcome in outcomes),
        "present": sum(outcome["error"] is None and not outcome["compiled"] for outcome in outcomes),
        "failed": [{"program": outcome["program"], "reason": outcome["error"]} for outcome in failures],
        "without_kernel": refused,
        "seconds": round(time.perf_counter() - started, 2),
    }
    if as_json:
        print_json(summary)
    else:
        _print(summary, ", ".join(arches))
    if failures:
        raise typer.Exit(1)


def _collect(entries: list[Any], arches: list[str]) -> tuple[dict[tuple[Program, str], str], dict[str, int]]:
    """The programs to compile as ``{(program, arch): op}``, and cases without a kernel by op and arch."""
    from tileops.autotune import lookup
    from tileops.ops.planned import RefusedCall, device_for, planned_calls

    tasks: dict[tuple[Program, str], str] = {}
    refused: dict[str, int] = {}
    for entry in entries:
        cls = catalogue.op_class(entry)
        if cls is None:
            continue
        for arch in arches:
            device = device_for(None if arch == "native" else arch)
            if device.type not in catalogue.devices(entry):
                continue
            for planned in planned_calls(cls, device):
                if isinstance(planned, RefusedCall):
                    label = f"{entry.name} on {arch}"
                    refused[label] = refused.get(label, 0) + 1
                    continue
                kernel, call = planned.kernel, planned.call
                configs = [kernel.default_config(call)]
                recorded = lookup(kernel, call)
                if recorded is not None:
                    configs.append(recorded)
                for config in configs:
                    for program in kernel.programs(call, config).values():
                        tasks.setdefault((program, arch), entry.name)
    return tasks, refused


def _compile(tasks: dict[tuple[Program, str], str], jobs: int) -> list[dict[str, Any]]:
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    from rich.progress import Progress

    console = errors()
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        bar = progress.add_task("compiling", total=len(tasks))
        # Spawned, not forked: this process may hold torch's threads.
        with ProcessPoolExecutor(min(jobs, len(tasks)) or 1, mp_context=get_context("spawn")) as pool:
            futures = [pool.submit(_warm_one, program, arch, op) for (program, arch), op in tasks.items()]
            results = []
            for future in as_completed(futures):
                results.append(future.result())
                progress.advance(bar)
    return results


def _warm_one(program: Program, arch: str, op: str) -> dict[str, Any]:
    """Runs in a worker process."""
    from tileops import jit
    from tileops.errors import TileOpsError
    from tileops.jit.store import built_for

    target = None if arch == "native" else jit.cuda_target(arch)
    try:
        with built_for(op):
            compiled = jit.warm(program, target)
    except TileOpsError as error:
        return {"program": f"{program.factory} ({arch})", "compiled": False, "error": str(error)}
    return {"program": f"{program.factory} ({arch})", "compiled": compiled, "error": None}


def _print(summary: dict[str, Any], arches: str) -> None:
    console = output()
    console.print(
        f"{arches}: {summary['compiled']} kernels compiled, {summary['present']} present, "
        f"{len(summary['failed'])} failed, {summary['seconds']:.1f} s",
        highlight=False,
    )
    for label, count in summary["without_kernel"].items():
        console.print(f"  {label}: {count} cases have no kernel yet", highlight=False)
    for failure in summary["failed"]:
        console.print(f"  {failure['program']}: {failure['reason']}", style="red", highlight=False, markup=False)
