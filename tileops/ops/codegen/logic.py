"""Logic over sizes that may be symbolic: ``and``, ``or``, ``not``, conditionals and comparisons as calls of
`tileops.ops.codegen.runtime`, which take no truth value of a symbolic condition. What reads no size stays Python.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection
from typing import Any

#: Generated names of the primitives whose results are sequences.
_SEQUENCE_CALLS = ("prim_broadcast", "prim_reduced")


def symbolic_logic(node: ast.expr, sizes: Collection[str], sequences: Collection[str]) -> ast.expr:
    """A Python tree that computes `node` on symbolic sizes too.

    Args:
        node: a tree of `tileops.manifest.expr.evaluation.to_python`.
        sizes: names whose values may be symbolic.
        sequences: names that stand for sequences.
    """
    return _Logic(sizes, sequences).visit(copy.deepcopy(node))


class _Logic(ast.NodeTransformer):
    def __init__(self, sizes: Collection[str], sequences: Collection[str]) -> None:
        self.sizes = sizes
        self.sequences = sequences

    def _reads_sizes(self, node: ast.AST) -> bool:
        return any(isinstance(part, ast.Name) and part.id in self.sizes for part in ast.walk(node))

    def _is_sequence(self, node: ast.expr) -> bool:
        match node:
            case ast.Name(id=name):
                return name in self.sequences
            case ast.Call(func=ast.Name(id=name)):
                return name in _SEQUENCE_CALLS
            case ast.Subscript(slice=ast.Slice()) | ast.Tuple():
                return True
        return False

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        if not self._reads_sizes(node):
            return node
        values = [self.visit(value) for value in node.values]
        return _chain("_both" if isinstance(node.op, ast.And) else "_either", values)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        if isinstance(node.op, ast.Not) and self._reads_sizes(node):
            return _call("_negation", self.visit(node.operand))
        return ast.UnaryOp(node.op, self.visit(node.operand))

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        test, body, orelse = self.visit(node.test), self.visit(node.body), self.visit(node.orelse)
        if not self._reads_sizes(node.test):
            return ast.IfExp(test, body, orelse)
        return _call("_choose", test, _lambda(body), _lambda(orelse))

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if not self._reads_sizes(node):
            return node
        operands = [self.visit(item) for item in (node.left, *node.comparators)]
        links = [self._link(left, op, right) for op, left, right in zip(node.ops, operands, operands[1:], strict=False)]
        return links[0] if len(links) == 1 else _chain("_both", links)

    def _link(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> ast.expr:
        if isinstance(op, ast.In | ast.NotIn):
            found = _call("_member", left, right)
            return found if isinstance(op, ast.In) else _call("_negation", found)
        if isinstance(op, ast.Eq | ast.NotEq) and self._is_sequence(left) and self._is_sequence(right):
            same = _call("_same", left, right)
            return same if isinstance(op, ast.Eq) else _call("_negation", same)
        return ast.Compare(left, [op], [right])


def _call(function: str, *arguments: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(function, ast.Load()), list(arguments), [])


def _lambda(body: ast.expr) -> ast.expr:
    return ast.Lambda(ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[]), body)


def _chain(function: str, values: list[Any]) -> ast.expr:
    result = values[-1]
    for value in reversed(values[:-1]):
        result = _call(function, value, _lambda(result))
    return result
