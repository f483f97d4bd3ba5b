"""Entry point of the `tileops` command.

Command modules import what they need inside their functions, so that `tileops --version` and `tileops ops`
load neither torch nor Numba before they have to.
"""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from tileops import __version__
from tileops.cli import bench, cache, config, demo, doctor, new, ops, show, tune, validate, warm
from tileops.cli.console import clean_end, errors, print_error
from tileops.errors import TileOpsError, TileOpsWarning


class _Commands(TyperGroup):
    """The commands, each of which ends cleanly. Typer itself would exit with 1 at a closed pipe."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:  # prints the help
        with clean_end():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with clean_end():
            return super().invoke(ctx)


app = typer.Typer(
    cls=_Commands,
    help="Operators for language models, compiled from Numba on first use.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("ops")(ops.command)
app.command("show")(show.command)
app.command("demo")(demo.command)
app.command("bench")(bench.command)
app.command("warm")(warm.command)
app.command("tune")(tune.command)
app.command("validate")(validate.command)
app.command("doctor")(doctor.command)
app.command("new")(new.command)
app.command("config")(config.command)
app.add_typer(cache.app, name="cache")


def _version(value: bool) -> None:
    if value:
        print(f"tileops {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of every command."""


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    # One plain line: to someone at a terminal, the source line that warned says nothing.
    errors().print(f"warning: {message}", style="yellow", highlight=False, markup=False, soft_wrap=True)


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line; exits with 1 after an error and with 2 after bad usage."""
    from tileops import settings

    show_warning = warnings.showwarning
    warnings.showwarning = _show_warning
    warnings.simplefilter("once", TileOpsWarning)
    try:
        level = settings.current().log
        if level is not None:
            logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
            logging.getLogger("tileops").setLevel(level.upper())
        app(args=arguments, prog_name="tileops")
    except TileOpsError as error:
        print_error(error)
        raise SystemExit(1) from None
    finally:
        warnings.showwarning = show_warning
        # Nobody waits for the garbage of torch's modules: the interpreter would look for it for half a second.
        gc.freeze()


if __name__ == "__main__":
    main()
