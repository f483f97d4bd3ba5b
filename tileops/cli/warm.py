"""`tileops warm`: compile before deployment."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tileops.cli import catalogue
from tileops.cli.console import JsonFlag, errors, output, print_json, usage_error
from tileops.errors import SettingsError

if TYPE_CHECKING:
    from tileops.jit.pool import Outcome
    from tileops.ops.warming import WarmReport

_ARCHES = ("native", "sm_80", "sm_86", "sm_89", "sm_90a")


def command(
    ops: Annotated[list[str] | None, typer.Argument(help="Operators (default: all).")] = None,
    rows: Annotated[
        Literal["manifest"] | None, typer.Option("--rows", help="Warm the manifest's cases (the default).")
    ] = None,
    calls: Annotated[
        Path | None,
        typer.Option("--calls", help="Warm exactly the calls of this file, which TILEOPS_RECORD or record() wrote."),
    ] = None,
    arch: Annotated[
        str,
        typer.Option("--arch", help="Comma-separated: native (a CPU), sm_80, sm_90a, ... (no GPU is needed)."),
    ] = "native",
    cpu: Annotated[
        str | None,
        typer.Option(
            "--cpu",
            help="What 'native' means: native, x86-64-v3, generic, or the name of a CPU that need not be this one "
            "(sapphirerapids). Default: as TILEOPS_CPU.",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Compile processes; 0: one for each core.")] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Compile what the manifest's cases, or recorded calls, need and put it into the cache."""
    arches = arch_list(arch)
    check_cpu(cpu)
    if rows is not None and calls is not None:
        raise usage_error("--rows and --calls exclude each other")
    names = [catalogue.find_entry(name).name for name in ops] if ops else None
    report = _warm(names, calls, arches, cpu, jobs)
    if as_json:
        print_json(report.to_dict())
    else:
        output().print(f"{', '.join(arches)}: {report}", highlight=False, markup=False, soft_wrap=True)
    if not report.ok:
        raise typer.Exit(1)


def _warm(names: list[str] | None, calls: Path | None, arches: list[str], cpu: str | None, jobs: int) -> WarmReport:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from tileops.autotune.progress import PLAIN_SECONDS
    from tileops.ops.warming import warm

    console = errors()
    columns = (
        TextColumn("compiling"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        shown = bar.add_task("", total=None)
        last = time.monotonic()

        def advance(done: int, total: int, outcome: Outcome) -> None:
            nonlocal last
            bar.update(shown, completed=done, total=total, description=outcome.task.op or "")
            if bar.disable and time.monotonic() - last >= PLAIN_SECONDS:
                last = time.monotonic()
                console.print(f"compiling: {done} of {total} kernels", highlight=False)

        return warm(names, calls=calls, arch=arches, cpu=cpu, jobs=jobs or None, progress=advance)


def arch_list(arch: str) -> list[str]:
    """The architectures of an ``--arch`` option.

    Raises:
        typer.BadParameter: one is unknown.
    """
    arches = [name.strip() for name in arch.split(",") if name.strip()]
    if not arches or set(arches) - set(_ARCHES):
        raise usage_error(f"--arch {arch!r}: expected some of {', '.join(_ARCHES)}")
    return list(dict.fromkeys(arches))


def check_cpu(cpu: str | None) -> None:
    """Raises:
    typer.BadParameter: no CPU target has this name.
    """
    if cpu is None:
        return
    from tileops.jit.cpu.target import require_name

    try:
        require_name(cpu)
    except SettingsError as error:
        raise usage_error(f"--cpu: {error}") from None
