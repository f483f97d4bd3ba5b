"""Printing: tables for people, JSON for programs, errors to stderr."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text


def writable(path: Path | None) -> Path | None:
    """Refuses a file that cannot be written, before the work whose result it is meant for."""
    if path is None:
        return None
    folder = path.absolute().parent
    if not folder.is_dir():
        raise usage_error(f"{str(path)!r}: there is no folder {str(folder)!r}; create it first")
    if path.is_dir():
        raise usage_error(f"{str(path)!r} is a folder; name a file in it")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise usage_error(f"{str(path)!r} cannot be written: permission denied")
    return path


JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise  # rich calls this while it handles the error, and would exit with 1


def output() -> Console:
    """Standard output."""
    return _Console()


def errors() -> Console:
    """Standard error."""
    return _Console(stderr=True)


def print_error(message: object) -> None:
    """One line on standard error."""
    errors().print(f"error: {message}", style="red", highlight=False, markup=False, soft_wrap=True)


@contextmanager
def clean_end() -> Iterator[None]:
    """Ends a command without a traceback where the world, not the program, is at fault.

    Raises:
        typer.Exit: 0 if the reader of our output has gone (``tileops ops | head -1``), 1 if something cannot be
            read or written, after a line that says what, and 130 if the user interrupts.
    """
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:  # closed by who started us (``>&-``): nothing was written
                sys.stdout.flush()  # a full disk shows here, not when the interpreter ends
    except KeyboardInterrupt:
        print_error("interrupted")
        raise typer.Exit(130) from None
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in the buffer goes nowhere
        if error.errno == errno.EPIPE:
            raise typer.Exit(0) from None
        place = f"{error.filename}: " if error.filename else ""
        print_error(f"{place}{error.strerror or error}")
        raise typer.Exit(1) from None


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
    if console.is_terminal:
        console.print(made)
        return
    console = _Console(width=10_000)  # a pipe or a file has no width to fit
    with console.capture() as printed:
        console.print(made)
    for line in printed.get().splitlines():
        print(line.rstrip())  # without the blanks that fill the last column


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
