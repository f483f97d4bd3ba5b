"""Single faults of valid entries, each with every diagnostic that it gives, word for word.

`mutations.txt` is the table: a change of one of the entries of `helpers`, then its diagnostics, indented. Diagnostics
are a contract with authors and tools: a change of their words shows in the table, which
``python -m tests.manifest.test_mutations`` writes anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.manifest import helpers
from tileops.manifest.diagnostics import segments

TABLE = Path(__file__).with_name("mutations.txt")
Change = Callable[[dict[str, Any]], None]


def _place(fields: Any, path: str | int) -> tuple[Any, Any]:
    *front, last = segments(path) if isinstance(path, str) else [path]
    for part in front:
        fields = fields[part]
    return fields, last


def put(path: str | int, value: object, *more: Any) -> Change:
    """Sets a field; `more` are further paths and values, where a fault takes two."""

    def change(fields: dict[str, Any]) -> None:
        pairs = (path, value, *more)
        for where, what in zip(pairs[::2], pairs[1::2], strict=True):
            parent, last = _place(fields, where)
            parent[last] = what

    return change


def drop(path: str) -> Change:
    """Removes a field or an element."""

    def change(fields: dict[str, Any]) -> None:
        parent, last = _place(fields, path)
        del parent[last]

    return change


def add(path: str, value: object) -> Change:
    """Appends an element."""

    def change(fields: dict[str, Any]) -> None:
        parent, last = _place(fields, path)
        parent[last].append(value)

    return change


def rule(text: object) -> Change:
    """One more refinement."""
    return add("signature.shape_rules", text)


def table() -> Iterator[tuple[str, str, list[str]]]:
    """`(entry, change, diagnostics)` of every row."""
    entry, rows = "", []
    for line in TABLE.read_text().splitlines():
        if line.startswith("=== "):
            entry = line.removeprefix("=== ")
        elif line.startswith("    "):
            rows[-1][2].append(line.strip())
        elif line and not line.startswith("#"):
            rows.append((entry, line, []))
    yield from rows


def diagnostics(entry: str, change: str) -> list[str]:
    """Diagnostics of a changed entry."""
    fields = helpers.base(getattr(helpers, entry))
    eval(change)(fields)
    return helpers.findings(fields)


ROWS = list(table())


@pytest.mark.parametrize("entry", ["BASE", "GROUPED"])
def test_the_unchanged_entries_are_valid(entry: str) -> None:
    assert helpers.findings(helpers.base(getattr(helpers, entry))) == []


@pytest.mark.parametrize(("entry", "change", "expected"), ROWS, ids=[f"{entry}-{change}" for entry, change, _ in ROWS])
def test_a_fault_is_named(entry: str, change: str, expected: list[str]) -> None:
    assert expected
    assert diagnostics(entry, change) == expected


def test_the_table_is_large_and_without_repeats() -> None:
    changes = [(entry, change) for entry, change, _ in ROWS]
    assert len(changes) >= 250
    assert len(set(changes)) == len(changes)


def write() -> None:
    """Writes the diagnostics of every change of the table anew."""
    entry, lines = "", []
    for line in TABLE.read_text().splitlines():
        if line.startswith("    "):
            continue
        lines.append(line)
        if line.startswith("=== "):
            entry = line.removeprefix("=== ")
        elif line and not line.startswith("#"):
            lines += [f"    {text}" for text in diagnostics(entry, line)]
    TABLE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write()
