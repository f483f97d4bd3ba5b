"""`tileops cache`: the kernels on disk."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tileops.cli import cache_explain, catalogue
from tileops.cli.cache_explain import PLAIN
from tileops.cli.console import JsonFlag, output, print_json, size, table, usage_error
from tileops.cli.warm import arch_list, check_cpu
from tileops.errors import TileOpsError

if TYPE_CHECKING:
    from tileops.autotune.shipping import Selection
    from tileops.jit.store import StoredEntry

app = typer.Typer(help="Look at the kernel cache, check it, ship it, or empty it.", no_args_is_help=True)

YesFlag = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
OpOption = Annotated[list[str] | None, typer.Option("--op", help="Only kernels of this operator (repeatable).")]


@app.command("info")
def info(as_json: JsonFlag = False) -> None:
    """Show the cache directory, its state and size."""
    from tileops.autotune.record import default_records
    from tileops.jit.store import default_store

    facts = default_store().info()
    facts["records"] = default_records().disk.count()
    if as_json:
        print_json(facts)
        return
    used = f"{size(facts['bytes'])} of {size(facts['size_limit'])}"
    rows = [
        ("directory", facts["directory"]),
        ("state", facts["state"]),
        ("kernels", facts["entries"]),
        ("size", used),
        ("tuning records", facts["records"]),
    ]
    if facts["quarantine"]:
        rows.append(("quarantine", f"{facts['quarantine']} damaged files kept for inspection"))
    rows += [("bundle", bundle) for bundle in facts["bundles"]]
    table("cache", "", rows=rows)


@app.command("ls")
def ls(
    op: OpOption = None,
    bundles: Annotated[bool, typer.Option("--bundles", help="List the kernels of the bundles too.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """List the compiled kernels, the most recently used first."""
    from tileops.jit.store import default_store

    names = _op_names(op)
    found = [entry for entry in default_store().entries(bundles) if names is None or entry.op in names]
    if as_json:
        print_json([entry.to_dict() for entry in found])
        return
    _list(found)


@app.command("show")
def show(
    key: Annotated[str, typer.Argument(help="Key of a kernel, or its first digits.")], as_json: JsonFlag = False
) -> None:
    """Show everything that is known of one compiled kernel: what it was compiled from, for what, and when."""
    from tileops.jit.store import default_store

    matching = [entry for entry in default_store().entries(bundles=True) if entry.key.startswith(key.lower())]
    keys = sorted({entry.key for entry in matching})
    if len(keys) != 1:
        few = ", ".join(found[:12] for found in keys[:4])
        what = (
            f"{len(keys)} kernels have such a key ({few}{', ...' if len(keys) > 4 else ''})"
            if keys
            else "no kernel has such a key"
        )
        raise usage_error(f"{key!r}: {what}; `tileops cache ls` lists them")
    entry = matching[0]
    facts = {**entry.to_dict(), "place": entry.place, "facts": dict(entry.facts), "fields": dict(entry.fields)}
    if as_json:
        print_json(facts)
        return
    cache_explain.print_entry(entry)


@app.command("why")
def why(
    op: Annotated[str, typer.Argument(help="Operator.")],
    case: Annotated[list[str], typer.Option("--case", help="Case id (repeatable); `tileops show OP` lists them.")],
    arch: Annotated[str, typer.Option("--arch", help="native (a CPU), sm_80, sm_90a, ...")] = "native",
    cpu: Annotated[str | None, typer.Option("--cpu", help="What 'native' means (default: as TILEOPS_CPU).")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Say for each kernel of a case whether it is in the cache, and if not, which fields of its key differ."""
    check_cpu(cpu)
    entry = catalogue.find_entry(op)
    found = cache_explain.explain(entry.name, case, arch_list(arch), cpu)
    if as_json:
        print_json(found)
        return
    cache_explain.print_explanations(found)


@app.command("verify")
def verify(as_json: JsonFlag = False) -> None:
    """Check every byte of every kernel and tuning record, of the bundles too; exit code 1 where one is damaged."""
    from tileops.autotune.record import default_records
    from tileops.jit.bundle import open_bundles
    from tileops.jit.store import Damage, default_store

    store, records = default_store(), default_records()
    try:
        kernels, damage = store.verify()
        tuned, more = records.verify()
    except OSError as error:
        raise TileOpsError(f"the cache at {store.root} cannot be checked: {error}") from error
    damage += more
    bundles = open_bundles(_cache_path())
    for bundle in bundles:
        tuned += len(bundle.manifest["records"])
        damage += [Damage(str(bundle), name, "does not match its checksum") for name in bundle.verify()]
    known = list({(found.place, found.name.rpartition("/")[2]): found for found in reversed(damage)}.values())
    facts: dict[str, Any] = {
        "kernels": kernels,
        "records": tuned,
        "bundles": len(bundles),
        "damaged": [{"place": found.place, "name": found.name, "reason": found.reason} for found in reversed(known)],
    }
    if as_json:
        print_json(facts)
    else:
        for found in facts["damaged"]:
            output().print(f"{found['place']}: {found['name']}: {found['reason']}", style="red", **PLAIN)
        verdict = f"{len(known)} damaged" if known else "sound"
        text = f"{kernels} kernels, {tuned} tuning records, {len(bundles)} bundles: {verdict}"
        output().print(text, **PLAIN)
    if known:
        raise typer.Exit(1)


@app.command("prune")
def prune(
    max_size: Annotated[
        str | None, typer.Option("--max-size", help="Drop the kernels used longest ago beyond this size (500MB).")
    ] = None,
    unused: Annotated[
        float | None, typer.Option("--unused", min=0, help="Drop kernels unused for so many days.")
    ] = None,
    stale: Annotated[
        bool, typer.Option("--stale", help="Drop kernels that this installation will not ask for again.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list them.")] = False,
    yes: YesFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Remove compiled kernels by size, age or staleness. Tuning records stay."""
    from tileops.jit.store import default_store
    from tileops.settings import parse_size

    if max_size is None and unused is None and not stale:
        raise usage_error("say what to remove: --max-size, --unused or --stale")
    try:
        limit = None if max_size is None else parse_size(max_size)
    except ValueError as error:
        raise usage_error(f"--max-size {max_size!r}: {error}") from None
    store = default_store()
    chosen = store.prunable(size=limit, unused_for=None if unused is None else unused * 86400.0, stale=stale)
    removed = 0
    if not dry_run and chosen:
        if not as_json and not yes:
            _list(chosen)
        _confirm(f"Remove these {len(chosen)} compiled kernels from {store.root}?", yes)
        removed = store.remove([entry.key for entry in chosen])
        _check_removed(removed, len(chosen), store.root, store.fault())
    if as_json:
        print_json({"directory": str(store.root), "chosen": [entry.to_dict() for entry in chosen], "removed": removed})
        return
    if dry_run:
        _list(chosen)
    freed = size(sum(entry.size for entry in chosen))
    text = f"{len(chosen)} kernels ({freed}) could go" if dry_run else f"removed {removed} kernels ({freed})"
    output().print(f"{text} from {store.root}", **PLAIN)


@app.command("clear")
def clear(
    records: Annotated[bool, typer.Option("--records", help="Remove the tuning records too.")] = False,
    yes: YesFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Remove every compiled kernel. Tuning records stay unless asked for."""
    from tileops.autotune.record import default_records
    from tileops.jit.store import default_store

    store, tuned = default_store(), default_records()
    count = store.info()["entries"]
    kept = tuned.disk.count() if records else 0
    if count or kept:
        what = f"{count} compiled kernels{f' and {kept} tuning records' if kept else ''}"
        _confirm(f"Remove {what} from {store.root}?", yes)
    gone: dict[str, Any] = {
        "directory": str(store.root),
        "kernels": store.clear(),
        "records": tuned.clear() if records else 0,
    }
    _check_removed(gone["kernels"], count, store.root, store.fault())
    _check_removed(gone["records"], kept, store.root, tuned.disk.fault())
    if as_json:
        print_json(gone)
        return
    extra = f" and {gone['records']} tuning records" if records else ""
    output().print(f"removed {gone['kernels']} kernels{extra} from {store.root}", **PLAIN)


@app.command("export")
def export(
    file: Annotated[Path, typer.Argument(help="Bundle to write, customarily *.tobundle.")],
    op: OpOption = None,
    arch: Annotated[
        str | None,
        typer.Option("--arch", help="Comma-separated: cpu, a CPU name, sm_80, sm_90a, ... (default: all)."),
    ] = None,
    calls: Annotated[
        Path | None, typer.Option("--calls", help="Exactly what the recorded calls of this file need.")
    ] = None,
    sign: Annotated[
        Path | None, typer.Option("--sign", help="Sign with the Ed25519 private key of this PEM file.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write kernels and tuning records to one file, for `tileops cache import` or TILEOPS_CACHE_PATH elsewhere."""
    from tileops.autotune.shipping import export_cache

    facts = export_cache(file, _selection(op, arch, calls), sign_key=sign)
    if as_json:
        print_json(facts)
        return
    signed = "signed" if facts["signed"] else "not signed"
    output().print(
        f"{file}: {facts['kernels']} kernels, {facts['records']} tuning records, {size(facts['bytes'])}, {signed}",
        **PLAIN,
    )


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A bundle that `tileops cache export` wrote.")],
    key: Annotated[
        Path | None, typer.Option("--key", help="PEM file of the Ed25519 public key that it must be signed with.")
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Take it unsigned: it is code that this machine will run.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Put the contents of a bundle into the cache, after checking every byte of it and its signature."""
    from tileops.autotune.shipping import import_cache

    if key is not None and trust:
        raise usage_error("--key and --trust exclude each other")
    facts = import_cache(file, key=key, trust=trust)
    if as_json:
        print_json(facts)
        return
    made = datetime.fromtimestamp(facts["created"], UTC).strftime("%Y-%m-%d %H:%M")
    output().print(
        f"{file} (of {made} UTC, tileops {facts['tileops']}): {facts['kernels']} kernels and {facts['records']} tuning "
        f"records imported, {facts['present']} entries were there already",
        **PLAIN,
    )


def _list(entries: list[StoredEntry]) -> None:
    rows = [
        (
            entry.key[:12],
            entry.op,
            entry.device,
            entry.arch,
            entry.dtype,
            size(entry.size),
            entry.last_used.strftime("%Y-%m-%d %H:%M") if entry.last_used.timestamp() else "in a bundle",
        )
        for entry in entries
    ]
    table("key", "op", "device", "arch", "dtype", "size", "last used", rows=rows, numeric=("size",))


def _confirm(question: str, yes: bool) -> None:
    if not yes:
        typer.confirm(question, abort=True, err=True)


def _check_removed(removed: int, wanted: int, place: Path, fault: str) -> None:
    if removed < wanted and fault:  # without a fault another process was faster
        raise TileOpsError(f"{wanted - removed} of {wanted} entries of {place} are still there: {fault}")


def _op_names(ops: list[str] | None) -> set[str] | None:
    return None if not ops else {catalogue.find_entry(name).name for name in ops}


def _selection(ops: list[str] | None, arch: str | None, calls: Path | None) -> Selection:
    from tileops.autotune.shipping import Selection

    # Kernels of one compute capability are listed without the suffix that their code generation has.
    named = None if arch is None else [name.strip().removesuffix("a") for name in arch.split(",") if name.strip()]
    if calls is None:
        return Selection(_op_names(ops), None if named is None else _spellings(named))
    from tileops.ops.warming import needs

    gpus = [name if name != "sm_90" else "sm_90a" for name in named or () if name.startswith("sm_")]
    with_cpu = named is None or len(gpus) < len(named)
    wanted = needs(sorted(_op_names(ops) or ()) or None, calls=calls, arch=[*(["native"] if with_cpu else []), *gpus])
    return Selection(kernels={key.digest for _, key in wanted.kernels()}, records=wanted.records)


def _spellings(arches: list[str]) -> set[str]:
    return {spelling for name in arches for spelling in ((name, f"{name}a") if name.startswith("sm_") else (name,))}


def _cache_path() -> tuple[str, ...]:
    from tileops import settings

    return settings.current().cache_path
