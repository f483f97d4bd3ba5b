"""Evaluation: an expression as a compiled Python function of its names. Rendering for generated code is the
same rewriting.
"""

from __future__ import annotations

import ast
import copy
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from tileops.errors import ManifestError
from tileops.manifest.expr.syntax import Expr, call_name, presence_name
from tileops.manifest.primitives import PRIMITIVES, DomainError


class EvaluationError(ManifestError):
    """An expression has no value here: a primitive is outside its domain, or arithmetic fails.

    Attributes:
        where: the declaration that holds the expression.
    """

    def __init__(self, expr: Expr, cause: object) -> None:
        super().__init__(f"{expr.where}: {describe_undefined(expr.source, cause)}")
        self.where = expr.where


#: What evaluating an expression of the language may raise.
UNDEFINED = (
    DomainError,
    ArithmeticError,
    TypeError,
    ValueError,
    IndexError,
    KeyError,
    NameError,
    AttributeError,
    MemoryError,
    RecursionError,
)


def describe_undefined(source: str, cause: object) -> str:
    """Why an expression has no value, for an error message."""
    return f"in {source!r}: {'division by zero' if isinstance(cause, ZeroDivisionError) else cause}"


def mangled(name: str) -> str:
    """Python name under which generated code and evaluation know a primitive: no user name can hide it."""
    return f"prim_{name.replace('.', '__')}"


#: Every primitive by its Python name, for evaluation and for generated modules.
NAMESPACE: dict[str, Any] = {mangled(name): member.function for name, member in PRIMITIVES.items()} | {"inf": math.inf}


class _ToPython(ast.NodeTransformer):
    """``p.value`` is ``p``, ``present(x)`` a call with the name, a primitive its mangled function."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if node.attr == "value" and isinstance(node.value, ast.Name):
            return ast.copy_location(ast.Name(node.value.id, ast.Load()), node)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        subject = presence_name(node)
        if subject is not None:
            return ast.Call(ast.Name("is_present", ast.Load()), [ast.Constant(subject)], [])
        name = call_name(node)
        arguments = [self.visit(argument) for argument in node.args]
        keywords = [ast.keyword(item.arg, self.visit(item.value)) for item in node.keywords]
        if name == "bytes":
            return ast.Call(
                ast.Name("bytes_of", ast.Load()), [ast.Constant(ast.unparse(item)) for item in node.args], []
            )
        return ast.Call(ast.Name(mangled(name or ""), ast.Load()), arguments, keywords)


def to_python(node: ast.expr) -> ast.expr:
    """A Python AST that computes `node` in `NAMESPACE` plus the names that it reads."""
    return _ToPython().visit(copy.deepcopy(node))


def render(expr: Expr) -> str:
    """Python source that computes `expr`."""
    return ast.unparse(to_python(expr.node))


@lru_cache(maxsize=4096)
def _compiled(expr: Expr) -> Any:
    tree = ast.fix_missing_locations(ast.Expression(to_python(expr.node)))
    return compile(tree, f"<{expr.where}>", "eval")


def evaluate(
    expr: Expr,
    values: Mapping[str, Any],
    present: Callable[[str], bool] | None = None,
    bytes_of: Callable[[str], int] | None = None,
) -> Any:
    """Value of `expr`.

    Args:
        expr: the expression.
        values: value of every name that it reads; None for an absent parameter.
        present: answers ``present(x)``; by default whether ``values[x]`` is not None.
        bytes_of: answers ``bytes(t)`` of roofline formulas.

    Raises:
        EvaluationError: there is no value; the message names declaration and cause.
    """
    node = expr.node
    if isinstance(node, ast.Name) and node.id in values:
        return values[node.id]
    if isinstance(node, ast.Constant):
        return node.value
    scope = dict(NAMESPACE)
    scope.update(values)
    scope["is_present"] = present if present is not None else lambda name: values.get(name) is not None
    scope["bytes_of"] = bytes_of
    try:
        return eval(_compiled(expr), scope)
    except UNDEFINED as error:
        raise EvaluationError(expr, error) from None
