"""The rule forms that the language refuses, each with the rewrite to use, in the names of the rule at hand.

A rule states a condition on indices. These forms declare a shape, define a name, or test presence or a Python type,
for which the entry has its own fields. (An equality that defines a name needs the declared names to be recognised;
`tileops.manifest.kind_checks` finds it.)
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tileops.manifest.expr.syntax import Expr


#: Comparisons with None: how they are written, and what stands before ``present`` instead.
_IDENTITY: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Is: ("is", "not "),
    ast.Eq: ("==", "not "),
    ast.IsNot: ("is not", ""),
    ast.NotEq: ("!=", ""),
}


def reject_forms(node: ast.AST, expr: Expr) -> None:
    """Raises `ExpressionError` at the first refused form in `node`, outermost first."""
    for part in ast.walk(node):
        message = _message(part)
        if message is not None:
            raise expr.error(message, part)


def _message(node: ast.AST) -> str | None:
    match node:
        case ast.Compare(left=left, ops=[_], comparators=[right]) if _shape_of(left) and _shape_of(right):
            first, second = _shape_of(left), _shape_of(right)
            return f'an equality does not form a type; write one shape term for {first} and {second}, such as "[*S]"'
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Tuple() as sizes]) if _shape_of(left):
            return f"a rule does not declare a shape; write {_shape_of(left)}: {{shape: {_quoted(sizes)}}}"
        case ast.Attribute(attr="shape"):
            name = ast.unparse(node.value)
            return (
                f'a rule does not read the shape of a tensor; name its axes, {name}: {{shape: "[...]"}}, and read those'
            )
        case ast.Compare(left=left, ops=[op], comparators=[ast.Constant(value=None)]) if type(op) in _IDENTITY:
            symbol, negation = _IDENTITY[type(op)]
            return f"presence is not tested with {symbol!r}; write {negation}present({ast.unparse(left)})"
        case ast.IfExp(
            test=ast.Call(func=ast.Name(id="isinstance"), args=[subject, *_]),
            body=ast.Subscript(value=value, slice=index),
        ) if ast.unparse(subject) == ast.unparse(value):
            return _isinstance(ast.unparse(subject), ast.unparse(index))
        case ast.Call(func=ast.Name(id="isinstance"), args=arguments):
            return _isinstance(ast.unparse(arguments[0]) if arguments else "p", "i")
        case ast.SetComp(
            elt=ast.BinOp(left=ast.Name(id=element), op=ast.Mod(), right=rank),
            generators=[ast.comprehension(target=ast.Name(id=target), iter=axes)],
        ) if element == target:
            return (
                f"a set is outside the expression language; write unique_axes({ast.unparse(axes)}, {ast.unparse(rank)})"
            )
        case ast.SetComp() | ast.Set():
            return "a set is outside the expression language; to require distinct axes write unique_axes(dim, n)"
    return None


def _shape_of(node: ast.AST) -> str | None:
    return ast.unparse(node.value) if isinstance(node, ast.Attribute) and node.attr == "shape" else None


def _quoted(sizes: ast.Tuple) -> str:
    return f'"[{", ".join(ast.unparse(size) for size in sizes.elts)}]"'


def _isinstance(name: str, axis: str) -> str:
    return f"isinstance is not built in; write per_axis({name}, {axis}, n), n the number of axes"
