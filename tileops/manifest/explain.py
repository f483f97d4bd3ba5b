"""An entry as its author would want to read it: what a call may choose, and for each choice the shapes, the indices
that matter, how they are solved and checked, and what a row has to give.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from tileops.manifest import kinds as k
from tileops.manifest import plan as p
from tileops.manifest.branch import (
    Branch,
    BranchTensor,
    discriminant_names,
    discriminants,
    is_domain_restriction,
)
from tileops.manifest.branch_checks import branches
from tileops.manifest.entry import Entry
from tileops.manifest.expr import fold
from tileops.manifest.workload import cases


def explain(entry: Entry, check_source: Callable[[Entry, Branch], str] | None = None) -> Iterator[str]:
    """Lines of text about a valid entry.

    Args:
        entry: an entry without diagnostics.
        check_source: gives the generated check of a branch; without it, the checks are left out.
    """
    yield f"{entry.name}: {entry.family}, {entry.status}" + (f", follows {entry.ref_api}" if entry.ref_api else "")
    yield from _section("parameters", (f"{name}: {param}" for name, param in entry.signature.params.items()))
    yield from _section("domain restrictions", _restrictions(entry))
    yield from _section("choices", _choices(entry))
    found = [branch for branch in branches(entry) if isinstance(branch, Branch)]
    if len(found) < math.prod(len(choice.values) for choice in discriminants(entry.signature)):
        yield "  shown are accepted combinations; choices that nothing reads together vary one at a time"
    groups: dict[tuple[str, ...], list[Branch]] = {}
    for branch in found:
        groups.setdefault(tuple(_branch(entry, branch)), []).append(branch)
    for number, (lines, alike) in enumerate(groups.items(), start=1):
        yield ""
        point = ", ".join(_values(entry, alike))
        yield f"branch {number} of {len(groups)}" + (f": {point}" if point else "")
        yield from lines
        if check_source is not None:
            yield from _indented("generated check", check_source(entry, alike[0]).splitlines())
    yield ""
    yield from _section("calls of the rows", _rows(entry))


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    listed = list(lines)
    if listed:
        yield f"{title}:"
        yield from (f"  {line}" for line in listed)


def _indented(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield from (f"  {line}" for line in _section(title, lines))


def _choices(entry: Entry) -> Iterator[str]:
    for choice in discriminants(entry.signature):
        when = "construction" if choice.at_construction else "call"
        yield f"{choice.key} is {' or '.join(map(repr, choice.values))}, fixed by the {when}"


def _values(entry: Entry, alike: list[Branch]) -> Iterator[str]:
    """The values of every discriminant at the points of some branches; one that takes them all is left out."""
    for choice in discriminants(entry.signature):
        seen = {dict(branch.point)[choice.name] for branch in alike}
        if len(seen) < len(choice.values):
            yield f"{choice.key} = {' or '.join(repr(value) for value in choice.values if value in seen)}"


def _restrictions(entry: Entry) -> Iterator[str]:
    finite = discriminant_names(discriminants(entry.signature))
    for rule in entry.signature.shape_rules:
        if is_domain_restriction(rule, entry.signature, finite):
            yield f"{rule.where.removeprefix('signature.')}: {rule.source}"


def _branch(entry: Entry, branch: Branch) -> Iterator[str]:
    for title, tensors in (("held", branch.held), ("inputs", branch.inputs), ("outputs", branch.outputs)):
        yield from _indented(title, (_tensor(branch, tensor) for tensor in tensors.values()))
    formulas = [formula for formula in (entry.roofline.flops, entry.roofline.bytes) if formula is not None]
    relevant = branch.relevant(*formulas)
    indices = {name: kind for name, kind in entry.signature.indices.items() if name in relevant}
    dtypes = [name for name, kind in indices.items() if isinstance(kind, k.DType)]
    given = [name for name in indices if name not in dtypes and name not in _generated(branch)]
    cases_over = f"; dtype_cases over {', '.join(dtypes)}" if dtypes else ""
    yield f"  a row gives: {', '.join(given) or 'no index'}{cases_over}"
    unused = [name for name in entry.signature.indices if name not in relevant]
    if unused:
        yield f"  not used here: {', '.join(unused)}"
    yield from _indented("solved and checked, in order", (step_text(step) for step in p.plan_branch(branch).steps))
    costs = [
        f"{key} = {fold(formula, branch.facts).text}"
        for key, formula in (("flops", entry.roofline.flops), ("bytes", entry.roofline.bytes))
        if formula is not None
    ]
    if entry.roofline.func is not None:
        costs = [entry.roofline.func]
    yield from _indented("cost", costs)


def _generated(branch: Branch) -> set[str]:
    """Indices that generators of metadata tensors determine."""
    found: set[str] = set()
    for tensor in branch.inputs.values():
        if tensor.decl.values is not None:
            arguments = branch.reads([fold(tensor.decl.values, branch.facts)])
            found |= {name for item in tensor.items for name in branch.reads([item.expr])} - arguments
    return found


def _tensor(branch: Branch, tensor: BranchTensor) -> str:
    decl = tensor.decl
    notes = ["written"] if tensor.name in branch.written else []
    if decl.alias is not None and decl.alias in branch.written:
        notes.append(f"is {decl.alias}")
    if decl.values is not None:
        notes.append(f"values {fold(decl.values, branch.facts).text}")
    notes += [f"requires {fold(predicate, branch.facts).text}" for predicate in decl.requires]
    notes += [text for flag, text in ((decl.contiguous, "contiguous"), (decl.cpu, "on the CPU")) if flag]
    dtype = tensor.dtype.constant if tensor.dtype.is_constant else tensor.dtype.text
    return ", ".join([f"{tensor.name}: {dtype} {tensor.shape_text}", *notes])


def step_text(step: p.Step) -> str:
    """One step of a plan in words, with the time at which it happens."""
    return f"{'construction' if step.at_construction else 'call':<12} {_step(step)}"


def _axis(tensor: str, place: p.Place) -> str:
    """An axis as Python would index it."""
    lengths = [f"len({segment.text})" for segment in place.segments]
    if place.from_right:
        return f"{tensor}.shape[{' - '.join([str(-1 - place.fixed), *lengths])}]"
    parts = [str(place.fixed), *lengths] if place.fixed or not lengths else lengths
    return f"{tensor}.shape[{' + '.join(parts)}]"


def _step(step: p.Step) -> str:
    match step:
        case p.CheckRank(tensor=tensor, fixed=fixed, segments=segments, open=at_least):
            axes = " + ".join([str(fixed), *(f"len({segment.text})" for segment in segments)])
            return f"{tensor} has {'at least ' if at_least else ''}{axes} {'axis' if axes == '1' else 'axes'}"
        case p.BindDim(tensor=tensor, place=place, name=name):
            return f"{name} := {_axis(tensor, place)}"
        case p.BindAffine(tensor=tensor, place=place, name=name, scale=scale, offset=offset):
            size = _axis(tensor, place)
            rest = size if offset.text == "0" else f"({size} - {_operand(offset.text)})"
            return f"{name} := {rest}" + ("" if scale.text == "1" else f" / {_operand(scale.text)}, exactly")
        case p.BindShape(tensor=tensor, start=start, stop=stop, name=name):
            low, high = (
                " + ".join([str(place.fixed), *(f"len({segment.text})" for segment in place.segments)])
                for place in (start, stop)
            )
            first = "" if low == "0" else low
            last = "" if high == "0" else f"len({tensor}.shape) - {_operand(high)}"
            return f"{name} := {tensor}.shape[{first}:{last}]"
        case p.BindDType(tensor=tensor, name=name, names=names):
            return f"{name} := the dtype of {tensor}, {' or '.join(names)}"
        case p.CheckDType(tensor=tensor, expr=expr):
            return f"{tensor} has dtype {expr.constant if expr.is_constant else expr.text}"
        case p.CheckAxis(tensor=tensor, place=place, expr=expr):
            return f"{_axis(tensor, place)} == {expr.text}"
        case p.CheckSegment(tensor=tensor, place=place, expr=expr):
            return f"{tensor}.shape has {expr.text} from axis {_axis('', place)[7:-1]} on"
        case p.Let(name=name, expr=expr):
            return f"{name} := {expr.text}"
        case p.CheckRule(rule=rule):
            return f"{rule.where.removeprefix('signature.')}: {rule.text}"
        case p.CheckNonNegative(declaration=where, expr=expr):
            return f"{where.removeprefix('signature.')}: {expr.text} is not negative"
        case p.CheckCombo(names=names, rows=rows):
            return f"({', '.join(names)}) is one of the {len(rows)} rows of dtype_combos"
    return repr(step)


def _operand(text: str) -> str:
    return text if text.replace("_", "").isalnum() else f"({text})"


def _rows(entry: Entry) -> Iterator[str]:
    for call in cases(entry):
        shapes = ", ".join(f"{name} {item.dtype}{list(item.shape)}" for name, item in call.inputs.items())
        flops, moved = call.roofline()
        yield f"{call.case_id}: {shapes}; {flops:.4g} flops, {moved:.4g} bytes"
