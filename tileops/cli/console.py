"""Printing: tables for people, JSON for programs, errors to stderr."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def output() -> Console:
    """Standard output."""
    return Console()


def errors() -> Console:
    """Standard error."""
    return Console(stderr=True)


def print_json(value: Any) -> None:
    """Prints `value` as indented JSON, undecorated."""
    print(json.dumps(value, indent=2))


def table(*columns: str, rows: list[tuple[Any, ...]], title: str | None = None, numeric: tuple[str, ...] = ()) -> None:
    """Prints a table; on something that is not a terminal, as wide as its content needs."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in numeric else "left", overflow="fold")
    for row in rows:
        made.add_row(*[Text(str(cell)) for cell in row])  # plain text: brackets of a shape are no markup
    console = output()
    if not console.is_terminal:
        console = Console(width=10_000)  # a pipe or a file has no width to fit
    console.print(made)


def usage_error(message: str) -> typer.BadParameter:
    """An error of the caller's arguments (exit code 2)."""
    return typer.BadParameter(message)


def size(count: float) -> str:
    """Bytes for people: ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError
