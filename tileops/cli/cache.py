"""`tileops cache`: the kernels on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tileops.cli.console import JsonFlag, output, print_json, size, table
from tileops.errors import TileOpsError

app = typer.Typer(help="Look at the kernel cache, or empty it.", no_args_is_help=True)


@app.command("info")
def info(as_json: JsonFlag = False) -> None:
    """Show the cache directory, its state and size."""
    from tileops.jit.store import default_store

    facts = default_store().info()
    if as_json:
        print_json(facts)
        return
    used = f"{size(facts['bytes'])} of {size(facts['size_limit'])}"
    rows = [
        ("directory", facts["directory"]),
        ("state", facts["state"]),
        ("kernels", facts["entries"]),
        ("size", used),
    ]
    rows += [("bundle", bundle) for bundle in facts["bundles"]]
    table("cache", "", rows=rows)


@app.command("ls")
def ls(as_json: JsonFlag = False) -> None:
    """List the compiled kernels, the most recently used first."""
    from tileops.jit.store import default_store

    entries = [entry.to_dict() for entry in default_store().entries()]
    if as_json:
        print_json(entries)
        return
    rows = [
        (
            e["key"][:12],
            e["op"],
            e["device"],
            e["arch"],
            e["dtype"],
            size(e["size"]),
            e["last_used"][:16].replace("T", " "),
        )
        for e in entries
    ]
    table("key", "op", "device", "arch", "dtype", "size", "last used", rows=rows, numeric=("size",))


@app.command("export")
def export(
    file: Annotated[Path, typer.Argument(help="Bundle to write, customarily *.tobundle.")],
    as_json: JsonFlag = False,
) -> None:
    """Write every kernel and tuning record to one file, for TILEOPS_CACHE_PATH elsewhere."""
    from tileops.autotune.record import default_records
    from tileops.jit.bundle import write_bundle
    from tileops.jit.store import default_store

    kernels = dict(default_store().encoded())
    records = {row.name: row.value for row in default_records().disk.rows()}
    try:
        write_bundle(file, kernels, records)
    except OSError as error:
        raise TileOpsError(f"cannot write {file}: {error.strerror or error}") from error
    written = file.stat().st_size
    if as_json:
        print_json({"file": str(file), "kernels": len(kernels), "records": len(records), "bytes": written})
        return
    output().print(
        f"{file}: {len(kernels)} kernels, {len(records)} tuning records, {size(written)}",
        highlight=False,
        soft_wrap=True,
    )


@app.command("clear")
def clear(yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False) -> None:
    """Remove every compiled kernel. Tuning records stay."""
    from tileops.jit.store import default_store

    store = default_store()
    count = store.info()["entries"]
    if count and not yes:
        typer.confirm(f"Remove {count} compiled kernels from {store.root}?", abort=True)
    output().print(f"removed {store.clear()} kernels from {store.root}", highlight=False, soft_wrap=True)
