"""Folding: what is left of an expression once some names are known, as at a point of an entry's
discriminants.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tileops.manifest.expr.syntax import Expr, call_name, field_of, presence_name
from tileops.manifest.primitives import PRIMITIVES, DomainError


@dataclass(frozen=True)
class Facts:
    """What is known.

    Attributes:
        constants: value of names; None for an absent parameter. A field of an ADT is named ``layout.packing``.
        present: whether a tensor or a parameter is there.
    """

    constants: Mapping[str, Any] = field(default_factory=dict)
    present: Mapping[str, bool] = field(default_factory=dict)


_NOTHING = Facts()
_UNKNOWN = object()

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


def fold(expr: Expr, facts: Facts) -> Expr:
    """`expr` with everything decided that `facts` decide. The result is a constant, or keeps only what is
    still open.
    """
    constants, present = facts.constants, facts.present
    for name in expr.atoms:
        if name in constants:
            break
    else:
        for name in expr.tested:
            if name in present:
                break
        else:
            return _settled(expr)
    node = _fold(expr.node, facts)
    return expr if node is expr.node else expr.with_node(node)


def _settled(expr: Expr) -> Expr:
    """`expr` with what its own literals decide, once for all facts that say nothing about it."""
    known = expr.__dict__.get("_settled")
    if known is None:
        node = expr.node if isinstance(expr.node, ast.Name | ast.Constant) else _fold(expr.node, _NOTHING)
        known = expr if node is expr.node else expr.with_node(node)
        expr.__dict__["_settled"] = known
    return known


def _value(node: ast.AST) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Tuple(elts=elements):
            values = [_value(element) for element in elements]
            return _UNKNOWN if _UNKNOWN in values else tuple(values)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) if isinstance(value, int | float):
            return -value
    return _UNKNOWN


def _constant(value: Any, like: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Constant(value), like)


def _fold(node: ast.expr, facts: Facts) -> ast.expr:
    match node:
        case ast.Name(id=name):
            return _constant(facts.constants[name], node) if name in facts.constants else node
        case ast.Attribute(value=ast.Name(id=name), attr="value"):
            return _constant(facts.constants[name], node) if name in facts.constants else node
        case ast.Attribute():
            read = ".".join(field_of(node) or ())
            return _constant(facts.constants[read], node) if read in facts.constants else node
        case ast.BoolOp(op=op, values=values):
            return _fold_bool(node, values, isinstance(op, ast.And), facts)
        case ast.UnaryOp(op=op, operand=operand):
            inner = _fold(operand, facts)
            if isinstance(inner, ast.Constant):
                if isinstance(op, ast.Not):
                    return _constant(not inner.value, node)
                if isinstance(inner.value, int | float):
                    return _constant(-inner.value, node)
            return node if inner is operand else ast.copy_location(ast.UnaryOp(op, inner), node)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            decided = _fold(test, facts)
            if isinstance(decided, ast.Constant):
                return _fold(body if decided.value else orelse, facts)
            return ast.copy_location(ast.IfExp(decided, _fold(body, facts), _fold(orelse, facts)), node)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            return _fold_compare(node, left, ops, comparators, facts)
        case ast.BinOp(left=left, op=op, right=right):
            first, second = _fold(left, facts), _fold(right, facts)
            a, b = _value(first), _value(second)
            if a is not _UNKNOWN and b is not _UNKNOWN:
                try:
                    return _constant(_BINARY[type(op)](a, b), node)
                except (ArithmeticError, TypeError):
                    pass  # reported where the expression is evaluated, with the declaration's name
            return ast.copy_location(ast.BinOp(first, op, second), node)
        case ast.Call():
            return _fold_call(node, facts)
        case ast.Tuple(elts=elements):
            return ast.copy_location(ast.Tuple([_fold(element, facts) for element in elements], ast.Load()), node)
        case ast.Subscript(value=value, slice=index):
            if isinstance(index, ast.Slice):
                parts = [
                    None if part is None else _fold(part, facts) for part in (index.lower, index.upper, index.step)
                ]
                return ast.copy_location(ast.Subscript(_fold(value, facts), ast.Slice(*parts), ast.Load()), node)
            return ast.copy_location(ast.Subscript(_fold(value, facts), _fold(index, facts), ast.Load()), node)
    return node


def _fold_bool(node: ast.BoolOp, values: list[ast.expr], conjunction: bool, facts: Facts) -> ast.expr:
    """Operands that do not matter are dropped; one that decides makes the whole a constant, wherever it
    stands.
    """
    kept: list[ast.expr] = []
    for value in values:
        folded = _fold(value, facts)
        if isinstance(folded, ast.Constant):
            if bool(folded.value) is not conjunction:
                return _constant(not conjunction, node)
        else:
            kept.append(folded)
    if not kept:
        return _constant(conjunction, node)
    return kept[0] if len(kept) == 1 else ast.copy_location(ast.BoolOp(node.op, kept), node)


def _fold_compare(
    node: ast.Compare, left: ast.expr, ops: list[ast.cmpop], comparators: list[ast.expr], facts: Facts
) -> ast.expr:
    operands = [_fold(left, facts), *(_fold(item, facts) for item in comparators)]
    values = [_value(item) for item in operands]
    links = list(zip(ops, values, values[1:], strict=False))
    outcomes = []
    for op, a, b in links:
        if a is _UNKNOWN or b is _UNKNOWN:
            outcomes.append(_UNKNOWN)
            continue
        try:
            outcomes.append(_COMPARE[type(op)](a, b))
        except TypeError:
            outcomes.append(_UNKNOWN)
    if any(outcome is False for outcome in outcomes):
        return _constant(False, node)
    if all(outcome is True for outcome in outcomes):
        return _constant(True, node)
    if len(ops) == 1 and isinstance(ops[0], ast.Eq):
        # `condition == True` is the condition, `condition == False` its negation.
        for mine, other in ((0, 1), (1, 0)):
            if isinstance(values[mine], bool) and _is_condition(operands[other]):
                return (
                    operands[other]
                    if values[mine]
                    else ast.copy_location(ast.UnaryOp(ast.Not(), operands[other]), node)
                )
    return ast.copy_location(ast.Compare(operands[0], ops, operands[1:]), node)


def _is_condition(node: ast.expr) -> bool:
    return isinstance(node, ast.Compare | ast.BoolOp) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    )


def _fold_comprehension(node: ast.GeneratorExp, facts: Facts) -> ast.expr:
    """A comprehension with what does not depend on its variables decided."""
    clauses = []
    for clause in node.generators:
        source = _fold(clause.iter, facts)
        bound = {name.id for name in ast.walk(clause.target) if isinstance(name, ast.Name)}
        hidden = {name for name in facts.constants if name.partition(".")[0] in bound}
        facts = Facts({name: value for name, value in facts.constants.items() if name not in hidden}, facts.present)
        conditions = [_fold(condition, facts) for condition in clause.ifs]
        clauses.append(ast.comprehension(clause.target, source, conditions, 0))
    return ast.copy_location(ast.GeneratorExp(_fold(node.elt, facts), clauses), node)


def _fold_call(node: ast.Call, facts: Facts) -> ast.expr:
    subject = presence_name(node)
    if subject is not None:
        return _constant(facts.present[subject], node) if subject in facts.present else node
    arguments = [
        _fold_comprehension(argument, facts) if isinstance(argument, ast.GeneratorExp) else _fold(argument, facts)
        for argument in node.args
    ]
    keywords = [ast.keyword(item.arg, _fold(item.value, facts)) for item in node.keywords]
    values = [_value(item) for item in [*arguments, *(item.value for item in keywords)]]
    name = call_name(node) or ""
    if values and all(value is not _UNKNOWN for value in values) and name in PRIMITIVES:
        positional = values[: len(arguments)]
        named = {item.arg: value for item, value in zip(keywords, values[len(arguments) :], strict=True) if item.arg}
        try:
            result = PRIMITIVES[name].function(*positional, **named)
        except (DomainError, ArithmeticError, TypeError, KeyError):
            result = _UNKNOWN  # reported where the expression is evaluated, with the declaration's name
        if isinstance(result, bool | int | float | str):
            return _constant(result, node)
    return ast.copy_location(ast.Call(node.func, arguments, keywords), node)
