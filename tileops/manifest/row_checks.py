"""Checks of an entry's workload rows: each makes calls, their ids are distinct, optional tensors are covered, and
the cost of every call has a value.
"""

from __future__ import annotations

from collections.abc import Iterator

from tileops.errors import ManifestError
from tileops.manifest import kinds as k
from tileops.manifest.entry import Entry
from tileops.manifest.kind_checks import Finding
from tileops.manifest.workload import Call, RowError, instantiate, repeated_case_ids, row_name


def check_rows(entry: Entry) -> Iterator[Finding]:
    """Every row instantiates and has a cost, case ids are distinct, rows that share a label differ only in dtype,
    optional tensors are passed and omitted.
    """
    calls: list[Call] = []
    for position in range(len(entry.workloads)):
        try:
            made = instantiate(entry, position)
        except RowError as error:
            yield error.where, error.message
            continue
        calls += made
    seen: set[str] = set()
    for call in calls:
        for field, message in _cost(call):
            if field not in seen:  # one call is enough to show what is wrong
                seen.add(field)
                yield field, message
    for case_id in repeated_case_ids(calls):
        yield "workloads", f"the case id {case_id!r} occurs twice; give the rows different labels"
    yield from _shared_labels(entry)
    if entry.implemented and calls:
        yield from _coverage(entry, calls)


def _cost(call: Call) -> Iterator[Finding]:
    """A call's cost is two numbers, neither negative."""
    try:
        flops, moved = call.roofline()
    except ManifestError as error:
        text = str(error)
        field = next(
            (field for field in ("roofline.flops", "roofline.bytes") if text.startswith(field)), "roofline.func"
        )
        yield field, f"{text.removeprefix(f'{field}: ')}, for the row {call.case_id}"
    except Exception as error:  # a cost function of ours is at fault: a finding, never a crash
        yield "roofline.func", f"fails for the row {call.case_id}: {type(error).__name__}: {error}"
    else:
        field = "roofline.func" if call.entry.roofline.func else "roofline"
        if flops < 0 or moved < 0:
            yield field, f"the row {call.case_id} costs {flops} flops and {moved} bytes; a cost is not negative"


def _coverage(entry: Entry, calls: list[Call]) -> Iterator[Finding]:
    """Every optional tensor is passed by some row and omitted by another."""
    for decl in entry.signature.tensors.values():
        if decl.optional is None or decl.role == "output":
            continue
        seen = {decl.name in call.inputs or decl.name in call.held for call in calls}
        if True not in seen:
            yield decl.where, f"no row passes {decl.name}; add one that does"
        if False not in seen:
            yield decl.where, f"no row omits {decl.name}; add one that does"


def _shared_labels(entry: Entry) -> Iterator[Finding]:
    first: dict[str, int] = {}
    dtype_params = {
        name
        for name, param in entry.signature.scalars.items()
        if isinstance(param.kind.inner if isinstance(param.kind, k.Maybe) else param.kind, k.DType)
    }
    for position, row in enumerate(entry.workloads):
        if not isinstance(row, dict) or not isinstance(row.get("label"), str):
            continue
        if row["label"] in first:
            other = entry.workloads[first[row["label"]]]
            ignored = {"dtype_cases", *dtype_params}
            if {key: value for key, value in row.items() if key not in ignored} != {
                key: value for key, value in other.items() if key not in ignored
            }:
                yield (
                    f"{row_name(position)}.label",
                    f"{row['label']!r} also names {row_name(first[row['label']])}; rows that share "
                    "a label differ only in dtype",
                )
        else:
            first[row["label"]] = position
