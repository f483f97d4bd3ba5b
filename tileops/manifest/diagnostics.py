"""Diagnostics of the validator: what they hold, how they sort and print, and which line of the file they mean."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

#: Levels of checks, in the order in which they are reported.
LEVELS = ("schema", "signature", "bench")


@dataclass(frozen=True)
class Diagnostic:
    """One finding.

    Attributes:
        level: the level of the check.
        file: the spec file, or "" where no single file is at fault.
        entry: the operator, or "".
        field: path of the field inside the entry, for example ``signature.inputs.x.shape``.
        message: what is wrong, ending in what to write instead.
        advisory: it does not fail the validation.
        line: line of the field in the file, from 1; None where it is not known.
    """

    level: str
    file: str
    entry: str
    field: str
    message: str
    advisory: bool = False
    line: int | None = None

    def __str__(self) -> str:
        kind = ("advisory",) if self.advisory else ()
        text = ": ".join(part for part in (*kind, self.entry, self.field, self.message) if part)
        line = "" if self.line is None else f":{self.line}"
        return f"[{self.level}] {text}" + (f" ({self.file}{line})" if self.file else "")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def segments(field: str) -> list[str | int]:
    """A path as the keys and positions that it goes through: ``workloads[0].label`` is workloads, 0, label."""
    found: list[str | int] = []
    for part in field.split("."):
        name, *positions = re.split(r"\[(\d+)\]", part)
        if name:
            found.append(name)
        found += [int(position) for position in positions if position]
    return found


def _natural(field: str) -> list[tuple[int, int, str]]:
    """Sort key of a path: position 2 comes before position 10."""
    return [(0, part, "") if isinstance(part, int) else (1, 0, part) for part in segments(field)]


def ordered(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Without repeats, by level, file, entry, field and message."""
    return sorted(
        set(diagnostics),
        key=lambda item: (
            LEVELS.index(item.level),
            item.file,
            item.entry,
            _natural(item.field),
            item.message,
            item.advisory,
        ),
    )


def located(diagnostics: Iterable[Diagnostic], directory: Path) -> list[Diagnostic]:
    """The diagnostics with the lines of their fields, where `directory` has their files."""
    composed: dict[str, yaml.Node | None] = {}
    found = []
    for item in diagnostics:
        if not item.file.endswith(".yaml"):
            found.append(item)
            continue
        if item.file not in composed:
            composed[item.file] = _composed(directory / item.file)
        path = [item.entry] * bool(item.entry) + segments(item.field)
        found.append(replace(item, line=_line(composed[item.file], path)))
    return found


def _composed(path: Path) -> yaml.Node | None:
    """The nodes of a file with their positions. Composing is slow, so it is done for faulty files only."""
    try:
        return yaml.compose(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError):
        return None


def _line(node: yaml.Node | None, path: list[str | int]) -> int | None:
    """Line of the last step of `path` that exists."""
    line = None
    for part in path:
        match node, part:
            case yaml.MappingNode(value=pairs), str():
                step = next(((key, value) for key, value in pairs if getattr(key, "value", None) == part), None)
            case yaml.SequenceNode(value=items), int() if part < len(items):
                step = (items[part], items[part])
            case _:
                step = None
        if step is None:
            break
        line, node = step[0].start_mark.line + 1, step[1]
    return line
