"""Unification of abstract tensors: the inference plan executed on shapes and dtype names, without torch.

Generated checks do the same on real tensors; both run the steps of `tileops.manifest.plan` and a property
test holds them together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tileops.manifest.branch import Branch
from tileops.manifest.expr import EvaluationError, Expr, Segment, evaluate
from tileops.manifest.failures import Failures
from tileops.manifest.plan import (
    BindAffine,
    BindDim,
    BindDType,
    BindShape,
    CheckAxis,
    CheckCombo,
    CheckDType,
    CheckNonNegative,
    CheckRank,
    CheckRule,
    CheckSegment,
    Let,
    Place,
    Plan,
)
from tileops.manifest.roofline import TensorFacts, output_facts


def unify(op: str, plan: Plan, params: Mapping[str, Any], tensors: Mapping[str, TensorFacts]) -> dict[str, Any]:
    """Solves the indices of a call.

    Args:
        op: name of the operator, for errors.
        plan: of the call's branch, or of its construction-time part (`tileops.manifest.plan.plan_held`).
        params: value of every scalar parameter; dtypes by name.
        tensors: ``name -> (shape, dtype name)`` of every tensor that the plan's branch has.

    Returns:
        Parameters, indices and lets by name.

    Raises:
        CheckError: the tensors do not fit the signature.
    """
    return _Unifier(op, plan, params, tensors).run()


class _Unifier:
    def __init__(self, op: str, plan: Plan, params: Mapping[str, Any], tensors: Mapping[str, TensorFacts]) -> None:
        self.fail = Failures(op)
        self.plan = plan
        self.branch: Branch = plan.branch
        self.values: dict[str, Any] = dict(params)
        self.tensors = tensors
        self.origin: dict[str, str] = {}

    def run(self) -> dict[str, Any]:
        try:
            for step in self.plan.steps:
                self._step(step)
            output_facts(self.branch, self.values)
        except EvaluationError as error:
            raise self.fail.undefined(error.where, error) from None
        return self.values

    def _value(self, expr: Expr) -> Any:
        return evaluate(expr, self.values)

    def _offset(self, place: Place) -> int:
        return place.fixed + sum(len(self._value(segment)) for segment in place.segments)

    def _axis(self, place: Place) -> int:
        return -1 - self._offset(place) if place.from_right else self._offset(place)

    def _learn(self, name: str, value: Any, tensor: str) -> None:
        self.values[name] = value
        self.origin[name] = tensor

    def _origin(self, expr: Expr) -> str | None:
        sources = {self.origin[name] for name in expr.names if name in self.origin}
        return sources.pop() if len(sources) == 1 else None

    def _describe(self, tensor: str) -> tuple[str, str, tuple[int, ...], str]:
        found = self.branch.tensors[tensor]
        return found.decl.where, tensor, self.tensors[tensor][0], found.shape_text

    def _step(self, step: Any) -> None:
        match step:
            case BindDType(tensor=tensor, name=name, names=names):
                where, _, _, _ = self._describe(tensor)
                dtype = self.tensors[tensor][1]
                if dtype not in names:
                    raise self.fail.dtype(where, tensor, dtype, names)
                self._learn(name, dtype, tensor)
            case CheckDType(tensor=tensor, expr=expr):
                where, _, _, _ = self._describe(tensor)
                if self.tensors[tensor][1] != self._value(expr):
                    raise self.fail.dtype(
                        where, tensor, self.tensors[tensor][1], [self._value(expr)], self._origin(expr)
                    )
            case CheckRank(tensor=tensor, fixed=fixed, segments=segments, open=at_least):
                where, name, shape, text = self._describe(tensor)
                axes = fixed + sum(len(self._value(segment)) for segment in segments)
                if len(shape) < axes if at_least else len(shape) != axes:
                    raise self.fail.rank(where, name, shape, text, axes, at_least)
            case BindDim(tensor=tensor, place=place, name=name):
                self._learn(name, self.tensors[tensor][0][self._axis(place)], tensor)
            case BindShape(tensor=tensor, start=start, stop=stop, name=name):
                shape = self.tensors[tensor][0]
                self._learn(name, tuple(shape[self._offset(start) : len(shape) - self._offset(stop)]), tensor)
            case BindAffine(tensor=tensor, place=place, name=name, scale=scale, offset=offset, axis=axis):
                where, _, shape, text = self._describe(tensor)
                rest, factor = shape[self._axis(place)] - self._value(offset), self._value(scale)
                if factor <= 0 or rest < 0 or rest % factor:
                    raise self.fail.affine(where, tensor, shape, self._axis(place), text, axis.text)
                self._learn(name, rest // factor, tensor)
            case CheckAxis(tensor=tensor, place=place, expr=expr):
                where, _, shape, text = self._describe(tensor)
                if shape[self._axis(place)] != self._value(expr):
                    raise self.fail.axis(
                        where,
                        tensor,
                        shape,
                        self._axis(place),
                        text,
                        expr.text,
                        self._value(expr),
                        self._origin(expr),
                    )
            case CheckSegment(tensor=tensor, place=place, expr=expr):
                where, _, shape, text = self._describe(tensor)
                wanted, begin = tuple(self._value(expr)), self._offset(place)
                if tuple(shape[begin : begin + len(wanted)]) != wanted:
                    raise self.fail.segment(where, tensor, shape, text, expr.text, wanted, self._origin(expr))
            case Let(name=name, expr=expr):
                self.values[name] = self._value(expr)
            case CheckRule(rule=rule):
                if not self._value(rule):
                    source = next(item.source for item in self.branch.signature.shape_rules if item.where == rule.where)
                    raise self.fail.rule(rule.where, source, {name: self.values[name] for name in sorted(rule.names)})
            case CheckCombo(names=names, rows=rows):
                got = tuple(self.values[name] for name in names)
                if got not in rows:
                    raise self.fail.combo("signature.dtype_combos", names, got, rows)
            case CheckNonNegative(declaration=where, expr=expr):
                value = self._value(expr)
                if any(size < 0 for size in (value if isinstance(value, list | tuple) else [value])):
                    raise self.fail.negative(where, expr.text, value)


def shape_of(items: Any, values: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape that folded items have with these index values."""
    shape: list[int] = []
    for item in items:
        value = evaluate(item.expr, values)
        if isinstance(item, Segment):
            shape.extend(value)
        else:
            shape.append(value)
    return tuple(shape)
