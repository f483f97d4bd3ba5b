"""Expressions and shapes as syntax: parsing, the allow-list of constructs, and errors that point into the
string.

An expression is a Python expression restricted to table 10 of the language, kept as a Python AST. Constructs
outside it are refused by name, the seven rejected rule forms with the rewrite to use.
"""

from __future__ import annotations

import ast
import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tileops.errors import ManifestError
from tileops.manifest.expr.forms import reject_forms

#: Primitives that take a comprehension as their argument.
COMPREHENSION_CALLS = ("all", "sum", "max", "min")


class ExpressionError(ManifestError):
    """An expression is outside the language or ill-kinded. The message has the declaration, the string and
    the column.
    """

    def __init__(self, where: str, source: str, message: str, node: ast.AST | None = None) -> None:
        column = getattr(node, "col_offset", None)
        place = f" at column {column + 1}" if column is not None and getattr(node, "lineno", 1) == 1 else ""
        super().__init__(f"{where}: in {source!r}{place}: {message}")
        self.where = where


@dataclass(frozen=True, eq=False)
class Expr:
    """A parsed expression.

    Attributes:
        source: the string of the manifest.
        node: its AST; after folding it may differ from `source`.
        where: the declaration that holds it, for example ``signature.shape_rules[0]``.
    """

    source: str
    node: ast.expr
    where: str

    @property
    def names(self) -> frozenset[str]:
        """Free names that the value depends on; a tensor that is only tested with `present` is not among
        them.
        """
        return self._reads[0]

    @property
    def atoms(self) -> frozenset[str]:
        """Like `names`, with a field of an ADT as ``layout.packing`` instead of the whole ``layout``."""
        return self._reads[1]

    @property
    def tested(self) -> frozenset[str]:
        """Names inside ``present(...)``."""
        return self._reads[2]

    @cached_property
    def _reads(self) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
        if type(self.node) is ast.Name and self.node.id != "inf":
            name = frozenset((self.node.id,))
            return name, name, frozenset()
        found = _Reads()
        found.visit(self.node, frozenset())
        return frozenset(found.names), frozenset(found.atoms), frozenset(found.tested)

    @property
    def is_constant(self) -> bool:
        return isinstance(self.node, ast.Constant)

    @property
    def constant(self) -> object:
        """The value of a constant expression."""
        assert isinstance(self.node, ast.Constant)
        return self.node.value

    @cached_property
    def text(self) -> str:
        """The expression as it is now, in the language's own spelling."""
        return ast.unparse(self.node)

    def error(self, message: str, node: ast.AST | None = None) -> ExpressionError:
        """An error at `node` of this expression."""
        return ExpressionError(self.where, self.source, message, node)

    def with_node(self, node: ast.expr) -> Expr:
        return Expr(self.source, node, self.where)

    def __str__(self) -> str:
        return self.text


def presence_name(node: ast.AST) -> str | None:
    """``x`` of ``present(x)``, else None."""
    match node:
        case ast.Call(func=ast.Name(id="present"), args=[ast.Name(id=name)], keywords=[]):
            return name
    return None


def call_name(node: ast.Call) -> str | None:
    """``f`` or ``family.f`` of a call, else None."""
    match node.func:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=family), attr=name):
            return f"{family}.{name}"
    return None


def field_of(node: ast.AST) -> tuple[str, str] | None:
    """``(layout, packing)`` of ``layout.packing`` or ``layout.value.packing``, else None."""
    match node:
        case ast.Attribute(value=ast.Name(id=name), attr=field) if field != "value":
            return name, field
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id=name), attr="value"), attr=field):
            return name, field
    return None


class _Reads:
    """The free names of a tree, those inside ``present(...)`` apart."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.atoms: set[str] = set()
        self.tested: set[str] = set()

    def visit(self, node: ast.AST, bound: frozenset[str]) -> None:
        kind = type(node)
        if kind is ast.Name:
            name = node.id  # type: ignore[attr-defined]
            if name not in bound and name != "inf":
                self.names.add(name)
                self.atoms.add(name)
        elif kind is ast.Call:
            self._visit_call(node, bound)  # type: ignore[arg-type]
        elif kind is ast.GeneratorExp:
            self._visit_comprehension(node, bound)  # type: ignore[arg-type]
        elif kind is ast.Attribute and (read := field_of(node)) is not None and read[0] not in bound:
            self.names.add(read[0])
            self.atoms.add(".".join(read))
        elif kind is not ast.Constant:
            for part in ast.iter_child_nodes(node):
                self.visit(part, bound)

    def _visit_call(self, node: ast.Call, bound: frozenset[str]) -> None:
        subject = presence_name(node)
        if subject is not None:
            self.tested.add(subject)
            return
        for argument in node.args:
            self.visit(argument, bound)
        for keyword in node.keywords:
            self.visit(keyword.value, bound)

    def _visit_comprehension(self, node: ast.GeneratorExp, bound: frozenset[str]) -> None:
        for clause in node.generators:
            self.visit(clause.iter, bound)
            bound |= {name.id for name in ast.walk(clause.target) if isinstance(name, ast.Name)}
            for condition in clause.ifs:
                self.visit(condition, bound)
        self.visit(node.elt, bound)


def parse(source: object, where: str) -> Expr:
    """Parses one expression.

    Raises:
        ExpressionError: it is no expression of the language.
        ManifestError: it is None, as where a field is missing.
    """
    if source is None:
        raise ManifestError(f"{where}: the field is missing; write an expression as a string")
    if isinstance(source, bool | int):
        source = str(source)
    if not isinstance(source, str):
        raise ExpressionError(where, str(source), "an expression is written as a string")
    source = source.strip()
    known = _accepted.get(source)
    if known is not None:
        return Expr(source, known, where)
    node = _python(source, where)
    expression = Expr(source, node, where)
    try:
        reject_forms(node, expression)
        _allow(node, expression)
    except RecursionError:
        raise ExpressionError(where, source[:60], "the expression is nested too deeply") from None
    _remember(_accepted, source, node)
    return expression


#: Trees of the expressions, and of the shapes, that were accepted: entries share many, and a tree is never changed.
_accepted: dict[str, ast.expr] = {}
_accepted_shapes: dict[str, ast.expr] = {}


def _remember(known: dict[str, ast.expr], source: str, node: ast.expr) -> None:
    if len(known) < 16384:
        known[source] = node


def _python(source: str, where: str) -> ast.expr:
    try:
        return ast.parse(source, mode="eval").body
    except SyntaxError as error:
        column = f" at column {error.offset}" if error.offset else ""
        raise ExpressionError(where, source, f"not a well-formed expression{column}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError):
        raise ExpressionError(where, source[:60], "not a well-formed expression") from None


_BINARY = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
_COMPARE = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn)
_OUTSIDE = "is outside the expression language"


def _allow(node: ast.AST, expr: Expr) -> None:
    """Raises unless `node` and everything below it is a construct of the language."""
    match node:
        case ast.Constant(value=value):
            if isinstance(value, complex | bytes) or value is Ellipsis:
                raise expr.error(f"the literal {value!r} {_OUTSIDE}", node)
            if isinstance(value, float) and not math.isfinite(value):
                raise expr.error(f"the float literal {value!r} {_OUTSIDE}; write inf", node)
            return
        case ast.Name():
            return
        case ast.Tuple(elts=elements):
            children: list[ast.AST] = list(elements)
        case ast.BinOp(left=left, op=op, right=right):
            if not isinstance(op, _BINARY):
                hint = "; use // for integers" if isinstance(op, ast.Div) else ""
                raise expr.error(f"the operator {_symbol(op)} {_OUTSIDE}{hint}", node)
            children = [left, right]
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            children = [operand]
        case ast.BoolOp(values=values):
            children = list(values)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for comparison in ops:
                if not isinstance(comparison, _COMPARE):
                    raise expr.error(f"the comparison {_symbol(comparison)} {_OUTSIDE}", node)
            children = [left, *comparators]
        case ast.IfExp(test=test, body=body, orelse=orelse):
            children = [test, body, orelse]
        case ast.Subscript(value=value, slice=index):
            children = [
                value,
                *(
                    [part for part in (index.lower, index.upper, index.step) if part]
                    if isinstance(index, ast.Slice)
                    else [index]
                ),
            ]
        case ast.Attribute(value=ast.Name()):
            return
        case ast.Attribute(value=ast.Attribute(value=ast.Name(), attr="value")):
            return
        case ast.Call():
            children = _allow_call(node, expr)
        case ast.GeneratorExp():
            raise expr.error(
                f"a comprehension is allowed only as the argument of {', '.join(COMPREHENSION_CALLS)}", node
            )
        case _:
            raise expr.error(f"{_describe(node)} {_OUTSIDE}", node)
    for child in children:
        _allow(child, expr)


def _allow_call(node: ast.Call, expr: Expr) -> list[ast.AST]:
    name = call_name(node)
    if name is None:
        raise expr.error(
            f"the call of {ast.unparse(node.func)!r} {_OUTSIDE}; only built-in primitives are called", node
        )
    if name == "present" and presence_name(node) is None:
        raise expr.error("present takes exactly one name: a tensor or a parameter that may be None", node)
    arguments: list[ast.AST] = []
    for argument in node.args:
        if isinstance(argument, ast.Starred):
            raise expr.error(f"an unpacked argument {_OUTSIDE}", argument)
        if isinstance(argument, ast.GeneratorExp):
            if name not in COMPREHENSION_CALLS or len(node.args) != 1:
                raise expr.error(
                    f"a comprehension is allowed only as the argument of {', '.join(COMPREHENSION_CALLS)}",
                    argument,
                )
            arguments.append(argument.elt)
            for clause in argument.generators:
                if clause.is_async or not isinstance(clause.target, ast.Name):
                    raise expr.error("a comprehension binds one plain name per clause", argument)
                arguments += [clause.iter, *clause.ifs]
        else:
            arguments.append(argument)
    for keyword in node.keywords:
        if keyword.arg is None:
            raise expr.error(f"an unpacked argument {_OUTSIDE}", node)
        arguments.append(keyword.value)
    return arguments


_SYMBOLS = {
    "Div": "/",
    "Pow": "**",
    "MatMult": "@",
    "BitOr": "|",
    "BitAnd": "&",
    "BitXor": "^",
    "LShift": "<<",
    "RShift": ">>",
    "Is": "'is'",
    "IsNot": "'is not'",
}

_DESCRIPTIONS = {
    "ListComp": "a list comprehension",
    "DictComp": "a dict comprehension",
    "Lambda": "a lambda",
    "List": "a list",
    "Dict": "a dict",
    "JoinedStr": "an f-string",
    "NamedExpr": "an assignment",
    "Starred": "an unpacked value",
    "UnaryOp": "this unary operator",
    "Attribute": "an attribute of anything but a name",
    "Slice": "a slice",
    "Await": "await",
    "Yield": "yield",
    "YieldFrom": "yield",
}


def _symbol(op: ast.AST) -> str:
    return _SYMBOLS.get(type(op).__name__, type(op).__name__)


def _describe(node: ast.AST) -> str:
    return _DESCRIPTIONS.get(type(node).__name__, type(node).__name__)


# --- shapes ---


@dataclass(frozen=True)
class Axis:
    """One axis of a shape: an integer expression."""

    expr: Expr

    def __str__(self) -> str:
        return self.expr.text


@dataclass(frozen=True)
class Segment:
    """``*S`` or ``*primitive(...)``: some adjoining axes."""

    expr: Expr

    def __str__(self) -> str:
        return f"*{self.expr.text}"


@dataclass(frozen=True)
class Application:
    """``Family[argument, ...]``: the shape that a type family gives."""

    family: str
    arguments: tuple[Expr, ...]
    expr: Expr


ShapeItems = tuple[Axis | Segment, ...]


def parse_shape(source: object, where: str) -> ShapeItems | Application:
    """Parses ``"[axis, *segment]"`` or ``"Family[argument]"``.

    Raises:
        ExpressionError: it is neither.
        ManifestError: it is None, as where a field is missing.
    """
    if source is None:
        raise ManifestError(f'{where}: the field is missing; write a shape as a string, for example "[M, K]"')
    if not isinstance(source, str):
        raise ExpressionError(where, str(source), 'a shape is written as a string, for example "[M, K]"')
    text = source.strip()
    known = _accepted_shapes.get(text)
    node = _python(text, where) if known is None else known
    whole = Expr(text, node, where)

    def checked(part: ast.expr) -> Expr:
        expression = Expr(text, part, where)
        if known is not None:
            return expression
        reject_forms(part, expression)
        _allow(part, expression)
        return expression

    match node:
        case ast.List(elts=elements):
            items: list[Axis | Segment] = []
            for element in elements:
                if isinstance(element, ast.Starred):
                    if not isinstance(element.value, ast.Name | ast.Call):
                        raise whole.error(
                            "a star takes a name or a primitive call, as in *S or *broadcast(A, B)", element
                        )
                    items.append(Segment(checked(element.value)))
                else:
                    items.append(Axis(checked(element)))
            _remember(_accepted_shapes, text, node)
            return tuple(items)
        case ast.Subscript(value=ast.Name(id=family), slice=index):
            parts = index.elts if isinstance(index, ast.Tuple) else [index]
            application = Application(family, tuple(checked(part) for part in parts), whole)
            _remember(_accepted_shapes, text, node)
            return application
    raise whole.error('a shape is "[axis, ...]" or "Family[argument, ...]"')


class _Substitution(ast.NodeTransformer):
    def __init__(self, values: Mapping[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.values.get(node.id, node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        # The function is a primitive, whose prefix is no name.
        node.args = [self.visit(argument) for argument in node.args]
        node.keywords = [ast.keyword(item.arg, self.visit(item.value)) for item in node.keywords]
        return node


def substitute(expr: Expr, values: Mapping[str, ast.expr]) -> Expr:
    """`expr` with names replaced by expressions."""
    if not values or not (expr.names | expr.tested) & values.keys():
        return expr
    return expr.with_node(_Substitution(values).visit(_copy(expr.node)))


def _copy(node: ast.expr) -> ast.expr:
    return copy.deepcopy(node)
