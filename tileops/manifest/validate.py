"""The validator: every static check of every entry, and for implemented entries the comparison with their
classes.

    python scripts/validate_manifest.py [--check-op NAME] [--levels schema,signature,bench] [--static]
    [--json]

Exit status 0: nothing found. 1: at least one error. 2: bad usage. Diagnostics are sorted and do not depend on
hash order.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tileops.errors import ManifestError
from tileops.manifest import branch_checks, checks, loading
from tileops.manifest.diagnostics import LEVELS, Diagnostic, ordered
from tileops.manifest.entry import Entry, parse_entry

#: Checks of one entry by level. Each is skipped where fields that it reads could not be read.
STATIC_CHECKS: tuple[tuple[str, Callable[[Entry], Iterable[checks.Finding]]], ...] = (
    ("schema", checks.check_key),
    ("schema", checks.check_ref_api),
    ("signature", checks.check_names),
    ("signature", checks.check_order),
    ("signature", checks.check_kinds),
    ("signature", checks.check_families),
    ("signature", checks.check_effects),
    ("signature", checks.check_combos),
    ("signature", branch_checks.check_branches),
    ("signature", branch_checks.check_rows),
)

#: A check that reads these fields is skipped where one of them could not be read.
_READS_SIGNATURE = ("check_kinds", "check_families", "check_branches", "check_rows", "check_combos")


def load_entries(directory: Path = loading.SPEC_DIR) -> tuple[list[Entry], list[Diagnostic]]:
    """Every entry that can be read at all, and what is wrong with the files."""
    entries: dict[str, Entry] = {}
    found: list[Diagnostic] = []
    for path in loading.spec_files(directory):
        try:
            raw_entries = loading.read_file(path)
        except ManifestError as error:
            found.append(Diagnostic("schema", path.name, "", "", str(error).removeprefix(f"{path.name}: ")))
            continue
        for raw in raw_entries:
            if raw.name in entries:
                message = f"the operator is also in {entries[raw.name].file}; keep one of the entries"
                found.append(Diagnostic("schema", raw.file, raw.name, "", message))
            else:
                entries[raw.name] = parse_entry(raw)
    return list(entries.values()), found


def check_entry(entry: Entry, names: frozenset[str] = frozenset()) -> list[Diagnostic]:
    """Static diagnostics of one entry.

    Args:
        entry: the entry.
        names: every operator of the manifest, for references between entries.
    """
    found = [
        Diagnostic(_level(problem.field), entry.file, entry.name, problem.field, problem.message)
        for problem in entry.problems
    ]
    broken_signature = any(problem.field.startswith("signature") for problem in entry.problems)
    broken_roofline = any(problem.field.startswith("roofline") for problem in entry.problems)
    for level, check in STATIC_CHECKS:
        if broken_signature and check.__name__ in _READS_SIGNATURE:
            continue
        if broken_roofline and check.__name__ in ("check_rows", "check_branches"):
            continue
        if check.__name__ == "check_rows" and any(not item.advisory for item in found):
            continue  # a row of an ill-formed signature says nothing new
        for field, message in check(entry):
            advisory = message.startswith("advisory: ")
            found.append(Diagnostic(level, entry.file, entry.name, field, message.removeprefix("advisory: "), advisory))
    for stage in entry.composition:
        if stage.op is not None and stage.op not in names:
            found.append(
                Diagnostic(
                    "schema",
                    entry.file,
                    entry.name,
                    "composition.stages",
                    f"stage {stage.name}: there is no entry {stage.op!r}",
                )
            )
    return found


def _level(field: str) -> str:
    return "signature" if field.startswith(("signature", "workloads", "roofline.flops", "roofline.bytes")) else "schema"


def validate(
    levels: Sequence[str] = LEVELS,
    only: str | None = None,
    directory: Path = loading.SPEC_DIR,
    *,
    code: bool = True,
) -> tuple[list[Diagnostic], int]:
    """Runs the checks.

    Args:
        levels: the levels to report.
        only: one operator, or None for all.
        directory: of the spec files.
        code: also compare implemented entries with their classes; imports them, and torch.

    Returns:
        Sorted diagnostics, and the number of entries checked.

    Raises:
        KeyError: there is no entry `only`.
    """
    entries, found = load_entries(directory)
    names = frozenset(entry.name for entry in entries)
    if only is not None:
        if only not in names:
            raise KeyError(only)
        entries = [entry for entry in entries if entry.name == only]
        files = {entry.file for entry in entries}
        found = [item for item in found if item.file in files]
    for entry in entries:
        found += check_entry(entry, names)
    if code:
        from tileops.manifest import code_checks

        found += code_checks.check_code(entries, whole=only is None)
    return ordered(item for item in found if item.level in levels), len(entries)


def build_parser() -> argparse.ArgumentParser:
    """The command line of the validator."""
    parser = argparse.ArgumentParser(
        prog="validate_manifest", description="Checks every entry of the operator manifest."
    )
    parser.add_argument("--check-op", metavar="NAME", help="check one operator only")
    parser.add_argument("--levels", default=",".join(LEVELS), help=f"comma-separated levels of {', '.join(LEVELS)}")
    parser.add_argument(
        "--static",
        action="store_true",
        help="do not compare entries with code; needs neither torch nor numba",
    )
    parser.add_argument("--json", action="store_true", help="print a list of diagnostics as JSON")
    parser.add_argument("--verbose", action="store_true", help="also print how long it took")
    parser.add_argument("--spec-dir", type=Path, default=loading.SPEC_DIR, help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the validator and prints its findings; returns the exit status."""
    parser = build_parser()
    options = parser.parse_args(arguments)  # exits with 2 on bad usage
    levels = [level.strip() for level in options.levels.split(",") if level.strip()]
    unknown = [level for level in levels if level not in LEVELS]
    if unknown or not levels:
        print(
            f"--levels: unknown level {', '.join(unknown) or '(none)'}; known are {', '.join(LEVELS)}",
            file=sys.stderr,
        )
        return 2
    start = time.perf_counter()
    try:
        found, count = validate(levels, options.check_op, options.spec_dir, code=not options.static)
    except KeyError:
        print(f"--check-op: the manifest has no entry {options.check_op!r}", file=sys.stderr)
        return 2
    errors = [item for item in found if not item.advisory]
    if options.json:
        print(json.dumps([item.as_dict() for item in found], indent=2))
        return 1 if errors else 0
    for item in found:
        print(item)
    noun = "entry" if count == 1 else "entries"
    advisory = f", {len(found) - len(errors)} advisory" if len(found) != len(errors) else ""
    print(f"{count} {noun} checked: {len(errors)} error{'' if len(errors) == 1 else 's'}{advisory}")
    if options.verbose:
        print(f"{time.perf_counter() - start:.2f} s")
    return 1 if errors else 0
