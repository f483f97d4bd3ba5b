"""Diagnostics of the validator: what they hold, how they sort and print."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

#: Levels of checks, in the order in which they are reported.
LEVELS = ("schema", "signature", "bench")


@dataclass(frozen=True)
class Diagnostic:
    """One finding.

    Attributes:
        level: the level of the check.
        file: the spec file, or "" where no single file is at fault.
        entry: the operator, or "".
        field: path of the field inside the entry.
        message: what is wrong, ending in what to write instead.
        advisory: it does not fail the validation.
    """

    level: str
    file: str
    entry: str
    field: str
    message: str
    advisory: bool = False

    def __str__(self) -> str:
        place = ": ".join(part for part in (self.entry, self.field) if part)
        where = f" ({self.file})" if self.file else ""
        return f"[{self.level}] {'advisory: ' if self.advisory else ''}{place}: {self.message}{where}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def ordered(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Without repeats, by level, file, entry, field and message."""
    unique = set(diagnostics)
    return sorted(
        unique,
        key=lambda item: (
            LEVELS.index(item.level),
            item.file,
            item.entry,
            item.field,
            item.message,
            item.advisory,
        ),
    )
