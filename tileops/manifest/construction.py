"""What can be checked when an op is constructed: parameter values, and the declarations that only parameters
decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tileops.manifest.branch import (
    BranchError,
    Discriminant,
    discriminant_names,
    fold_lets,
    is_domain_restriction,
    point_facts,
    resolve_shape,
    settle_presence,
)
from tileops.manifest.expr import EvaluationError, Expr, Facts, Segment, evaluate, fold
from tileops.manifest.failures import Failures
from tileops.manifest.signature import Signature
from tileops.manifest.values import ValueMismatch, convert


@dataclass(frozen=True)
class ConstructionChecks:
    """Declarations to check once for given construction discriminants.

    Attributes:
        rejected: domain restrictions that no call can meet.
        lets: lets that parameters decide, in order of dependence.
        rules: open refinements over parameters and `lets`.
        sizes: ``(declaration, expression, spliced)`` of axes that must not be negative.
    """

    rejected: tuple[Expr, ...]
    lets: tuple[tuple[str, Expr], ...]
    rules: tuple[Expr, ...]
    sizes: tuple[tuple[str, Expr, bool], ...]


def construction_checks(
    signature: Signature, choices: tuple[Discriminant, ...], values: Mapping[str, Any]
) -> ConstructionChecks:
    """The checks of a construction whose discriminants have `values`."""
    folded_lets, facts = fold_lets(signature, settle_presence(signature, point_facts(choices, values)))
    known = set(signature.scalars)
    lets: list[tuple[str, Expr]] = []
    progress = True
    while progress:
        progress = False
        for name, folded in folded_lets.items():
            if name not in known and folded.names <= known and not folded.tested:
                lets.append((name, folded))
                known.add(name)
                progress = True
    finite = discriminant_names(choices)
    rejected, rules = [], []
    for rule in signature.shape_rules:
        folded = fold(rule, facts)
        if folded.is_constant:
            if not folded.constant and is_domain_restriction(rule, signature, finite):
                rejected.append(rule)
            elif not folded.constant:
                rules.append(folded)
        elif folded.names <= known and not folded.tested:
            rules.append(folded)
    return ConstructionChecks(tuple(rejected), tuple(lets), tuple(rules), tuple(_sizes(signature, facts, known)))


def _sizes(signature: Signature, facts: Facts, known: set[str]) -> list[tuple[str, Expr, bool]]:
    found: dict[str, tuple[str, Expr, bool]] = {}
    for name, decl in signature.tensors.items():
        if not facts.present.get(name):
            continue
        try:
            items = resolve_shape(signature, decl.shape, facts, f"{decl.where}.shape")
        except BranchError:
            continue  # the family's branch depends on which tensors the call passes
        for item in items:
            if not item.expr.is_constant and item.expr.names <= known:
                found.setdefault(item.expr.text, (f"{decl.where}.shape", item.expr, isinstance(item, Segment)))
    return list(found.values())


def bind_parameters(
    signature: Signature,
    failures: Failures,
    given: Mapping[str, Any],
    dtype_name: Callable[[Any], str | None] | None = None,
) -> dict[str, Any]:
    """Converted value of every scalar parameter, defaults included; dtypes by name.

    Raises:
        CheckError: a parameter is missing, unknown, or not of its type.
    """
    unknown = sorted(given.keys() - signature.params.keys())
    if unknown:
        raise failures.unknown_parameter(unknown[0], signature.params)
    values: dict[str, Any] = {}
    for name, param in signature.params.items():
        if name not in given:
            if param.required:
                raise failures.missing_parameter(name)
            values[name] = list(param.default) if isinstance(param.default, list) else param.default
            continue
        if param.tensor is not None:
            values[name] = given[name]
            continue
        try:
            values[name] = convert(given[name], param.kind, dtype_name)
        except ValueMismatch as error:
            raise failures.parameter(name, param.type, str(error)) from None
    return values


def _define(lets: tuple[tuple[str, Expr], ...], expr: Expr, scope: dict[str, Any]) -> None:
    """Gives values to the lets that `expr` reads, and to no others: a rule may be what makes them defined."""
    needed = set(expr.names)
    for name, definition in reversed(lets):
        if name in needed:
            needed |= definition.names
    for name, definition in lets:
        if name in needed and name not in scope:
            scope[name] = evaluate(definition, scope)


def check_construction(
    checks: ConstructionChecks, failures: Failures, signature: Signature, values: Mapping[str, Any]
) -> None:
    """Runs `checks` on parameter values.

    Raises:
        CheckError: a declaration does not hold; it is named.
    """
    scope = dict(values)

    def shown(expr: Expr) -> dict[str, Any]:
        return {name: scope[name] for name in sorted(expr.names | expr.tested) if name in scope}

    if checks.rejected:
        rule = checks.rejected[0]
        raise failures.restriction(rule.where, rule.source, shown(rule))
    sources = {rule.where: rule for rule in signature.shape_rules}
    try:
        for rule in checks.rules:
            _define(checks.lets, rule, scope)
            if not evaluate(rule, scope):
                raise failures.rule(rule.where, rule.source, shown(sources[rule.where]))
        for where, expr, spliced in checks.sizes:
            _define(checks.lets, expr, scope)
            size = evaluate(expr, scope)
            if any(item < 0 for item in (size if spliced else [size])):
                raise failures.negative(where, expr.text, size)
    except EvaluationError as error:
        raise failures.undefined(error.where, error) from None
