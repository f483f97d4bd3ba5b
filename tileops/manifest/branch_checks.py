"""Checks of one entry at its discriminant points: families, kinds and plans of every branch, and the rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from tileops.manifest import kinds as k
from tileops.manifest.branch import (
    Branch,
    BranchError,
    Discriminant,
    branch_at,
    combinations,
    discriminant_names,
    discriminants,
    group_discriminants,
    is_domain_restriction,
    point_facts,
    settle_presence,
)
from tileops.manifest.checks import Finding, global_scope, wanted
from tileops.manifest.dtypes import DTYPES
from tileops.manifest.entry import Entry
from tileops.manifest.expr import Expr, ExpressionError, Facts, Scope, Segment, fold, infer
from tileops.manifest.plan import plan_branch
from tileops.manifest.signature import Signature
from tileops.manifest.workload import Call, RowError, instantiate, repeated_case_ids, row_name

#: More combinations of one group than this are not enumerated.
MAX_COMBINATIONS = 256

# --- branches ---


@lru_cache(maxsize=1024)
def _points(entry: Entry) -> tuple[tuple[dict[str, Any], ...], tuple[Finding, ...]]:
    """Accepted assignments of the discriminants to check: every combination inside a group, the others at an
    accepted value.
    """
    signature = entry.signature
    choices = discriminants(signature)
    finite = discriminant_names(choices)
    restrictions = [rule for rule in signature.shape_rules if is_domain_restriction(rule, signature, finite)]
    findings: list[Finding] = []
    accepted: list[list[dict[str, Any]]] = []
    for group in group_discriminants(signature, choices):
        total = 1
        for choice in group:
            total *= len(choice.values)
        if total > MAX_COMBINATIONS:
            names = ", ".join(choice.key for choice in group)
            findings.append(
                (
                    "signature",
                    f"advisory: {total} combinations of {names}; only {MAX_COMBINATIONS} are checked",
                )
            )
        kept = []
        for count, values in enumerate(combinations(group)):
            if count >= MAX_COMBINATIONS:
                break
            if _accepted(signature, choices, restrictions, values):
                kept.append(values)
        if not kept:
            names = ", ".join(choice.key for choice in group)
            findings.append(
                (
                    "signature.shape_rules",
                    f"the domain restrictions reject every combination of {names}; relax one of them",
                )
            )
            return (), tuple(findings)
        accepted.append(kept)
    base = {name: value for kept in accepted for name, value in kept[0].items()}
    points = [base]
    for kept in accepted:
        points += [{**base, **values} for values in kept[1:]]
    return tuple(points), tuple(findings)


def _accepted(
    signature: Signature, choices: tuple[Discriminant, ...], restrictions: list[Expr], values: dict[str, Any]
) -> bool:
    facts = settle_presence(signature, point_facts(choices, values))
    lets = {name: fold(expr, facts) for name, expr in signature.lets.items()}
    constants = {
        **facts.constants,
        **{name: expr.constant for name, expr in lets.items() if expr.is_constant},
    }
    for rule in restrictions:
        folded = fold(rule, Facts(constants, facts.present))
        if folded.is_constant and not folded.constant:
            return False
    return True


def branches(entry: Entry) -> Iterator[Branch | Finding]:
    """The branch of every accepted point that is checked, or what prevents it."""
    points, findings = _points(entry)
    yield from findings
    choices = discriminants(entry.signature)
    for values in points:
        try:
            branch = branch_at(entry.signature, choices, values)
        except BranchError as error:
            yield error.field, error.message
        else:
            if not branch.restrictions:
                yield branch


def check_branches(entry: Entry) -> Iterator[Finding]:
    """At every accepted point families have one case, kinds fit, an inference plan exists, and every
    dtype_combos column matters.
    """
    for item in branches(entry):
        if not isinstance(item, Branch):
            yield item
            continue
        kinds = list(_branch_kinds(item))
        yield from kinds
        if kinds:
            continue
        try:
            plan_branch(item)
        except BranchError as error:
            yield error.field, error.message
        formulas = [formula for formula in (entry.roofline.flops, entry.roofline.bytes) if formula is not None]
        relevant = item.relevant(*formulas)
        for name in entry.signature.combos[0] if entry.signature.combos else ():
            if name in entry.signature.indices and name not in relevant:
                where = ", ".join(f"{key}={value!r}" for key, value in item.point)
                yield (
                    "signature.dtype_combos",
                    f"the column {name} is not used where {where}; use it on every branch",
                )


def branch_scope(branch: Branch) -> Scope:
    """Names and kinds on one branch: presence is decided there."""
    scope = global_scope(branch.signature)
    present, absent = set(scope.present), set(scope.absent)
    names = dict(scope.names)
    for name, there in branch.facts.present.items():
        (present if there else absent).add(name)
        kind = names.get(name)
        if isinstance(kind, k.Maybe):
            names[name] = kind.inner if there else k.NONE
    for name, expr in branch.lets.items():
        try:
            names[name] = infer(expr, replace(scope, names=names, present=frozenset(present), absent=frozenset(absent)))
        except ExpressionError:
            continue  # reported by check_kinds
    return replace(scope, names=names, present=frozenset(present), absent=frozenset(absent))


def _branch_kinds(branch: Branch) -> Iterator[Finding]:
    scope = branch_scope(branch)
    for tensor in branch.tensors.values():
        decl = tensor.decl
        yield from wanted(
            tensor.dtype,
            scope,
            f"{decl.where}.dtype",
            lambda kind: isinstance(kind, k.DType) or _is_dtype_literal(kind),
            "a dtype",
        )
        for item in tensor.items:
            if isinstance(item, Segment):
                accepts, what = (
                    (lambda kind: k.fits(kind, k.INTS)),
                    "a Shape or a sequence of integers after *",
                )
            else:
                accepts, what = (lambda kind: k.fits(kind, k.INT)), "an integer"
            yield from wanted(item.expr, scope, f"{decl.where}.shape", accepts, what)


def _is_dtype_literal(kind: k.Kind) -> bool:
    return isinstance(kind, k.Str) and kind.literals is not None and set(kind.literals) <= DTYPES.keys()


# --- rows ---


def check_rows(entry: Entry) -> Iterator[Finding]:
    """Every row instantiates, case ids are distinct, rows that share a label differ only in dtype, optional
    tensors are covered.
    """
    calls: list[Call] = []
    for position in range(len(entry.workloads)):
        try:
            calls += instantiate(entry, position)
        except RowError as error:
            yield error.where, error.message
    for case_id in repeated_case_ids(calls):
        yield "workloads", f"the case id {case_id!r} occurs twice; give the rows different labels"
    yield from _shared_labels(entry)
    if not entry.implemented or len(calls) == 0:
        return
    signature = entry.signature
    for name, decl in signature.inputs.items():
        if decl.optional is None:
            continue
        seen = {name in call.inputs for call in calls}
        if True not in seen:
            yield decl.where, f"no row passes {name}; add one that does"
        if False not in seen:
            yield decl.where, f"no row omits {name}; add one that does"


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
