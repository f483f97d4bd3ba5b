"""The part of a call check that reads sizes, for calls of a kind that passed the whole check before.

    make_sizes(_c, T)        parameters and dtypes -> _sizes, (dtype of each output)
    _sizes(*signature)       -> (solved indices), (shapes of the inputs), (shapes of the outputs), all inputs are dense;
                             None where anything does not hold

The signature of a call is that of `tileops.ops.calling`: shape, dtype, placement and strides of each tensor (True in
place of dense strides), as one item where the tensor is optional; then comes what is no business of the entry.

It reports nothing: whoever gets None asks the whole check, which says what is wrong. So it only has to be right about
what it accepts, and tensors must be real: sizes are compared as plain integers.
"""

from __future__ import annotations

from collections.abc import Iterable

from tileops.manifest.expr import Expr
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
    Plan,
    Step,
)
from tileops.manifest.primitives.general import broadcast
from tileops.ops.codegen.emit import Emitter, Source, conjuncts


def plain_broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """`broadcast` of plain sizes, which mostly are all the same."""
    first = shapes[0]
    for shape in shapes:
        if shape != first:
            return broadcast(*shapes)
    return first


_BINDS = (BindDim, BindAffine, BindShape, Let)


def emit_sizes(op: str, plan: Plan) -> Source:
    """Source of ``make_sizes`` for one branch without construction-time tensors."""
    return _SizesEmitter(op, plan).emit()


def dtype_indices(plan: Plan) -> tuple[str, ...]:
    """The indices that stand for dtypes, in the order in which ``make_sizes`` takes their names."""
    return tuple(dict.fromkeys(step.name for step in plan.steps if isinstance(step, BindDType)))


def solved_indices(plan: Plan) -> tuple[str, ...]:
    """The indices whose values ``_sizes`` returns, in order."""
    return tuple(dict.fromkeys(step.name for step in plan.steps if isinstance(step, _BINDS)))


class _SizesEmitter(Emitter):
    def emit(self) -> Source:
        out = self.out
        out.add(f"# {self.op}: the sizes of a call of a known kind. Generated from its manifest entry.")
        out.add(f"def make_sizes({', '.join(['_c', *dtype_indices(self.plan)])}):")
        out.depth = 1
        for name in self._used_parameters():
            out.add(f"{name} = _c[{name!r}]")
        for step in self.plan.steps:
            if step.at_construction:
                self._step(step)
        out.add(f"def _sizes({', '.join(map(self._formal, self.signature.forward_order))}, *_rest):")
        out.depth = 2
        out.add("try:")
        out.depth = 3
        names = list(self.branch.inputs)
        for name, tensor in self.branch.inputs.items():
            if self._is_one_item(name):
                out.add(f"_s_{name}, _, _, _d_{name} = {name}")
            if tensor.decl.contiguous:
                self._require(f"_d_{name} is True")
            out.add(f"_s_{name} = tuple(_s_{name})")
        for step in self.plan.steps:
            if not step.at_construction:
                self._step(step)
        solved = solved_indices(self.plan)
        outputs = [
            self._output_shape(self.branch.outputs[name]) if name in self.branch.outputs else "None"
            for name in self.signature.outputs
        ]
        dense = " and ".join(f"_d_{name} is True" for name in names)
        out.add(f"return {_listed(solved)}, {_listed(f'_s_{name}' for name in names)}, {_listed(outputs)}, {dense}")
        out.depth = 2
        out.add("except _Undefined:")
        out.add("    return None")
        out.depth = 1
        dtypes = [
            f"_torch[{self._render(self.branch.outputs[name].dtype)}]" if name in self.branch.outputs else "None"
            for name in self.signature.outputs
        ]
        inputs = [self._render(tensor.dtype) for tensor in self.branch.inputs.values()]
        out.add(f"return _sizes, {_listed(dtypes)}, {_listed(inputs)}")
        return out

    def _is_one_item(self, name: str) -> bool:
        return name not in self.signature.inputs or self.signature.inputs[name].optional is not None

    def _formal(self, name: str) -> str:
        return name if self._is_one_item(name) else f"_s_{name}, _t_{name}, _p_{name}, _d_{name}"

    def _require(self, condition: str) -> None:
        self.out.add(f"if not ({condition}):")
        self.out.add("    return None")

    def _step(self, step: Step) -> None:
        out = self.out
        match step:
            case BindDType() | CheckDType() | CheckCombo():
                pass  # of the kind
            case BindDim():
                out.add(f"{step.name} = {self._size(step.tensor, step.place)}")
            case BindShape():
                self._bind_shape(step)
            case BindAffine():
                rest = f"{self._size(step.tensor, step.place)} - ({self._render(step.offset)})"
                scale = self._render(step.scale)
                out.add(f"_scale, _rest = {scale}, {rest}")
                self._require("_scale > 0 and _rest >= 0 and _rest % _scale == 0")
                out.add(f"{step.name} = _rest // _scale")
            case Let():
                out.add(f"{step.name} = {self._render(step.expr)}")
            case CheckRank():
                axes = " + ".join([str(step.fixed), *(f"len({self._render(segment)})" for segment in step.segments)])
                if axes != "0" or not step.open:
                    self._require(f"len(_s_{step.tensor}) {'>=' if step.open else '=='} {axes}")
            case CheckAxis():
                self._require(f"{self._size(step.tensor, step.place)} == {self._render(step.expr)}")
            case CheckSegment():
                start, expected = self._length(step.place), self._render(step.expr)
                out.add(f"_expected = tuple({expected})")
                self._require(f"_s_{step.tensor}[{start}:{start} + len(_expected)] == _expected")
            case CheckNonNegative():
                self._require(f"_non_negative({self._render(step.expr)}) is True")
            case CheckRule():
                for part in conjuncts(step.rule.node):
                    expr: Expr = step.rule.with_node(part)
                    if not step.at_construction and not expr.names <= self.fixed:
                        self._require(f"({self._render(expr)}) is True")
            case _:
                raise TypeError(f"no code for {type(step).__name__}")


def _listed(items: Iterable[str]) -> str:
    return "(" + "".join(f"{item}, " for item in items) + ")"
