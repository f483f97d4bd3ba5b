"""`tileops validate`: is the manifest well-formed, and does the code conform?"""

from __future__ import annotations

from typing import Annotated

import typer

from tileops.cli.console import JsonFlag


def command(
    check_op: Annotated[str | None, typer.Option("--check-op", help="Only this entry.")] = None,
    levels: Annotated[
        str, typer.Option("--levels", help="Levels to check (comma-separated).")
    ] = "schema,signature,bench",
    static: Annotated[
        bool, typer.Option("--static", help="Do not compare entries with code (needs neither torch nor Numba).")
    ] = False,
    references: Annotated[
        bool, typer.Option("--references", help="A reference API whose package is not installed is an error.")
    ] = False,
    explain: Annotated[
        str | None,
        typer.Option("--explain", help="Print this entry's branches, inference plans, indices and generated checks."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Check every manifest entry; exit code 1 if one has an error, 2 for bad flags."""
    from tileops.manifest import validate

    arguments = ["--levels", levels]
    if check_op is not None:
        arguments += ["--check-op", check_op]
    if explain is not None:
        arguments += ["--explain", explain]
    arguments += ["--static"] * static + ["--references"] * references + ["--json"] * as_json
    raise typer.Exit(validate.main(arguments))
