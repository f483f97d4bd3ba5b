"""Checks of one entry at its discriminant points: families, kinds, metadata, aliases and plans of every branch."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
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
    fold_lets,
    group_discriminants,
    is_domain_restriction,
    obeys_invariants,
    point_facts,
    settle_presence,
)
from tileops.manifest.dtypes import DTYPES
from tileops.manifest.entry import Entry
from tileops.manifest.expr import Expr, ExpressionError, Scope, Segment, fold, infer
from tileops.manifest.expr.syntax import call_name
from tileops.manifest.kind_checks import Finding, wanted
from tileops.manifest.plan import plan_branch
from tileops.manifest.primitives import GENERATORS, PREDICATES, DomainError, Member
from tileops.manifest.scopes import branch_scope
from tileops.manifest.signature import Signature

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
    if not obeys_invariants(signature, facts):
        return False
    _, facts = fold_lets(signature, facts)
    for rule in restrictions:
        folded = fold(rule, facts)
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
    dtype_combos column matters. Of the findings of one field the first is told, with the number of the others.
    """
    by_field: dict[str, list[str]] = {}
    for field, message in _branch_findings(entry):
        messages = by_field.setdefault(field, [])
        if message not in messages:
            messages.append(message)
    for field, (first, *others) in by_field.items():
        yield field, first + (f" (and {len(others)} more of the kind)" if others else "")


def _branch_findings(entry: Entry) -> Iterator[Finding]:
    for item in branches(entry):
        if not isinstance(item, Branch):
            yield item
            continue
        faults = [*_branch_kinds(item), *_branch_metadata(item), *_branch_aliases(item)]
        yield from faults
        if faults:
            continue
        try:
            plan_branch(item)
        except BranchError as error:
            yield error.field, error.message
        formulas = [formula for formula in (entry.roofline.flops, entry.roofline.bytes) if formula is not None]
        relevant = item.relevant(*formulas)
        for name in entry.signature.combos[0] if entry.signature.combos else ():
            if name in entry.signature.indices and name not in relevant:
                yield (
                    "signature.dtype_combos",
                    f"the column {name} is not used where {_point_text(item)}; use it on every branch",
                )


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


def _branch_metadata(branch: Branch) -> Iterator[Finding]:
    """Calls of generators and predicates have arguments of the right kinds, and tensors of the rank and dtype that
    they are about.
    """
    scope = branch_scope(branch)
    for tensor in branch.inputs.values():
        decl = tensor.decl
        if decl.values is None:
            continue
        yield from _member_call(decl.values, f"{decl.where}.values", GENERATORS, branch, scope)
        rank = None if any(isinstance(item, Segment) for item in tensor.items) else len(tensor.items)
        member = GENERATORS.get(_called(decl.values))
        if member is not None and member.rank not in (None, rank):
            axes = f"{rank} axes" if rank is not None else "as many axes as its segments"
            yield (
                f"{decl.where}.shape",
                f"{member.name} makes a tensor of rank {member.rank}, the shape {tensor.shape_text} has {axes}",
            )
        kind = _kind(tensor.dtype, scope)
        if isinstance(kind, k.DType | k.Str):
            names = kind.names if isinstance(kind, k.DType) else kind.literals or ()
            odd = [name for name in names if name not in ("int32", "int64")]
            if odd:
                yield f"{decl.where}.dtype", f"a generated tensor is int32 or int64, not {', '.join(odd)}"
        for predicate in decl.requires:
            field = predicate.where
            yield from _member_call(predicate, field, PREDICATES, branch, scope)
            reads = PREDICATES.get(_called(predicate))
            if reads is not None and reads.rank not in (None, rank):
                yield field, f"{reads.name} reads a tensor of rank {reads.rank}, {decl.name} has {tensor.shape_text}"


def _called(expr: Expr) -> str:
    return (call_name(expr.node) if isinstance(expr.node, ast.Call) else None) or ""


def _kind(expr: Expr, scope: Scope) -> k.Kind | None:
    try:
        return infer(expr, scope)
    except ExpressionError:
        return None  # reported by _branch_kinds


def _member_call(
    expr: Expr, field: str, registry: Mapping[str, Member], branch: Branch, scope: Scope
) -> Iterator[Finding]:
    """The arguments of a generator or predicate call have the kinds of its formals; a tensor among them is a
    metadata tensor that is there.
    """
    member = registry.get(_called(expr))
    if member is None:
        return  # reported by check_kinds
    assert isinstance(expr.node, ast.Call)
    positional: list[k.Kind] = []
    try:
        for position, argument in enumerate(expr.node.args):
            formal = member.formals[min(position, len(member.formals) - 1)] if member.formals else None
            if formal is not None and formal.tensor and isinstance(argument, ast.Name):
                other = branch.signature.inputs.get(argument.id)
                if other is None or other.values is None:
                    yield field, f"{argument.id} is no metadata tensor; {formal.name} of {member.name} is one"
                    return
                if argument.id not in branch.inputs:
                    yield field, f"{argument.id} may be absent from a call that has this tensor; give both one presence"
                    return
                positional.append(k.TENSOR)
            else:
                positional.append(infer(expr.with_node(argument), scope))
        keywords = {item.arg: infer(expr.with_node(item.value), scope) for item in expr.node.keywords if item.arg}
        member.bind(positional, keywords)
    except ExpressionError as error:
        yield field, str(error).removeprefix(f"{expr.where}: ")
    except DomainError as error:
        yield field, f"in {expr.source!r}: {error}"


def _point_text(branch: Branch) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in branch.point)


def _branch_aliases(branch: Branch) -> Iterator[Finding]:
    """An output that is the written input has its shape and dtype."""
    for tensor in branch.outputs.values():
        alias = tensor.decl.alias
        if alias is None or alias not in branch.written:
            continue
        target = branch.inputs[alias]
        for what, mine, other in (
            ("shape", tensor.shape_text, target.shape_text),
            ("dtype", tensor.dtype.text, target.dtype.text),
        ):
            if mine != other:
                yield f"{tensor.decl.where}.{what}", f"the output is {alias}, whose {what} is {other}; write the same"


def _is_dtype_literal(kind: k.Kind) -> bool:
    return isinstance(kind, k.Str) and kind.literals is not None and set(kind.literals) <= DTYPES.keys()
