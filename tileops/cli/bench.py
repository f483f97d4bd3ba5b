"""`tileops bench`: operators against their baselines."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tileops.cli import catalogue
from tileops.cli.console import JsonFlag, print_json, usage_error, writable


def command(
    ops: Annotated[list[str] | None, typer.Argument(help="Operators (default: all).")] = None,
    family: Annotated[str | None, typer.Option("--family", help="Only this family.")] = None,
    case: Annotated[str | None, typer.Option("--case", help="Only this case id.")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="Only cases of this dtype.")] = None,
    max_output: Annotated[
        str | None, typer.Option("--max-output", help="Only cases with outputs up to this size, for example 24MiB.")
    ] = None,
    against: Annotated[
        str, typer.Option("--against", help="Baselines: torch, torch-compile, ... (comma-separated).")
    ] = "torch",
    budget: Annotated[float, typer.Option("--budget", min=0.01, help="Seconds a case.")] = 20.0,
    save: Annotated[
        Path | None,
        typer.Option("--save", callback=writable, help="Keep the results in this file, as JSON, after every case."),
    ] = None,
    as_json: JsonFlag = False,
    target: Annotated[str | None, typer.Option("--target", help="Kernel target.")] = None,
    device: Annotated[str | None, typer.Option("--device", help="Device, for example cpu or cuda:0.")] = None,
) -> None:
    """Measure operators against PyTorch: checked first, then interleaved rounds, medians, ratios."""
    from tileops import bench

    names = [catalogue.find_entry(op).name for op in ops or ()]
    if family is not None:
        names += [entry.name for entry in catalogue.entries(family) if entry.name not in names]
    baselines = tuple(name.strip() for name in against.split(",") if name.strip())
    largest = None if max_output is None else _size(max_output)
    if device is not None:
        _require_device(device)
    chosen = bench.selected(names or None, case, dtype, largest)
    if not chosen and names and not any(catalogue.find_entry(name).implemented for name in names):
        raise usage_error(f"{', '.join(names)}: spec-only, without a kernel to measure")
    if not chosen:
        raise usage_error("no case matches; `tileops show OP` lists the cases of an operator")
    known = {name: None for op in dict.fromkeys(item.op for item in chosen) for name in bench.registered(op)}
    unknown = [name for name in baselines if name not in known]
    if unknown or not baselines:
        raise usage_error(f"--against {against!r}: expected some of {', '.join(known)}")
    session = bench.run(
        names or None,
        case=case,
        dtype=dtype,
        max_output=largest,
        against=baselines,
        budget=budget,
        json_path=save,
        target=target,
        device=device,
        show=partial(typer.echo, err=as_json),
    )
    if as_json:
        print_json(session.to_json())
    if session.failures:
        raise typer.Exit(1)


def _require_device(name: str) -> None:
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        raise usage_error(f"--device {name!r}: torch knows no such device; name one as cpu or cuda:0") from None
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise usage_error(f"--device {name!r}: torch sees {count} CUDA devices here; `tileops doctor` says more")


def _size(text: str) -> int:
    from tileops import settings

    try:
        return settings.parse_size(text)
    except ValueError as error:
        raise usage_error(f"--max-output: {error}") from None
