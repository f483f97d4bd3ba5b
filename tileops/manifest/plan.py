"""The inference plan of a branch: steps that solve every index from the inputs and check the rest, whatever
the declaration order.

An axis is solved in the forms of table 19: a bare unknown name, ``a * M + e`` with the rest known, one
unknown ``*S`` among segments of known length, an unknown dtype index. Everything else is checked once its
names are known. Steps that need construction-time facts only carry ``at_construction``; the plan is executed
on abstract tensors by `tileops.manifest.unify` and rendered as Python for real calls.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from tileops.manifest import kinds as k
from tileops.manifest.branch import Branch, BranchError, BranchTensor
from tileops.manifest.expr import Axis, Expr, ExpressionError, Segment, infer
from tileops.manifest.expr.syntax import ShapeItems
from tileops.manifest.primitives import PRIMITIVES
from tileops.manifest.scopes import branch_scope


@dataclass(frozen=True)
class Place:
    """Where an axis or segment starts: `fixed` axes plus the lengths of `segments`, counted from the left or
    from the right.
    """

    fixed: int
    segments: tuple[Expr, ...] = ()
    from_right: bool = False


@dataclass(frozen=True)
class Step:
    """Base of all steps. `at_construction`: everything that it needs is known when the op is constructed."""

    at_construction: bool


@dataclass(frozen=True)
class CheckRank(Step):
    """The tensor has `fixed` axes plus those of `segments`; `open`: at least that many."""

    tensor: str
    fixed: int
    segments: tuple[Expr, ...]
    open: bool


@dataclass(frozen=True)
class BindDim(Step):
    """``name := size`` of an axis."""

    tensor: str
    place: Place
    name: str


@dataclass(frozen=True)
class BindAffine(Step):
    """``name := (size - offset) / scale`` of an axis, exact and non-negative."""

    tensor: str
    place: Place
    name: str
    scale: Expr
    offset: Expr
    axis: Expr


@dataclass(frozen=True)
class BindShape(Step):
    """``name :=`` the axes between two places (`stop` counts from the right)."""

    tensor: str
    start: Place
    stop: Place
    name: str


@dataclass(frozen=True)
class BindDType(Step):
    """``name :=`` the tensor's dtype, which must be one of `names`."""

    tensor: str
    name: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class CheckDType(Step):
    """The tensor's dtype equals an expression."""

    tensor: str
    expr: Expr


@dataclass(frozen=True)
class CheckAxis(Step):
    """The size of an axis equals an expression."""

    tensor: str
    place: Place
    expr: Expr


@dataclass(frozen=True)
class CheckSegment(Step):
    """The axes from a place on equal a sequence."""

    tensor: str
    place: Place
    expr: Expr


@dataclass(frozen=True)
class Let(Step):
    """A derived index gets its value."""

    name: str
    expr: Expr


@dataclass(frozen=True)
class CheckRule(Step):
    """A refinement holds."""

    rule: Expr


@dataclass(frozen=True)
class CheckNonNegative(Step):
    """An axis, or every element of a spliced sequence, is not negative. `declaration` is the tensor's."""

    declaration: str
    expr: Expr
    spliced: bool


@dataclass(frozen=True)
class CheckCombo(Step):
    """The dtype indices equal one row of dtype_combos."""

    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """Steps of one branch, in an order in which each has what it needs, and the indices that they solve."""

    branch: Branch
    steps: tuple[Step, ...]
    solved: frozenset[str]


def plan_branch(branch: Branch) -> Plan:
    """The inference plan of `branch`.

    Raises:
        BranchError: an index cannot be solved, or lets depend on each other in a cycle.
    """
    return _Planner(branch).plan()


def plan_held(branch: Branch) -> Plan:
    """The prefix of a plan that construction-time tensors and parameters decide."""
    return _Planner(branch).plan_construction()


class _Planner:
    def __init__(self, branch: Branch) -> None:
        self.branch = branch
        self.signature = branch.signature
        self.known: set[str] = set(self.signature.scalars)
        self.constructed: set[str] = set(self.known)
        self.steps: list[Step] = []
        self.solved: set[str] = set()
        self.ranked: set[str] = set()

    def plan(self) -> Plan:
        branch = self.branch
        held, inputs = list(branch.held.values()), list(branch.inputs.values())
        pending = self._solve(held, {tensor.name: set(range(len(tensor.items))) for tensor in held}, True)
        pending = self._check_ready(held, pending)
        # What construction-time tensors leave open continues with the facts of the call.
        pending |= {tensor.name: set(range(len(tensor.items))) for tensor in inputs}
        pending = self._solve([*held, *inputs], pending, False)
        for tensor in (*held, *inputs):
            self._rank(tensor, False)
            for position in sorted(pending[tensor.name]):
                self._check(tensor, position, False)
        for tensor in inputs:
            self._check_dtype(tensor)
        if self.signature.combos:
            names = tuple(name for name in self.signature.combos[0] if name in self.known)
            rows = tuple(tuple(row[name] for name in names) for row in self.signature.combos)
            self.steps.append(CheckCombo(self._available(names), names, rows))
        for rule in branch.rules:
            self._require(rule, rule.where)
            self.steps.append(CheckRule(self._available(rule.names), rule))
        for tensor in branch.outputs.values():
            for expr in tensor.exprs:
                self._require(expr, expr.where)
        for tensor in branch.tensors.values():
            self._oblige(tensor)
        self._reject_unsolved()
        return Plan(branch, tuple(self.steps), frozenset(self.solved))

    def plan_construction(self) -> Plan:
        held = list(self.branch.held.values())
        pending = {tensor.name: set(range(len(tensor.items))) for tensor in held}
        self._check_ready(held, self._solve(held, pending, True))
        for rule in self.branch.rules:  # those over parameters alone are checked before any tensor is looked at
            if self._ready(rule) and self.branch.reads([rule]) & self.solved:
                self.steps.append(CheckRule(True, rule))
        return Plan(self.branch, tuple(self.steps), frozenset(self.solved))

    # --- names ---

    def _available(self, names: Iterable[str]) -> bool:
        return set(names) <= self.constructed

    def _learn(self, name: str, at_construction: bool) -> None:
        self.known.add(name)
        if at_construction:
            self.constructed.add(name)

    def _define_lets(self, names: Iterable[str], path: tuple[str, ...] = ()) -> None:
        """Emits the lets among `names` that can be computed now."""
        for name in sorted(names):
            if name in self.known or name not in self.branch.lets:
                continue
            if name in path:
                cycle = " -> ".join((*path[path.index(name) :], name))
                raise BranchError(f"signature.let.{name}", f"lets depend on each other in a cycle: {cycle}")
            expr = self.branch.lets[name]
            self._define_lets(expr.names, (*path, name))
            if expr.names <= self.known:
                at_construction = self._available(expr.names)
                self.steps.append(Let(at_construction, name, expr))
                self._learn(name, at_construction)

    def _ready(self, expr: Expr) -> bool:
        self._define_lets(expr.names)
        return expr.names <= self.known

    def _require(self, expr: Expr, where: str) -> None:
        if not self._ready(expr):
            missing = sorted(self.branch.reads([expr]) - self.known)
            raise BranchError(
                where,
                f"{', '.join(missing)} in {expr.text!r} is solved from no input; declare it as a "
                "parameter or give it an axis",
            )

    # --- unification ---

    def _solve(
        self, tensors: list[BranchTensor], pending: dict[str, set[int]], at_construction: bool
    ) -> dict[str, set[int]]:
        """Binds what these tensors bind, and returns the positions that are left."""
        for tensor in tensors:
            self._bind_dtype(tensor, at_construction)
        progress = True
        while progress:
            progress = False
            for bind in (self._bind_dim, self._bind_shape, self._bind_affine):
                for tensor in tensors:
                    for position in sorted(pending[tensor.name]):
                        if bind(tensor, position, at_construction):
                            pending[tensor.name].discard(position)
                            progress = True
                if progress:
                    break
        return pending

    def _check_ready(self, tensors: list[BranchTensor], pending: dict[str, set[int]]) -> dict[str, set[int]]:
        """Checks, at construction, what is decided there; returns the positions that are left."""
        for tensor in tensors:
            self._rank(tensor, True)
            for position in sorted(pending[tensor.name]):
                known = self._ready(tensor.items[position].expr)
                if known and tensor.name in self.ranked and self._place(tensor.items, position) is not None:
                    self._check(tensor, position, True)
                    pending[tensor.name].discard(position)
        return pending

    def _bind_dtype(self, tensor: BranchTensor, at_construction: bool) -> None:
        match tensor.dtype.node:
            case ast.Name(id=name) if name not in self.known:
                kind = self.signature.indices.get(name)
                if isinstance(kind, k.DType):
                    self.steps.append(BindDType(at_construction, tensor.name, name, kind.names))
                    self._learn(name, at_construction)
                    self.solved.add(name)

    def _check_dtype(self, tensor: BranchTensor) -> None:
        if not any(isinstance(step, BindDType) and step.tensor == tensor.name for step in self.steps):
            self._require(tensor.dtype, f"{tensor.decl.where}.dtype")
            self.steps.append(CheckDType(False, tensor.name, tensor.dtype))

    def _segment_known(self, item: Axis | Segment) -> bool:
        return isinstance(item, Axis) or self._ready(item.expr)

    def _place(self, items: ShapeItems, position: int) -> Place | None:
        """Where item `position` starts (from the left) or ends (from the right), if all segments on that side
        are known.
        """
        before, after = items[:position], items[position + 1 :]
        if all(self._segment_known(item) for item in before):
            return _place_of(before, False)
        if all(self._segment_known(item) for item in after):
            return _place_of(after, True)
        return None

    def _rank(self, tensor: BranchTensor, at_construction: bool) -> bool:
        """Emits the rank check of a tensor once every segment, or all but one, is known."""
        if tensor.name in self.ranked:
            return True
        segments = [item.expr for item in tensor.items if isinstance(item, Segment)]
        unknown = [expr for expr in segments if not self._ready(expr)]
        if len(unknown) > 1 or (unknown and not isinstance(unknown[0].node, ast.Name)):
            return False
        fixed = sum(isinstance(item, Axis) for item in tensor.items)
        known = tuple(expr for expr in segments if expr not in unknown)
        self.steps.append(CheckRank(at_construction, tensor.name, fixed, known, bool(unknown)))
        self.ranked.add(tensor.name)
        return True

    def _bind_dim(self, tensor: BranchTensor, position: int, at_construction: bool) -> bool:
        item = tensor.items[position]
        match item:
            case Axis(expr=Expr(node=ast.Name(id=name))) if name not in self.known and isinstance(
                self.signature.indices.get(name), k.Dim
            ):
                place = self._place(tensor.items, position)
                if place is None or not self._rank(tensor, at_construction):
                    return False
                self.steps.append(BindDim(at_construction, tensor.name, place, name))
                self._learn(name, at_construction)
                self.solved.add(name)
                return True
        return False

    def _bind_shape(self, tensor: BranchTensor, position: int, at_construction: bool) -> bool:
        item = tensor.items[position]
        match item:
            case Segment(expr=Expr(node=ast.Name(id=name))) if name not in self.known and isinstance(
                self.signature.indices.get(name), k.Shape
            ):
                before, after = tensor.items[:position], tensor.items[position + 1 :]
                if not all(self._segment_known(other) for other in (*before, *after)):
                    return False
                if not self._rank(tensor, at_construction):
                    return False
                self.steps.append(
                    BindShape(at_construction, tensor.name, _place_of(before, False), _place_of(after, True), name)
                )
                self._learn(name, at_construction)
                self.solved.add(name)
                return True
        return False

    def _bind_affine(self, tensor: BranchTensor, position: int, at_construction: bool) -> bool:
        item = tensor.items[position]
        if not isinstance(item, Axis) or self._ready(item.expr):
            return False
        unknown = {name for name in item.expr.names if name not in self.known}
        if len(unknown) != 1:
            return False
        name = unknown.pop()
        if not isinstance(self.signature.indices.get(name), k.Dim):
            return False
        parts = affine(item.expr.node, name)
        place = self._place(tensor.items, position)
        if parts is None or place is None or not self._rank(tensor, at_construction):
            return False
        scale, offset = (item.expr.with_node(part) for part in parts)
        factor = _integer(scale.node)
        if factor is not None and factor <= 0:
            return False
        if not scale.names <= self.constructed:
            return False  # a factor that a call solves may be 0, and then every value fits
        self.steps.append(BindAffine(at_construction, tensor.name, place, name, scale, offset, item.expr))
        self._learn(name, at_construction)
        self.solved.add(name)
        return True

    def _check(self, tensor: BranchTensor, position: int, at_construction: bool) -> None:
        item = tensor.items[position]
        self._require(item.expr, f"{tensor.decl.where}.shape")
        place = self._place(tensor.items, position)
        assert place is not None, "every segment is known once every name is"
        if isinstance(item, Axis):
            self.steps.append(CheckAxis(at_construction, tensor.name, place, item.expr))
        else:
            self.steps.append(
                CheckSegment(at_construction, tensor.name, _place_of(tensor.items[:position], False), item.expr)
            )

    # --- obligations ---

    def _oblige(self, tensor: BranchTensor) -> None:
        """An axis that is no Dim, and every element of a spliced sequence, must not be negative.

        Sizes of tensors that exist are not, so a call-time check is needed for outputs only; what parameters
        fix is checked at construction.
        """
        for item in tensor.items:
            if not self._may_be_negative(item):
                continue
            at_construction = self._available(item.expr.names)
            if at_construction or tensor.decl.role == "output":
                step = CheckNonNegative(
                    at_construction, f"{tensor.decl.where}.shape", item.expr, isinstance(item, Segment)
                )
                if not any(_same_obligation(step, other) for other in self.steps):
                    self.steps.append(step)

    def _may_be_negative(self, item: Axis | Segment) -> bool:
        """Whether the kind of an axis, or of a spliced sequence's elements, admits negative integers."""
        match item.expr.node:
            case ast.Constant(value=int() as value):
                return value < 0
            case ast.Name(id=name) if isinstance(self.signature.indices.get(name), k.Dim | k.Shape):
                return False
        if self._is_natural(item.expr.node):
            return False
        try:
            kind = infer(item.expr, branch_scope(self.branch))
        except ExpressionError:
            return True
        element = kind.element if isinstance(kind, k.Seq) else k.DIM if isinstance(kind, k.Shape) else kind
        return not isinstance(element, k.Dim)

    def _is_natural(self, node: ast.expr) -> bool:
        """Whether a Dim is seen without inference: sums and products of dims, shapes made by primitives."""
        match node:
            case ast.Name(id=name):
                return isinstance(self.signature.indices.get(name), k.Dim)
            case ast.Constant(value=int() as value):
                return value >= 0
            case ast.BinOp(left=left, op=ast.Add() | ast.Mult() | ast.FloorDiv(), right=right):
                return self._is_natural(left) and self._is_natural(right)
            case ast.Call(func=ast.Name(id=name)):
                member = PRIMITIVES.get(name)
                return member is not None and member.result in (k.SHAPE, k.DIM)
        return False

    def _reject_unsolved(self) -> None:
        unsolved = sorted(
            name for name in self.branch.relevant() if name not in self.known and self.signature.indices[name] != k.INTS
        )
        if unsolved:
            raise BranchError(
                f"signature.forall.{unsolved[0]}",
                f"{unsolved[0]} is solved from no input; declare it as a parameter or a let, or give it an axis",
            )


def _same_obligation(step: CheckNonNegative, other: Step) -> bool:
    return isinstance(other, CheckNonNegative) and other.expr.text == step.expr.text


def _place_of(items: ShapeItems, from_right: bool) -> Place:
    fixed = sum(isinstance(item, Axis) for item in items)
    return Place(fixed, tuple(item.expr for item in items if isinstance(item, Segment)), from_right)


def affine(node: ast.expr, name: str) -> tuple[ast.expr, ast.expr] | None:
    """``(scale, offset)`` with ``node == scale * name + offset``; None where the expression is not of this form."""
    if not any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node)):
        return ast.Constant(0), node
    match node:
        case ast.Name():
            return ast.Constant(1), ast.Constant(0)
        case ast.BinOp(left=left, op=op, right=right):
            first, second = affine(left, name), affine(right, name)
            if first is None or second is None:
                return None
            if isinstance(op, ast.Add | ast.Sub):
                return _combine(first[0], op, second[0]), _combine(first[1], op, second[1])
            if isinstance(op, ast.Mult):
                for (scale, offset), (zero, factor) in ((first, second), (second, first)):
                    if _is_zero(zero):
                        return _combine(scale, op, factor), _combine(offset, op, factor)
    return None


def _integer(node: ast.expr) -> int | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else None


def _is_zero(node: ast.expr) -> bool:
    return _integer(node) == 0


def _combine(left: ast.expr, op: ast.operator, right: ast.expr) -> ast.expr:
    """`left op right`, simplified where an operand is a literal."""
    a, b = _integer(left), _integer(right)
    if a is not None and b is not None:
        return ast.Constant(a + b if isinstance(op, ast.Add) else a - b if isinstance(op, ast.Sub) else a * b)
    if isinstance(op, ast.Add) and a == 0:
        return right
    if isinstance(op, ast.Add | ast.Sub) and b == 0:
        return left
    if isinstance(op, ast.Mult):
        if 0 in (a, b):
            return ast.Constant(0)
        if 1 in (a, b):
            return right if a == 1 else left
    return ast.BinOp(left, op, right)
