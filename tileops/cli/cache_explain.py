"""Why a kernel is in the cache or not: its key, field by field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tileops.cli.console import output, size, table, usage_error

if TYPE_CHECKING:
    from tileops.jit.artifact import ArtifactKey
    from tileops.jit.store import Store, StoredEntry

PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "soft_wrap": True}
"""How to print a line as it is."""


def explain(op: str, case_ids: list[str], arches: list[str], cpu: str | None) -> list[dict[str, Any]]:
    """What the cache holds for the kernels of some cases, as plain values.

    Raises:
        typer.BadParameter: the operator has no such case.
    """
    from tileops.jit.store import default_store
    from tileops.ops.warming import needs

    found = needs([op], case_ids=case_ids, arch=arches, cpu=cpu)
    known = {need.case_id for need in found.programs} | {case for _, _, case, _ in found.refused}
    if not known:
        raise usage_error(f"{op} has no case {case_ids[0]!r} with a kernel; `tileops show {op}` lists its cases")
    store = default_store()
    explained = [
        {"case": need.case_id, "arch": need.arch, "program": str(need.program), "key": key.digest, **_state(store, key)}
        for need, key in found.kernels()
    ]
    refused = [
        {"case": case, "arch": arch, "program": None, "key": None, "state": "no kernel", "reason": reason}
        for _, arch, case, reason in found.refused
    ]
    return [*explained, *refused]


def _state(store: Store, key: ArtifactKey) -> dict[str, Any]:
    place = store.place_of(key)
    if place is not None:
        return {"state": "present", "place": place}
    nearest = store.nearest(key)
    if nearest is None:
        return {"state": "missing", "nearest": None, "differs": {}}
    digest, fields = nearest
    differing = {name: {"wanted": wanted, "stored": stored} for name, (wanted, stored) in fields.items()}
    return {"state": "missing", "nearest": digest, "differs": differing}


def print_explanations(explained: list[dict[str, Any]]) -> None:
    """Prints what `explain` found."""
    console = output()
    for item in explained:
        console.print(f"{item['case']} ({item['arch']}): {item['program'] or item['state']}", style="bold", **PLAIN)
        if item["state"] == "no kernel":
            console.print(f"  {item['reason']}", **PLAIN)
            continue
        console.print(f"  key {item['key']}", **PLAIN)
        if item["state"] == "present":
            console.print(f"  present in {item['place']}", **PLAIN)
        elif item["nearest"] is None:
            console.print("  missing: the cache is empty; `tileops warm` fills it", **PLAIN)
        else:
            console.print(f"  missing; the nearest key is {item['nearest'][:12]}, which differs in", **PLAIN)
            rows = [(f"    {name}", *_shown(name, sides)) for name, sides in item["differs"].items()]
            table("    field", "wanted", "stored", rows=rows)


def _shown(field: str, sides: dict[str, Any]) -> tuple[str, str]:
    """Both sides of a difference; of long lists of features only what differs."""
    wanted, stored = sides["wanted"], sides["stored"]
    if field == "target.features" and isinstance(wanted, str) and isinstance(stored, str):
        ours, theirs = set(wanted.split(",")), set(stored.split(","))
        return ",".join(sorted(ours - theirs)) or "-", ",".join(sorted(theirs - ours)) or "-"
    if field == "sources" and isinstance(wanted, str) and isinstance(stored, str):
        return f"{wanted[:12]} (as installed)", f"{stored[:12]} (edited or another version)"
    return ("-" if wanted is None else str(wanted)), ("-" if stored is None else str(stored))


def print_entry(entry: StoredEntry) -> None:
    """Prints everything that is known of a stored kernel."""
    from tileops.jit.artifact import flatten
    from tileops.jit.keys import stale_reason

    used = entry.last_used.strftime("%Y-%m-%d %H:%M UTC") if entry.last_used.timestamp() else "-"
    facts = [
        ("key", entry.key),
        ("op", entry.op),
        ("place", entry.place),
        ("size", size(entry.size)),
        ("last used", used),
        ("state", stale_reason(entry.fields) or "current"),
    ]
    table("kernel", "", rows=facts)
    table("compiled from", "", rows=[(name, value) for name, value in flatten(dict(entry.fields)).items()])
    table("facts", "", rows=[(name, value) for name, value in flatten(dict(entry.facts)).items()])
