"""The closed expression language of the manifest: one string, parsed once, then checked, folded, evaluated or
rendered.

parse("2 * M // groups", where)      the allow-list of constructs; errors point into the string
infer(expr, scope)                   its kind, with guards narrowing what follows them
fold(expr, facts)                    what is left at a point of the discriminants
evaluate(expr, values)               its value; `render(expr)` is the Python that generated code uses
"""

from __future__ import annotations

from tileops.manifest.expr.evaluation import NAMESPACE, EvaluationError, evaluate, render
from tileops.manifest.expr.folding import Facts, fold
from tileops.manifest.expr.inference import Scope, infer, narrow
from tileops.manifest.expr.syntax import (
    Application,
    Axis,
    Expr,
    ExpressionError,
    Segment,
    ShapeItems,
    parse,
    parse_shape,
    substitute,
)

__all__ = [
    "NAMESPACE",
    "Application",
    "Axis",
    "EvaluationError",
    "Expr",
    "ExpressionError",
    "Facts",
    "Scope",
    "Segment",
    "ShapeItems",
    "evaluate",
    "fold",
    "infer",
    "narrow",
    "parse",
    "parse_shape",
    "render",
    "substitute",
]
