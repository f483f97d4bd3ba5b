"""`tileops new OP`: the first lines of an operator, in the places where they belong."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tileops.cli.console import output, usage_error


def command(
    op: Annotated[str, typer.Argument(help="Name of the operator: Softsign, or SoftsignFwdOp.")],
    ref_api: Annotated[
        str, typer.Option("--ref-api", help="What it follows, for example torch.nn.functional.softsign.")
    ],
    family: Annotated[str, typer.Option("--family", help="Its family.")] = "elementwise",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be written, and write nothing.")] = False,
) -> None:
    """Start a new operator: spec entry, kernel, op class, reference and test, from the signature of a reference API."""
    from tileops.cli import scaffold

    root = Path(__file__).resolve().parents[2]
    if not (root / "pyproject.toml").exists() or not (root / "tests").is_dir():
        raise usage_error(
            f"{root} is no checkout of the sources; clone the repository and install it with pip install -e ."
        )
    try:
        plan = scaffold.plan(op, ref_api, family, root)
    except ValueError as error:
        raise usage_error(str(error)) from None
    console = output()
    for edit in plan.edits:
        path = edit.path.relative_to(root)
        console.print(f"{'new  ' if edit.is_new else 'edit '} {path}", highlight=False, markup=False)
        if dry_run:
            console.print(edit.added, highlight=False, markup=False, soft_wrap=True)
    if not dry_run:
        for edit in plan.edits:
            edit.path.parent.mkdir(parents=True, exist_ok=True)
            edit.path.write_text(edit.text)
    console.print("\nNext:", highlight=False)
    for number, step in enumerate(plan.steps, 1):
        console.print(f"{number}. {step}", highlight=False, markup=False, soft_wrap=True)
