"""The manifest: the external contract of every operator, read from `spec/*.yaml`.

    entry = load_entry("RMSNormFwdOp")
    entry.signature.inputs["x"].shape
    calls = workload.cases(entry)

Neither torch nor Numba is imported here: dtypes are names and a workload row becomes an abstract call. The
modules, one idea each: `loading` (files), `signature` and `entry` (records), `kinds`, `values`, `dtypes`, `adts`
(parameters with fields), `expr` (the expression language), `primitives` (built-in members), `branch` (an entry at one
point of its choices), `plan` (how a branch is inferred), `workload` (rows to calls), `roofline` (costs).

The validator is `validate` (which checks run, and the command), `diagnostics`, one module of checks each for
declarations (`checks`), expressions (`kind_checks`), type families (`family_checks`), branches (`branch_checks`), rows
(`row_checks`) and code (`code_checks`), and `explain`.
"""

from __future__ import annotations

from functools import cache

from tileops.errors import ManifestError
from tileops.manifest import loading
from tileops.manifest.entry import Entry, parse_entry

__all__ = [
    "Entry",
    "ManifestError",
    "implemented_names",
    "load_all",
    "load_entry",
    "load_family",
    "try_load_entry",
]

_entries: dict[str, Entry] = {}


def _parsed(raw: loading.RawEntry) -> Entry:
    entry = _entries.get(raw.name)
    if entry is None:
        entry = _entries.setdefault(raw.name, parse_entry(raw))
    return entry


def _strict(entry: Entry) -> Entry:
    if entry.problems:
        first = entry.problems[0]
        more = f" (and {len(entry.problems) - 1} more; run tileops validate)" if len(entry.problems) > 1 else ""
        raise ManifestError(f"{entry.file}: {entry.name}: {first.field}: {first.message}{more}")
    return entry


def load_entry(name: str, family: str | None = None) -> Entry:
    """The entry of operator `name`.

    Args:
        name: class name of the operator.
        family: its family, where known; then only that family's files are opened.

    Raises:
        ManifestError: there is no such entry, or one of its fields cannot be read.
    """
    if name in _entries:
        return _strict(_entries[name])
    raw = loading.find(name) if family is None else loading.read_family(family).get(name)
    if raw is None:
        raise ManifestError(f"the manifest has no entry {name!r}; `tileops ops` lists those that it has")
    return _strict(_parsed(raw))


def try_load_entry(name: str, family: str | None = None) -> Entry | None:
    """Like `load_entry`, but None where there is no such entry, or an unreadable one: imports never fail on
    the manifest.
    """
    try:
        return load_entry(name, family)
    except ManifestError:
        return None


def implemented_names(family: str) -> tuple[str, ...]:
    """Names of the entries of a family that are implemented, sorted; parses no entry."""
    return loading.implemented_names(family)


def load_family(family: str) -> dict[str, Entry]:
    """Entries of one family by name, in file order; opens that family's files only.

    Raises:
        ManifestError: a file breaks the rules of the layout, or a field cannot be read.
    """
    return {name: _strict(_parsed(raw)) for name, raw in loading.read_family(family).items()}


@cache
def _all() -> tuple[Entry, ...]:
    return tuple(_parsed(raw) for raw in loading.read_all().values())


def load_all(*, strict: bool = True) -> dict[str, Entry]:
    """Every entry by name, in file order.

    Args:
        strict: raise on an entry with an unreadable field instead of returning it with its `problems`.

    Raises:
        ManifestError: a file breaks the rules of the layout or, with `strict`, a field cannot be read.
    """
    return {entry.name: _strict(entry) if strict else entry for entry in _all()}
