"""Kind inference with guard narrowing: every expression of an entry has a kind, or an error that names the
construct.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tileops.manifest import kinds as k
from tileops.manifest.dtypes import DTYPES
from tileops.manifest.expr.syntax import COMPREHENSION_CALLS, Expr, call_name, field_of, presence_name
from tileops.manifest.primitives import PRIMITIVES, DomainError
from tileops.manifest.suggest import suggestion


@dataclass(frozen=True)
class Scope:
    """Names that an expression may read.

    Attributes:
        names: name -> kind, after narrowing.
        present: names known to be present.
        absent: names known to be absent.
        allow_bytes: ``bytes(t)`` is allowed (roofline formulas).
        unreachable: the guards exclude every value; nothing is checked any more.
    """

    names: Mapping[str, k.Kind]
    present: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()
    allow_bytes: bool = False
    unreachable: bool = False
    bound: Mapping[str, k.Kind] = field(default_factory=dict)

    def kind(self, name: str) -> k.Kind | None:
        return self.bound.get(name) or self.names.get(name)

    def with_kind(self, name: str, kind: k.Kind | None) -> Scope:
        if kind is None:
            return replace(self, unreachable=True)
        return replace(self, names={**self.names, name: kind})


def infer(expr: Expr, scope: Scope) -> k.Kind:
    """Kind of `expr`.

    Raises:
        ExpressionError: an unknown name or primitive, or a construct over the wrong kinds.
    """
    return _Inference(expr).kind(expr.node, scope)


def narrow(expr: Expr, truth: bool, scope: Scope) -> Scope:
    """`scope` where the condition `expr` is known to be `truth`."""
    return _Inference(expr).narrow(expr.node, truth, scope)


class _Inference:
    def __init__(self, expr: Expr) -> None:
        self.expr = expr

    def kind(self, node: ast.expr, scope: Scope) -> k.Kind:
        if scope.unreachable:
            return k.NONE
        match node:
            case ast.Constant(value=value):
                return _literal_kind(value)
            case ast.Name(id=name):
                return self._name(node, name, scope)
            case ast.Tuple(elts=elements):
                kinds = [self.kind(element, scope) for element in elements]
                common = kinds[0] if kinds else k.INT
                for other in kinds[1:]:
                    common = k.join(common, other) or k.Union((common, other))
                return k.Seq(common, len(kinds), "tuple")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self._condition(operand, scope)
                return k.BOOL
            case ast.UnaryOp(operand=operand):
                kind = self._numeric(operand, scope)
                return k.REAL if kind == k.REAL else k.INT
            case ast.BinOp():
                return self._arithmetic(node, scope)
            case ast.BoolOp(op=op, values=values):
                inner = scope
                for value in values:
                    self._condition(value, inner)
                    inner = self.narrow(value, isinstance(op, ast.And), inner)
                return k.BOOL
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                for link, first, second in zip(ops, [left, *comparators], comparators, strict=False):
                    self._comparison(link, first, second, scope)
                return k.BOOL
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return self._conditional(node, test, body, orelse, scope)
            case ast.Call():
                return self._call(node, scope)
            case ast.Subscript(value=value, slice=index):
                return self._subscript(node, value, index, scope)
            case ast.Attribute(value=ast.Name(id=name), attr="value"):
                return self._payload(node, name, scope)
            case ast.Attribute(value=value, attr=attribute):
                return self._field(node, value, attribute, scope)
        raise self.expr.error("is outside the expression language", node)

    # --- leaves ---

    def _name(self, node: ast.expr, name: str, scope: Scope) -> k.Kind:
        if name == "inf":
            return k.REAL
        kind = scope.kind(name)
        if kind is None:
            closest = suggestion(name, (*scope.names, *scope.bound))
            raise self.expr.error(f"{name!r} is not declared{closest}; declare it in forall, params or let", node)
        if isinstance(kind, k.Tensor):
            raise self.expr.error(f"{name!r} is a tensor; only present({name}) tests it", node)
        return kind

    def _field(self, node: ast.Attribute, value: ast.expr, attribute: str, scope: Scope) -> k.Kind:
        """A field of an ADT, which every constructor that is still possible must have."""
        subject = ast.unparse(value)
        kind = self.kind(value, scope)
        if isinstance(kind, k.Maybe):
            raise self.expr.error(
                f"{subject}.{attribute} is read where {subject} may be absent; guard it with present({subject})", node
            )
        if not isinstance(kind, k.ADT):
            raise self.expr.error(f"{subject!r} is of kind {kind}, which has no field {attribute!r}", node)
        known = scope.names.get(".".join(field_of(node) or ()))
        if attribute == "kind":
            names = tuple(constructor.name for constructor in kind.constructors)
            return k.Str(names) if known is None else k.restrict(known, names) or k.Str(names)
        fields = [constructor.field(attribute) for constructor in kind.constructors]
        lacking = [
            constructor.name for constructor, field in zip(kind.constructors, fields, strict=True) if field is None
        ]
        if len(lacking) == len(fields):
            raise self.expr.error(f"no constructor of {kind} that is possible here has a field {attribute!r}", node)
        if lacking:
            guard = next(item.name for item, field in zip(kind.constructors, fields, strict=True) if field is not None)
            raise self.expr.error(
                f"{attribute!r} is a field of {guard} only, but {subject} may be {lacking[0]} here; "
                f"guard it with {subject}.kind == {guard!r}",
                node,
            )
        if known is not None:
            return known
        common: k.Kind | None = None
        for found in fields:
            assert found is not None
            common = found.kind if common is None else k.join(common, found.kind)
        if common is None:
            raise self.expr.error(f"{attribute!r} is of different kinds in the constructors of {kind}", node)
        return common

    def _payload(self, node: ast.expr, name: str, scope: Scope) -> k.Kind:
        kind = scope.kind(name)
        if kind is None:
            raise self.expr.error(f"{name!r} is not declared; declare it in params", node)
        if isinstance(kind, k.Maybe | k.NoneKind):
            raise self.expr.error(
                f"{name}.value is read where {name} may be absent; guard it with present({name})", node
            )
        if name not in scope.present:
            raise self.expr.error(f"{name!r} is of kind {kind}, which has no payload; write {name}", node)
        return kind

    # --- operators ---

    def _numeric(self, node: ast.expr, scope: Scope) -> k.Kind:
        kind = self.kind(node, scope)
        if scope.unreachable or k.fits(kind, k.NUMBER):
            return k.REAL if isinstance(kind, k.Union) else kind
        hint = ""
        if isinstance(kind, k.Maybe) and isinstance(node, ast.Name):
            hint = f"; guard it with present({node.id}) and read {node.id}.value"
        raise self.expr.error(f"arithmetic needs numbers, {ast.unparse(node)!r} is of kind {kind}{hint}", node)

    def _arithmetic(self, node: ast.BinOp, scope: Scope) -> k.Kind:
        left, right = self._numeric(node.left, scope), self._numeric(node.right, scope)
        if k.REAL in (left, right):
            return k.REAL
        if isinstance(node.op, ast.FloorDiv | ast.Mod) and _is_literal(node.right, 0):
            raise self.expr.error("division by zero", node)
        if isinstance(node.op, ast.Sub) or k.INT in (left, right):
            return k.INT
        return k.DIM

    def _condition(self, node: ast.expr, scope: Scope) -> None:
        kind = self.kind(node, scope)
        if not scope.unreachable and kind != k.BOOL:
            raise self.expr.error(f"a condition is of kind Bool, {ast.unparse(node)!r} is of kind {kind}", node)

    def _comparison(self, op: ast.cmpop, left: ast.expr, right: ast.expr, scope: Scope) -> None:
        first, second = self.kind(left, scope), self.kind(right, scope)
        if scope.unreachable:
            return
        if isinstance(op, ast.In | ast.NotIn):
            if not isinstance(second, k.Seq | k.Shape):
                raise self.expr.error(
                    f"'in' needs a sequence on its right, {ast.unparse(right)!r} is of kind {second}", right
                )
            for literal in _literals(right) or ():
                self._check_literal(left, first, literal, right)
            return
        if isinstance(op, ast.Eq | ast.NotEq):
            for subject, kind, other in ((left, first, right), (right, second, left)):
                if isinstance(other, ast.Constant):
                    self._check_literal(subject, kind, other.value, other)
                    return
            numbers = k.fits(first, k.NUMBER) and k.fits(second, k.NUMBER)
            if k.disjoint(first, second):
                raise self.expr.error(f"{first} and {second} are never equal: they have no value in common", left)
            if k.join(first, second) is None and not numbers:
                raise self.expr.error(f"{first} and {second} are never equal: compare values of one kind", left)
            return
        for subject, kind in ((left, first), (right, second)):
            if not k.fits(kind, k.NUMBER):
                hint = ""
                if isinstance(kind, k.Maybe) and isinstance(subject, ast.Name):
                    hint = f"; guard it with present({subject.id}) and read {subject.id}.value"
                raise self.expr.error(
                    f"an order comparison needs numbers, {ast.unparse(subject)!r} is of kind {kind}{hint}",
                    subject,
                )

    def _check_literal(self, subject: ast.expr, kind: k.Kind, literal: Any, at: ast.expr) -> None:
        inner = kind.inner if isinstance(kind, k.Maybe) else kind
        if literal is None:
            name = ast.unparse(subject)
            raise self.expr.error(f"presence is not tested with ==; write present({name})", at)
        if isinstance(inner, k.Str) and inner.literals is not None:
            known: tuple[str, ...] = inner.literals
        elif isinstance(inner, k.DType):
            known = inner.names
            if isinstance(literal, str) and literal not in DTYPES:
                raise self.expr.error(f"{literal!r} is no dtype; known are {', '.join(DTYPES)}", at)
        else:
            if k.join(inner, _literal_kind(literal)) is None:
                raise self.expr.error(f"{ast.unparse(subject)!r} is of kind {kind} and never equals {literal!r}", at)
            return
        if literal not in known:
            raise self.expr.error(
                f"{literal!r} is no value of {ast.unparse(subject)!r}, which takes {', '.join(map(repr, known))}",
                at,
            )

    def _conditional(self, node: ast.expr, test: ast.expr, body: ast.expr, orelse: ast.expr, scope: Scope) -> k.Kind:
        self._condition(test, scope)
        when, unless = self.narrow(test, True, scope), self.narrow(test, False, scope)
        first, second = self.kind(body, when), self.kind(orelse, unless)
        if when.unreachable or unless.unreachable:
            return second if when.unreachable else first
        common = k.join(first, second)
        if common is None:
            raise self.expr.error(f"the arms of the conditional are of different kinds, {first} and {second}", node)
        return common

    # --- calls and access ---

    def _call(self, node: ast.Call, scope: Scope) -> k.Kind:
        subject = presence_name(node)
        if subject is not None:
            kind = scope.kind(subject)
            known = subject in scope.present or subject in scope.absent
            if kind is None and not known:
                raise self.expr.error(
                    f"{subject!r} is not declared; present takes a tensor or a parameter that may be None",
                    node,
                )
            if not known and not isinstance(kind, k.Maybe | k.Tensor):
                raise self.expr.error(
                    f"{subject!r} is of kind {kind} and always present; present takes what may be absent",
                    node,
                )
            return k.BOOL
        name = call_name(node) or ""
        if name == "bytes" and scope.allow_bytes:
            return self._bytes(node, scope)
        if name not in PRIMITIVES:
            raise self.expr.error(f"{name!r} is not a built-in primitive{suggestion(name, PRIMITIVES)}", node)
        positional = [self._argument(argument, name, scope) for argument in node.args]
        keywords = {item.arg: self.kind(item.value, scope) for item in node.keywords if item.arg is not None}
        if scope.unreachable:
            return k.NONE
        try:
            return PRIMITIVES[name].result_kind(PRIMITIVES[name].bind(positional, keywords))
        except DomainError as error:
            raise self.expr.error(str(error), node) from None

    def _bytes(self, node: ast.Call, scope: Scope) -> k.Kind:
        match node.args:
            case [ast.Name(id=name)] if isinstance(scope.kind(name), k.Tensor) and not node.keywords:
                return k.DIM
        raise self.expr.error("bytes takes exactly one tensor name", node)

    def _argument(self, node: ast.expr, name: str, scope: Scope) -> k.Kind:
        if not isinstance(node, ast.GeneratorExp):
            return self.kind(node, scope)
        assert name in COMPREHENSION_CALLS
        inner = scope
        for clause in node.generators:
            source = self.kind(clause.iter, inner)
            if not isinstance(source, k.Seq | k.Shape):
                raise self.expr.error(
                    f"a comprehension runs over a sequence, {ast.unparse(clause.iter)!r} is of kind {source}",
                    clause.iter,
                )
            assert isinstance(clause.target, ast.Name)
            element = k.DIM if isinstance(source, k.Shape) else source.element
            inner = replace(inner, bound={**inner.bound, clause.target.id: element})
            for condition in clause.ifs:
                self._condition(condition, inner)
                inner = self.narrow(condition, True, inner)
        return k.Seq(self.kind(node.elt, inner))

    def _subscript(self, node: ast.expr, value: ast.expr, index: ast.expr, scope: Scope) -> k.Kind:
        kind = self.kind(value, scope)
        if not isinstance(kind, k.Seq | k.Shape):
            raise self.expr.error(f"only sequences are indexed, {ast.unparse(value)!r} is of kind {kind}", node)
        if isinstance(index, ast.Slice):
            for part in (index.lower, index.upper, index.step):
                if part is not None and not k.fits(self.kind(part, scope), k.INT):
                    raise self.expr.error("the bounds of a slice are integers", part)
            return k.SHAPE if isinstance(kind, k.Shape) else k.Seq(kind.element, None, kind.container)
        if not k.fits(self.kind(index, scope), k.INT):
            raise self.expr.error("an index is an integer", index)
        if isinstance(kind, k.Seq) and kind.length is not None:
            position = _integer(index)
            if position is not None and not -kind.length <= position < kind.length:
                raise self.expr.error(f"{ast.unparse(value)!r} has {kind.length} elements, none at {position}", index)
        return k.INT if isinstance(kind, k.Shape) else kind.element

    # --- narrowing ---

    def narrow(self, node: ast.expr, truth: bool, scope: Scope) -> Scope:
        """`scope` where `node` is known to be `truth`."""
        if scope.unreachable:
            return scope
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.narrow(operand, not truth, scope)
            case ast.BoolOp(op=op, values=values) if isinstance(op, ast.And) is truth:
                for value in values:
                    scope = self.narrow(value, truth, scope)
                return scope
            case ast.BoolOp(values=values):
                return self._narrow_alternatives(values, truth, scope)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                when = self.narrow(body, truth, self.narrow(test, True, scope))
                unless = self.narrow(orelse, truth, self.narrow(test, False, scope))
                return _either(when, unless)
            case ast.Constant(value=bool() as value):
                return scope if value is truth else replace(scope, unreachable=True)
            case ast.Call():
                subject = presence_name(node)
                return scope if subject is None else self._narrow_presence(subject, truth, scope)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._narrow_comparison(left, op, right, truth, scope)
        return scope

    def _narrow_alternatives(self, values: list[ast.expr], truth: bool, scope: Scope) -> Scope:
        """One of `values` is `truth`, and those before it are not."""
        found: Scope | None = None
        for value in values:
            here = self.narrow(value, truth, scope)
            found = here if found is None else _either(found, here)
            scope = self.narrow(value, not truth, scope)
        return scope if found is None else found

    def _narrow_presence(self, name: str, truth: bool, scope: Scope) -> Scope:
        if name in (scope.absent if truth else scope.present):
            return replace(scope, unreachable=True)
        kind = scope.names.get(name)
        if truth:
            scope = replace(scope, present=scope.present | {name})
            return scope.with_kind(name, kind.inner) if isinstance(kind, k.Maybe) else scope
        scope = replace(scope, absent=scope.absent | {name})
        return scope.with_kind(name, k.NONE) if isinstance(kind, k.Maybe) else scope

    def _narrow_comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr, truth: bool, scope: Scope) -> Scope:
        if not isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn):
            return scope
        positive = isinstance(op, ast.Eq | ast.In) is truth
        literals = _literals(right)
        if literals is None and isinstance(op, ast.Eq | ast.NotEq):  # 'a' == x narrows like x == 'a'
            left, literals = right, _literals(left)
        if literals is None:
            return scope
        narrowed = k.restrict if positive else k.exclude
        match left:
            case ast.Name(id=name) | ast.Attribute(value=ast.Name(id=name), attr="value"):
                kind = scope.kind(name)
                if kind is None or name in scope.bound:
                    return scope
                return scope.with_kind(name, narrowed(kind, literals))
            case ast.Attribute():
                read = field_of(left)
                if read is None or read[0] in scope.bound:
                    return scope
                scope = scope.with_kind(".".join(read), narrowed(self.kind(left, scope), literals))
                subject = scope.names.get(read[0])
                if read[1] == "kind" and isinstance(subject, k.ADT) and not scope.unreachable:
                    possible = scope.names[".".join(read)]
                    assert isinstance(possible, k.Str)
                    return scope.with_kind(read[0], subject.restricted(possible.literals or ()))
        return scope


def _either(first: Scope, second: Scope) -> Scope:
    """What holds in both of two scopes."""
    if first.unreachable:
        return second
    if second.unreachable:
        return first
    names = dict(first.names)
    for name in first.names.keys() | second.names.keys():
        left, right = first.names.get(name), second.names.get(name)
        if left is None or right is None:
            names.pop(name, None)  # a field that one side narrowed
        elif left != right:
            names[name] = _joined_types(left, right)
    return replace(first, names=names, present=first.present & second.present, absent=first.absent & second.absent)


def _joined_types(left: k.Kind, right: k.Kind) -> k.Kind:
    if isinstance(left, k.ADT) and isinstance(right, k.ADT):
        added = tuple(item for item in right.constructors if left.constructor(item.name) is None)
        return k.ADT(left.name, left.constructors + added)
    return k.join(left, right) or k.Union((left, right))


def _literal_kind(value: Any) -> k.Kind:
    match value:
        case bool():
            return k.BOOL
        case int():
            return k.DIM if value >= 0 else k.INT
        case float():
            return k.REAL
        case str():
            return k.Str((value,))
    return k.NONE


def _literals(node: ast.expr) -> tuple[Any, ...] | None:
    match node:
        case ast.Constant(value=value):
            return (value,)
        case ast.Tuple(elts=elements) if all(isinstance(element, ast.Constant) for element in elements):
            return tuple(element.value for element in elements if isinstance(element, ast.Constant))
    return None


def _integer(node: ast.expr) -> int | None:
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)):
            return -value
    return None


def _is_literal(node: ast.expr, value: int) -> bool:
    return isinstance(node, ast.Constant) and node.value == value and not isinstance(node.value, bool)
