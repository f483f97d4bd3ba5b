"""`tileops ops`: what there is."""

from __future__ import annotations

from typing import Annotated

import typer

from tileops.cli import catalogue
from tileops.cli.console import JsonFlag, print_json, table


def command(
    family: Annotated[str | None, typer.Option("--family", help="Only this family.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """List the operators with family, status and the devices that have kernels."""
    rows = [
        {
            "op": entry.name,
            "family": entry.family,
            "status": entry.status,
            "devices": catalogue.devices(entry),
        }
        for entry in catalogue.entries(family)
    ]
    if as_json:
        print_json(rows)
        return
    table(
        "operator",
        "family",
        "status",
        "devices",
        rows=[(row["op"], row["family"], row["status"], ", ".join(row["devices"]) or "-") for row in rows],
    )
