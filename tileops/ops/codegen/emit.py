"""From an inference plan to the Python source of a call check.

The generated function has one block per tensor, names the manifest's own indices, and ends in the outputs.
Expressions were parsed when the entry was read; here they are rendered, at call time nothing is parsed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tileops.manifest import kinds as k
from tileops.manifest.branch import Branch, BranchTensor, shape_text
from tileops.manifest.expr import Expr, Segment
from tileops.manifest.expr.evaluation import to_python
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
    Step,
)
from tileops.manifest.scopes import branch_scope
from tileops.manifest.signature import OUT, Signature
from tileops.ops.codegen.logic import symbolic_logic

_INDENT = "    "


@dataclass
class Source:
    """Generated lines, and the constants that they refer to by name."""

    lines: list[str] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    depth: int = 0

    def add(self, line: str = "") -> None:
        self.lines.append(_INDENT * self.depth + line if line else "")

    def constant(self, name: str, value: Any) -> str:
        """Name of a constant; equal values share one."""
        for known, other in self.constants.items():
            if known.startswith(name) and type(other) is type(value) and other == value:
                return known
        unique = name if name not in self.constants else f"{name}_{len(self.constants)}"
        self.constants[unique] = value
        return unique

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def emit_call_check(op: str, plan: Plan) -> Source:
    """Source of ``make_check(_c) -> _check(*tensors)`` for one branch.

    `_c` maps parameters to their values; `_check` takes the tensors in forward order, None where absent, and
    returns a `Checked`.
    """
    return Emitter(op, plan).emit()


class Emitter:
    """What the functions that are generated for a branch share: names, places, expressions, outputs."""

    def __init__(self, op: str, plan: Plan) -> None:
        self.op = op
        self.plan = plan
        self.branch: Branch = plan.branch
        self.signature: Signature = plan.branch.signature
        self.out = Source()
        self.sizes, self.sequences = _sizes_and_sequences(plan.branch)
        self.origin: dict[str, str] = {}
        self.settled = 0  # rules that are checked once
        dtypes = {name for name, kind in self.signature.indices.items() if isinstance(kind, k.DType)}
        self.fixed = dtypes | set(self.signature.scalars)
        for step in plan.steps:
            if isinstance(step, BindDim | BindAffine | BindShape | BindDType):
                self.origin[step.name] = step.tensor

    # --- layout of the module ---

    def emit(self) -> Source:
        out = self.out
        where = ", ".join(f"{name}={value!r}" for name, value in self.branch.point) or "no choices"
        out.add(f"# {self.op}: the check of a call ({where}). Generated from its manifest entry.")
        out.add("def make_check(_c):")
        out.depth = 1
        construction = [step for step in self.plan.steps if step.at_construction]
        for name in self._used_parameters():
            out.add(f"{name} = _c[{name!r}]")
        for tensor in self.branch.held.values():
            self._tensor_facts(tensor, device=None)
            out.add(f"_s_{tensor.name} = {tensor.name}.shape")
        for step in construction:
            self._step(step)
        arguments = ", ".join(self.signature.forward_order)
        out.add("_settled = set()")
        out.add(f"def _check({arguments}):")
        out.depth = 2
        self._device_block()
        self._steps([step for step in self.plan.steps if not step.at_construction])
        self._result()
        out.depth = 1
        out.add("return _check")
        return out

    def _used_parameters(self) -> list[str]:
        exprs: list[Expr] = []
        for step in self.plan.steps:
            exprs += [value for value in vars(step).values() if isinstance(value, Expr)]
            for value in vars(step).values():
                if isinstance(value, Place):
                    exprs += value.segments
            if isinstance(step, CheckRank):
                exprs += step.segments
        exprs += [expr for tensor in self.branch.tensors.values() for expr in tensor.exprs]
        used = {name for expr in exprs for name in expr.names}
        for step in self.plan.steps:
            if isinstance(step, CheckRule):
                used |= self._shown(step.rule)
            if isinstance(step, CheckCombo):
                used |= set(step.names)
        used |= set(self.branch.held)
        return [name for name in self.signature.params if name in used]

    def _device_block(self) -> None:
        """Types, device agreement and layout of the inputs: what needs no index."""
        first = next((tensor.name for tensor in self.branch.inputs.values() if not tensor.decl.cpu), None)
        for tensor in self.branch.inputs.values():
            self._tensor_facts(tensor, device=first)
        if first is None:
            held = next((tensor.name for tensor in self.branch.held.values() if not tensor.decl.cpu), None)
            self.out.add(f"_device = {'None' if held is None else f'{held}.device'}")

    def _tensor_facts(self, tensor: BranchTensor, device: str | None) -> None:
        """Type and layout of one tensor, and its device: that of the input `device`, where one is named."""
        out, name, where = self.out, tensor.name, tensor.decl.where
        out.add(f"if not isinstance({name}, _Tensor):")
        out.add(f"{_INDENT}raise _fail.not_a_tensor({where!r}, {name!r}, {name})")
        if tensor.decl.cpu:
            out.add(f"if {name}.device.type != 'cpu':")
            out.add(f"{_INDENT}raise _fail.not_on_cpu({where!r}, {name!r}, {name}.device)")
        elif name == device:
            out.add(f"_device = {name}.device")
        elif device is not None:
            arguments = f"{where!r}, {name!r}, {name}.device, {device!r}, _device"
            out.add(f"if {name}.device != _device:")
            out.add(f"{_INDENT}raise _fail.device({arguments})")
        if tensor.decl.contiguous:
            out.add(f"if not {name}.is_contiguous():")
            out.add(f"{_INDENT}raise _fail.not_contiguous({where!r}, {name!r}, {name}.stride())")

    def _steps(self, steps: list[Step]) -> None:
        shaped: set[str] = set()
        for step in steps:
            name = getattr(step, "tensor", None)
            shapeless = name in self.branch.held or isinstance(step, BindDType | CheckDType)
            if name is not None and name not in shaped and not shapeless:
                shaped.add(name)
                self.out.add(f"# {name}: {self._tensor(name).shape_text}")
                self.out.add(f"_s_{name} = {name}.shape")
            self._step(step)
        for tensor in self.branch.inputs.values():
            if tensor.name not in shaped:
                self.out.add(f"_s_{tensor.name} = {tensor.name}.shape")

    def _tensor(self, name: str) -> BranchTensor:
        return self.branch.held.get(name) or self.branch.inputs[name]

    # --- expressions ---

    def _render(self, expr: Expr) -> str:
        return ast.unparse(symbolic_logic(to_python(expr.node), self.sizes, self.sequences))

    def _length(self, place: Place) -> str:
        return _sum(place.fixed, [f"len({self._render(segment)})" for segment in place.segments])

    def _index(self, place: Place) -> str:
        """Index of one axis."""
        if not place.from_right:
            return self._length(place)
        return (
            f"-({_sum(place.fixed + 1, [f'len({self._render(segment)})' for segment in place.segments])})"
            if place.segments
            else str(-place.fixed - 1)
        )

    def _size(self, tensor: str, place: Place) -> str:
        return f"_s_{tensor}[{self._index(place)}]"

    def _shown(self, expr: Expr) -> set[str]:
        """Names whose values an error about `expr` shows."""
        return set(expr.names)

    def _values(self, names: Iterable[str]) -> str:
        return "{" + ", ".join(f"{name!r}: {name}" for name in sorted(names)) + "}"

    def _guarded(self, expr: Expr, line: str) -> None:
        """Adds a line that evaluates `expr`; where it may be undefined, the failure names its declaration."""
        out = self.out
        if not _may_be_undefined(expr):
            out.add(line)
            return
        out.add("try:")
        out.add(_INDENT + line)
        out.add("except _Undefined as _error:")
        out.add(f"{_INDENT}raise _fail.undefined({expr.where!r}, _describe({expr.source!r}, _error)) from None")

    def _hold(self, expr: Expr, condition: str, report: str, arguments: str) -> None:
        """Adds the check of a condition that evaluates `expr`."""
        if _may_be_undefined(expr):
            self._guarded(expr, f"_ok = {condition}")
            self.out.add("if _ok is not True:")
        else:
            self.out.add(f"if (_ok := {condition}) is not True:")
        self.out.add(f"{_INDENT}_settle(_ok, _fail.{report}, {arguments})")

    def _origin(self, expr: Expr) -> str | None:
        sources = {self.origin[name] for name in expr.names if name in self.origin}
        return sources.pop() if len(sources) == 1 else None

    # --- steps ---

    def _step(self, step: Step) -> None:
        match step:
            case BindDType():
                self._bind_dtype(step)
            case CheckDType():
                self._check_dtype(step)
            case CheckRank():
                self._check_rank(step)
            case BindDim():
                self.out.add(f"{step.name} = {self._size(step.tensor, step.place)}")
            case BindShape():
                self._bind_shape(step)
            case BindAffine():
                self._bind_affine(step)
            case CheckAxis():
                self._check_axis(step)
            case CheckSegment():
                self._check_segment(step)
            case Let():
                self._guarded(step.expr, f"{step.name} = {self._render(step.expr)}")
            case CheckRule():
                self._check_rule(step)
            case CheckCombo():
                self._check_combo(step)
            case CheckNonNegative():
                value = self._render(step.expr)
                self._hold(
                    step.expr,
                    f"_non_negative({value})",
                    "negative",
                    f"{step.declaration!r}, {step.expr.text!r}, {value}",
                )
            case _:
                raise TypeError(f"no code for {type(step).__name__}")

    def _bind_shape(self, step: BindShape) -> None:
        start, stop = self._length(step.start), self._length(step.stop)
        end = f"len(_s_{step.tensor})" + (f" - ({stop})" if "+" in stop else f" - {stop}")
        whole = start == "0" and stop == "0"
        self.out.add(f"{step.name} = tuple(_s_{step.tensor}{'' if whole else f'[{start}:{end}]'})")

    def _bind_dtype(self, step: BindDType) -> None:
        names = self.out.constant(f"_names_{step.name}", TorchNames(step.names))
        where = self._tensor(step.tensor).decl.where
        self.out.add(f"{step.name} = {names}.get({step.tensor}.dtype)")
        self.out.add(f"if {step.name} is None:")
        self.out.add(f"{_INDENT}raise _fail.dtype({where!r}, {step.tensor!r}, {step.tensor}.dtype, {names}.values())")

    def _check_dtype(self, step: CheckDType) -> None:
        where = self._tensor(step.tensor).decl.where
        expected = f"_torch[{self._render(step.expr)}]"
        origin = self._origin(step.expr)
        self.out.add(f"if {step.tensor}.dtype != {expected}:")
        self.out.add(
            f"{_INDENT}raise _fail.dtype({where!r}, {step.tensor!r}, {step.tensor}.dtype, [{expected}], {origin!r})"
        )

    def _check_rank(self, step: CheckRank) -> None:
        tensor = self._tensor(step.tensor)
        axes = _sum(step.fixed, [f"len({self._render(segment)})" for segment in step.segments])
        if step.open and axes == "0":
            return
        comparison = "<" if step.open else "!="
        self.out.add(f"if len(_s_{step.tensor}) {comparison} {axes}:")
        arguments = (
            f"{tensor.decl.where!r}, {step.tensor!r}, _s_{step.tensor}, {tensor.shape_text!r}, {axes}, {step.open}"
        )
        self.out.add(f"{_INDENT}raise _fail.rank({arguments})")

    def _bind_affine(self, step: BindAffine) -> None:
        tensor = self._tensor(step.tensor)
        size, scale, offset = (
            self._size(step.tensor, step.place),
            self._render(step.scale),
            self._render(step.offset),
        )
        rest = size if offset == "0" else f"({size} - ({offset}))"
        factor = scale if scale.isalnum() else f"({scale})"
        condition = (
            f"_both({rest} >= 0, lambda: {rest} % {factor} == 0)" if offset != "0" else f"{rest} % {factor} == 0"
        )
        if not scale.isdigit():
            condition = f"_both({scale} > 0, lambda: {condition})"
        arguments = (
            f"{tensor.decl.where!r}, {step.tensor!r}, _s_{step.tensor}, {self._index(step.place)}, "
            f"{tensor.shape_text!r}, {step.axis.text!r}"
        )
        self.out.add(f"if (_ok := {condition}) is not True:")
        self.out.add(f"{_INDENT}_settle(_ok, _fail.affine, {arguments})")
        self.out.add(f"{step.name} = {rest} // {factor}" if factor != "1" else f"{step.name} = {rest}")

    def _check_axis(self, step: CheckAxis) -> None:
        tensor = self._tensor(step.tensor)
        size, expected = self._size(step.tensor, step.place), self._render(step.expr)
        arguments = (
            f"{tensor.decl.where!r}, {step.tensor!r}, _s_{step.tensor}, {self._index(step.place)}, "
            f"{tensor.shape_text!r}, "
            f"{step.expr.text!r}, {expected}, {self._origin(step.expr)!r}"
        )
        self._hold(step.expr, f"{size} == {expected}", "axis", arguments)

    def _check_segment(self, step: CheckSegment) -> None:
        tensor = self._tensor(step.tensor)
        start, expected = self._length(step.place), self._render(step.expr)
        piece = f"_s_{step.tensor}[{start}:{_join(start, f'len({expected})')}]"
        arguments = (
            f"{tensor.decl.where!r}, {step.tensor!r}, _s_{step.tensor}, {tensor.shape_text!r}, "
            f"{step.expr.text!r}, {expected}, "
            f"{self._origin(step.expr)!r}"
        )
        self._hold(step.expr, f"_same({piece}, {expected})", "segment", arguments)

    def _check_rule(self, step: CheckRule) -> None:
        source = next(rule.source for rule in self.signature.shape_rules if rule.where == step.rule.where)
        for part in conjuncts(step.rule.node):
            expr = step.rule.with_node(part)
            arguments = f"{step.rule.where!r}, {source!r}, {self._values(self._shown(step.rule))}"
            if step.at_construction or not expr.names <= self.fixed:
                self._hold(expr, self._render(expr), "rule", arguments)
            else:
                self._hold_once(expr, arguments)

    def _hold_once(self, expr: Expr, arguments: str) -> None:
        """Adds the check of a rule that reads no size: once for each choice of dtypes."""
        out = self.out
        self.settled += 1
        dtypes = sorted(expr.names - set(self.signature.scalars))
        key = "(" + ", ".join([str(self.settled), *dtypes]) + ",)"
        out.add(f"if {key} not in _settled:")
        out.depth += 1
        self._hold(expr, self._render(expr), "rule", arguments)
        out.add(f"_settled.add({key})")
        out.depth -= 1

    def _check_combo(self, step: CheckCombo) -> None:
        rows = self.out.constant("_combos", step.rows)
        got = "(" + "".join(f"{name}, " for name in step.names) + ")"
        self.out.add(f"if {got} not in {rows}:")
        self.out.add(f"{_INDENT}raise _fail.combo('signature.dtype_combos', {step.names!r}, {got}, {rows})")

    # --- the result ---

    def _result(self) -> None:
        out = self.out
        outputs = []
        for name, decl in self.signature.outputs.items():
            if name not in self.branch.outputs:
                outputs.append("None")
                continue
            tensor = self.branch.outputs[name]
            shape = self._output_shape(tensor)
            dtype = f"_torch[{self._render(tensor.dtype)}]"
            risky = next((expr for expr in tensor.exprs if _may_be_undefined(expr)), tensor.dtype)
            out.add(f"# {name}: {shape_text(tensor.items)}")
            self._guarded(risky, f"_o_{name} = _Output({name!r}, {shape}, {dtype})")
            outputs.append(f"_o_{name}")
            if decl.buffer and self.branch.present(OUT):
                self._check_buffer(name, decl.contiguous)
        solved = [
            step.name
            for step in self.plan.steps
            if isinstance(step, BindDim | BindAffine | BindShape | BindDType | Let)
        ]
        indices = ", ".join(["**_c", *(f"{name!r}: {name}" for name in dict.fromkeys(solved))])
        inputs = ", ".join(
            f"{name!r}: (tuple(_s_{name}), {self._render(tensor.dtype)})"
            for name, tensor in {**self.branch.held, **self.branch.inputs}.items()
        )
        written = (*self.branch.written, *((OUT,) if self.branch.facts.present.get(OUT) else ()))
        listed = "(" + "".join(f"{item}, " for item in outputs) + ")"
        out.add(f"return _Checked(_branch, {{{indices}}}, {{{inputs}}}, {listed}, {written!r}, _device)")

    def _output_shape(self, tensor: BranchTensor) -> str:
        match tensor.items:
            case (Segment(expr=Expr(node=ast.Name(id=name))),) if name in self.signature.indices:
                return name
        parts = [("*" if isinstance(item, Segment) else "") + self._render(item.expr) for item in tensor.items]
        return "(" + ", ".join(parts) + ("," if len(parts) == 1 else "") + ")"

    def _check_buffer(self, name: str, contiguous: bool) -> None:
        out, where = self.out, f"outputs.{name}.buffer"
        out.add(f"if not isinstance({OUT}, _Tensor):")
        out.add(f"{_INDENT}raise _fail.not_a_tensor({where!r}, 'out', {OUT})")
        out.add(f"if {OUT}.dtype != _o_{name}.dtype:")
        out.add(f"{_INDENT}raise _fail.dtype({where!r}, 'out', {OUT}.dtype, [_o_{name}.dtype])")
        out.add(f"if (_ok := _same({OUT}.shape, _o_{name}.shape)) is not True:")
        arguments = (
            f"{where!r}, 'out', {OUT}.shape, {self.branch.outputs[name].shape_text!r}, 'the output', "
            f"_o_{name}.shape, None"
        )
        out.add(f"{_INDENT}_settle(_ok, _fail.segment, {arguments})")
        out.add(f"if _device is not None and {OUT}.device != _device:")
        out.add(f"{_INDENT}raise _fail.device({where!r}, 'out', {OUT}.device, 'the call', _device)")
        if contiguous:
            out.add(f"if not {OUT}.is_contiguous():")
            out.add(f"{_INDENT}raise _fail.not_contiguous({where!r}, 'out', {OUT}.stride())")


class TorchNames(tuple):
    """Dtype names that the generated module looks up by torch.dtype; bound by whoever executes the source."""


def _sizes_and_sequences(branch: Branch) -> tuple[frozenset[str], frozenset[str]]:
    """Names whose values are sizes of tensors, or follow from some, and names that stand for sequences."""
    indices = branch.signature.indices
    sizes = {name for name, kind in indices.items() if isinstance(kind, k.Dim | k.Shape)}
    sizes |= {name for name, expr in branch.lets.items() if branch.reads([expr]) & sizes}
    kinds = branch_scope(branch).names
    return frozenset(sizes), frozenset(name for name, kind in kinds.items() if isinstance(kind, k.Shape | k.Seq))


def _may_be_undefined(expr: Expr) -> bool:
    """Whether evaluating `expr` can fail: it calls a primitive, divides or subscripts."""
    return any(isinstance(node, ast.Call | ast.FloorDiv | ast.Mod | ast.Subscript) for node in ast.walk(expr.node))


def _sum(fixed: int, terms: list[str]) -> str:
    parts = ([str(fixed)] if fixed or not terms else []) + terms
    return " + ".join(parts)


def _join(start: str, length: str) -> str:
    return length if start == "0" else f"{start} + {length}"


def conjuncts(node: ast.expr) -> list[ast.expr]:
    """Operands of a conjunction, each checked on its own."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        return [part for value in node.values for part in conjuncts(value)]
    return [node]
