"""The validator: every static check of every entry, and for implemented entries the comparison with their
classes.

    python scripts/validate_manifest.py [--check-op NAME] [--levels schema,signature,bench] [--static] [--json]
    python scripts/validate_manifest.py --explain NAME

Exit status 0: nothing found. 1: at least one error. 2: bad usage. Diagnostics are sorted and do not depend on
hash order.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tileops.errors import ManifestError
from tileops.manifest import adts, branch_checks, checks, family_checks, kind_checks, loading, row_checks
from tileops.manifest.branch import Branch
from tileops.manifest.diagnostics import LEVELS, Diagnostic, located, ordered, segments
from tileops.manifest.entry import Entry, parse_entry
from tileops.manifest.signature import Problem
from tileops.manifest.suggest import suggestion


@dataclass(frozen=True)
class Check:
    """One static check of an entry.

    Attributes:
        level: the level of its findings.
        run: gives `(field, message)` of each; a message that begins with "advisory: " does not fail the validation.
        reads: paths of the fields that it reads, ``*`` for any name or position. It is skipped where one of them,
            or something inside it, could not be read. An expression check that skips single expressions itself
            names only what it cannot do without.
        needs: checks that must have found nothing, because this one would repeat what they found.
    """

    level: str
    run: Callable[[Entry], Iterable[tuple[str, str]]]
    reads: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.run.__name__


def _paths(section: str, *keys: str) -> tuple[str, ...]:
    """Paths of these keys of every item of a section of the signature."""
    return tuple(f"signature.{section}.*.{key}" for key in keys)


_SHAPES = ("signature.types", *_paths("params", "shape"), *_paths("inputs", "shape"), *_paths("outputs", "shape"))
#: What a branch consists of: everything that is folded at a point of the discriminants.
_BRANCHES = (
    *(f"signature.{section}" for section in ("forall", "let", "shape_rules", "dtype_combos")),
    *_SHAPES,
    *_paths("params", "type", "dtype", "optional"),
    *_paths("inputs", "dtype", "optional", "mutated", "values", "requires"),
    *_paths("outputs", "dtype", "nullable", "buffer", "alias"),
    "roofline.flops",
    "roofline.bytes",
)

#: What a branch can be made of only where they found nothing.
_WELL_FORMED = ("check_names", "check_kinds", "check_families", "check_effects", "check_combos")

STATIC_CHECKS: tuple[Check, ...] = (
    Check("schema", checks.check_key),
    Check("schema", checks.check_ref_api),
    Check("signature", checks.check_names),
    Check(
        "signature",
        checks.check_order,
        (*_paths("inputs", "optional", "kw_only"), *_paths("params", "type", "default", "optional", "kw_only")),
    ),
    Check("signature", kind_checks.check_kinds),
    Check("signature", kind_checks.check_costs),
    Check("signature", family_checks.check_families, _SHAPES),
    Check(
        "signature",
        checks.check_effects,
        (*_paths("inputs", "optional", "kw_only", "mutated", "write_only"), *_paths("outputs", "alias", "buffer")),
    ),
    Check("signature", checks.check_combos, ("signature.dtype_combos", "signature.forall", *_paths("params", "type"))),
    Check("signature", branch_checks.check_branches, _BRANCHES, _WELL_FORMED),
    Check("signature", kind_checks.check_uses, _BRANCHES, (*_WELL_FORMED, "check_costs", "check_branches")),
    Check(
        "signature",
        row_checks.check_rows,
        ("signature", "roofline", "workloads"),
        (*_WELL_FORMED, "check_costs", "check_branches", "check_order"),
    ),
)


def _overlap(pattern: str, field: str) -> bool:
    """Whether one path lies inside the other; ``*`` stands for any step."""
    steps = zip(segments(pattern), segments(field), strict=False)
    return all(want in ("*", got) for want, got in steps)


def load_entries(directory: Path = loading.SPEC_DIR) -> tuple[list[Entry], list[Diagnostic]]:
    """Every entry that can be read at all, and what is wrong with the files."""
    entries: dict[str, Entry] = {}
    _, problems = adts.installed(directory)
    found = [Diagnostic("schema", loading.TYPES_FILE, "", field, message) for field, message in problems]
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
        for problem in _first_problems(entry)
    ]
    unreadable = [problem.field for problem in entry.problems if problem.unreadable]
    failed: set[str] = set()
    for check in STATIC_CHECKS:
        if failed & set(check.needs):
            failed.add(check.name)
            continue
        if any(_overlap(pattern, field) for pattern in check.reads for field in unreadable):
            failed.add(check.name)
            continue
        for field, message in check.run(entry):
            advisory = message.startswith("advisory: ")
            text = message.removeprefix("advisory: ")
            found.append(Diagnostic(check.level, entry.file, entry.name, field, text, advisory))
            if not advisory:
                failed.add(check.name)
    for position, stage in enumerate(entry.composition):
        if stage.op is not None and stage.op not in names:
            field = f"composition.stages[{position}].op"
            message = (
                f"there is no entry {stage.op!r}{suggestion(stage.op, names)}; name one of the manifest, or a kernel"
            )
            found.append(Diagnostic("schema", entry.file, entry.name, field, message))
    return ordered(found)


def _first_problems(entry: Entry) -> Iterator[Problem]:
    """The faults of reading, without those that follow from another: inside an unreadable field, or of it again."""
    whole: list[list[str | int]] = []
    for problem in entry.problems:
        path = segments(problem.field)
        if any(path[: len(other)] == other for other in whole):
            continue
        if problem.unreadable:
            whole.append(path)
        yield problem


def _level(field: str) -> str:
    return "signature" if field.startswith(("signature", "workloads", "roofline.flops", "roofline.bytes")) else "schema"


def _torch_is_installed() -> bool:
    try:
        return importlib.util.find_spec("torch") is not None
    except ImportError:
        return False


def validate(
    levels: Sequence[str] = LEVELS,
    only: str | None = None,
    directory: Path = loading.SPEC_DIR,
    *,
    code: bool = True,
    references: bool = False,
) -> tuple[list[Diagnostic], int]:
    """Runs the checks.

    Args:
        levels: the levels to report.
        only: one operator, or None for all.
        directory: of the spec files.
        code: also compare implemented entries with their classes; imports them, and torch. Where torch is not
            installed, an advisory says that this was left out.
        references: a `ref_api` whose package is not installed is an error.

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
        found = [item for item in found if item.file in (*files, loading.TYPES_FILE)]
    for entry in entries:
        found += check_entry(entry, names)
    if code and not _torch_is_installed():
        message = "torch is not installed: implemented entries were not compared with their classes"
        found.append(Diagnostic("schema", "", "", "", message, advisory=True))
    elif code:
        from tileops.manifest import code_checks

        found += code_checks.check_code(entries, whole=only is None, references=references)
    reported = [item for item in found if item.level in levels]
    return ordered(located(reported, directory)), len(entries)


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
    parser.add_argument(
        "--references", action="store_true", help="a reference API whose package is not installed is an error"
    )
    parser.add_argument("--json", action="store_true", help="print a list of diagnostics as JSON")
    parser.add_argument(
        "--explain", metavar="NAME", help="print one operator's branches, inference plans, indices and checks"
    )
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
    if options.explain is not None:
        return _explain(options.explain, options.spec_dir, code=not options.static)
    start = time.perf_counter()
    try:
        found, count = validate(
            levels, options.check_op, options.spec_dir, code=not options.static, references=options.references
        )
    except KeyError:
        closest = suggestion(options.check_op, (entry.name for entry in load_entries(options.spec_dir)[0]))
        print(f"--check-op: the manifest has no entry {options.check_op!r}{closest}", file=sys.stderr)
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


def _explain(name: str, directory: Path, *, code: bool) -> int:
    from tileops.manifest.explain import explain

    entries, _ = load_entries(directory)
    entry = next((entry for entry in entries if entry.name == name), None)
    if entry is None:
        closest = suggestion(name, (entry.name for entry in entries))
        print(f"--explain: the manifest has no entry {name!r}{closest}", file=sys.stderr)
        return 2
    errors = [item for item in check_entry(entry, frozenset(item.name for item in entries)) if not item.advisory]
    for item in located(errors, directory):
        print(item)
    if errors:
        print(f"{name} has {len(errors)} error{'' if len(errors) == 1 else 's'}; correct them first")
        return 1
    check_source: Callable[[Entry, Branch], str] | None = None
    if code and _torch_is_installed():
        from tileops.manifest import code_checks

        check_source = code_checks.generated_check
    for line in explain(entry, check_source):
        print(line)
    return 0
