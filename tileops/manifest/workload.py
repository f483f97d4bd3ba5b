"""Workload rows as abstract calls: shapes, dtype names, parameters, presence and the values of metadata
tensors. No torch here.

    for call in cases(load_entry("GemmFwdOp")):
        call.case_id, call.params, call.inputs["a"].shape, call.inputs["a"].dtype

A row fixes everything but ordinary tensor contents. After instantiation the call is inferred back from its
tensors and must agree.
"""

from __future__ import annotations

import ast
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from tileops.errors import CheckError, ManifestError
from tileops.manifest import kinds as k
from tileops.manifest.branch import (
    Branch,
    BranchTensor,
    Discriminant,
    branch_at,
    construction_values,
    discriminants,
)
from tileops.manifest.construction import bind_parameters, check_construction, construction_checks
from tileops.manifest.dtypes import DTYPES
from tileops.manifest.entry import Entry
from tileops.manifest.expr import Axis, Expr, Segment, evaluate, parse
from tileops.manifest.expr.syntax import call_name
from tileops.manifest.failures import Failures, declaration
from tileops.manifest.plan import Plan, affine, plan_branch
from tileops.manifest.primitives import GENERATORS, PREDICATES, PRIMITIVES, DomainError
from tileops.manifest.roofline import CallView, TensorFacts, evaluate_roofline, output_facts
from tileops.manifest.signature import OUT
from tileops.manifest.suggest import suggestion
from tileops.manifest.unify import shape_of, unify
from tileops.manifest.values import ValueMismatch, convert

#: Seed of every generated value; the operator and the tensor are mixed in.
WORKLOAD_SEED = 1235

LABEL = re.compile(r"[A-Za-z0-9._-]{1,24}")


class RowError(ManifestError):
    """A workload row does not make a call.

    Attributes:
        where: the row, and the key at fault.
        message: what is wrong.
    """

    def __init__(self, where: str, message: str) -> None:
        super().__init__(f"{where}: {message}")
        self.where = where
        self.message = message


@dataclass(frozen=True, eq=False)
class AbstractTensor:
    """A tensor of a call, before it exists.

    Attributes:
        name: its name in the signature.
        shape: sizes.
        dtype: name of the dtype.
        values: contents of a metadata tensor, else None: the tensor holds random data.
        cpu: it stays on the CPU, whatever the call device.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    values: np.ndarray | None = None
    cpu: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return int(np.prod(self.shape, dtype=np.int64)) * DTYPES[self.dtype].bits // 8


@dataclass(frozen=True, eq=False)
class Call:
    """One call that a workload row determines.

    Attributes:
        entry: the operator.
        case_id: label and dtypes; the key of stored history.
        label: the row's label.
        row: position of the row in the entry.
        params: the construction parameters that the row writes; dtypes by name.
        values: every construction parameter that is no tensor, defaults included; dtypes by name.
        indices: parameters, solved indices and lets.
        held: the construction-time tensors that are passed, by name.
        inputs: the call-time tensors that are passed, by name, in declaration order.
        outputs: the tensors that the call returns.
        branch: the branch that the call is on.
    """

    entry: Entry
    case_id: str
    label: str
    row: int
    params: Mapping[str, Any]
    values: Mapping[str, Any]
    indices: Mapping[str, Any]
    held: Mapping[str, AbstractTensor]
    inputs: Mapping[str, AbstractTensor]
    outputs: Mapping[str, AbstractTensor]
    branch: Branch = field(repr=False)

    @property
    def op(self) -> str:
        return self.entry.name

    @property
    def forward_order(self) -> tuple[str, ...]:
        """Names in the order of ``forward``; those not in `inputs` are None."""
        return self.entry.signature.forward_order

    def view(self) -> CallView:
        """The call as roofline functions read it."""
        tensors = {
            name: (item.shape, item.dtype) for name, item in {**self.held, **self.inputs, **self.outputs}.items()
        }
        metadata = {name: item.values for name, item in self.inputs.items() if item.values is not None}
        return CallView(self.branch, self.indices, tensors, metadata)

    def roofline(self) -> tuple[int, int]:
        """``(flops, bytes)`` of the call."""
        return evaluate_roofline(self.entry.roofline, self.view(), self.branch)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}: {item.dtype}{list(item.shape)}" for name, item in self.inputs.items())
        return f"<Call {self.op} {self.case_id} ({shown})>"


@lru_cache(maxsize=4096)
def _choices(entry: Entry) -> tuple[Discriminant, ...]:
    return discriminants(entry.signature)


@lru_cache(maxsize=4096)
def _branch(entry: Entry, point: tuple[tuple[str, Any], ...]) -> Branch:
    return branch_at(entry.signature, _choices(entry), dict(point))


@lru_cache(maxsize=4096)
def _plan(entry: Entry, point: tuple[tuple[str, Any], ...]) -> Plan:
    return plan_branch(_branch(entry, point))


def row_name(position: int) -> str:
    """Path of a row."""
    return f"workloads[{position}]"


def cases(entry: Entry) -> list[Call]:
    """Every call of every row, in order.

    Raises:
        RowError: a row does not make a call.
    """
    return [call for position in range(len(entry.workloads)) for call in instantiate(entry, position)]


def instantiate(entry: Entry, position: int) -> list[Call]:
    """The calls of one row, one per dtype case.

    Raises:
        RowError: the row misses or adds an index, a value is not of its kind, a refinement fails, or
            inference disagrees with the row.
    """
    return _Row(entry, position).calls()


class _Row:
    def __init__(self, entry: Entry, position: int) -> None:
        self.entry = entry
        self.signature = entry.signature
        self.position = position
        self.where = row_name(position)
        raw = entry.workloads[position]
        if not isinstance(raw, dict):
            raise RowError(self.where, f"a row is a mapping, got {raw!r}")
        self.raw: dict[str, Any] = raw

    def error(self, key: str | None, message: str) -> RowError:
        return RowError(self.where if key is None else f"{self.where}.{key}", message)

    def _refused(self, error: CheckError) -> RowError:
        """What a check says of the call, at the key of the row that is at fault where it is one."""
        text = str(error).removeprefix(f"{self.entry.name}: ")
        name = error.declaration.removeprefix("params.")
        if name in self.raw and name != error.declaration:
            return self.error(name, text.removeprefix(f"{error.declaration}: "))
        return self.error(None, f"the call is refused: {text}")

    def calls(self) -> list[Call]:
        label = self.raw.get("label")
        if not isinstance(label, str) or not LABEL.fullmatch(label):
            raise self.error("label", f"expected 1 to 24 characters of A-Za-z0-9._-, got {label!r}")
        known = {*self.signature.scalars, *self.signature.indices, "some", "dtype_cases", "label"}
        unknown = sorted((key for key in self.raw if key not in known), key=repr)
        if unknown:
            raise self.error(
                None,
                f"unknown key {unknown[0]!r}{suggestion(unknown[0], known)}; a row gives parameters, indices, some, "
                "dtype_cases and label",
            )
        some = self._some()
        params = {name: self.raw[name] for name in self.signature.scalars if name in self.raw}
        # A construction-time tensor is stood for by its name until its shape is known.
        held = {
            name: name if param.tensor.optional is None or name in some else None
            for name, param in self.signature.params.items()
            if param.tensor is not None
        }
        try:
            failures = Failures(self.entry.name)
            values = bind_parameters(self.signature, failures, {**params, **held})
            point = construction_values(_choices(self.entry), values)
            checks = construction_checks(self.signature, _choices(self.entry), point)
            check_construction(checks, failures, self.signature, values)
        except CheckError as error:
            raise self._refused(error) from None
        point.update(
            {
                choice.name: choice.name in some
                for choice in _choices(self.entry)
                if not choice.at_construction and choice.name != OUT
            }
        )
        point.update({choice.name: False for choice in _choices(self.entry) if choice.name == OUT})
        try:
            branch = _branch(self.entry, tuple(sorted(point.items())))
            if branch.restrictions:
                rule = branch.restrictions[0]
                where = declaration(rule.where)
                raise self.error(None, f"the call is refused: {where}: {rule.source!r} rejects this combination")
            plan = _plan(self.entry, branch.point)
        except RowError:
            raise
        except ManifestError as error:
            raise self.error(None, str(error)) from None
        written = {name: values[name] for name in params}
        return [self._call(label, written, values, plan, dtypes) for dtypes in self._dtype_cases(plan.branch)]

    def _some(self) -> set[str]:
        raw = self.raw.get("some", [])
        if not isinstance(raw, list) or not all(isinstance(name, str) for name in raw):
            raise self.error("some", f"expected a list of optional tensors, got {raw!r}")
        allowed = {
            name for name, decl in self.signature.tensors.items() if decl.role != "output" and decl.optional is True
        }
        for name in raw:
            if name not in allowed:
                listed = ", ".join(sorted(allowed)) or "none"
                raise self.error("some", f"{name!r} is not declared optional: true; such tensors are {listed}")
        if len(set(raw)) != len(raw):
            raise self.error("some", "a tensor is listed twice")
        return set(raw)

    # --- what the row must give ---

    def _relevant(self, branch: Branch) -> frozenset[str]:
        roofline = self.entry.roofline
        return branch.relevant(*(formula for formula in (roofline.flops, roofline.bytes) if formula is not None))

    def _dtype_cases(self, branch: Branch) -> list[dict[str, str]]:
        wanted = [
            name
            for name in self.signature.indices
            if name in self._relevant(branch) and isinstance(self.signature.indices[name], k.DType)
        ]
        raw = self.raw.get("dtype_cases")
        if not wanted:
            if raw is not None:
                raise self.error("dtype_cases", "no dtype index is relevant here; remove the key")
            return [{}]
        if not isinstance(raw, list) or not raw:
            raise self.error("dtype_cases", f"row misses dtype_cases; give a non-empty list over {', '.join(wanted)}")
        found = []
        for position, case in enumerate(raw):
            place = f"dtype_cases[{position}]"
            if not isinstance(case, dict) or set(case) != set(wanted):
                raise self.error(place, f"expected a mapping over {', '.join(wanted)}, got {case!r}")
            for name in wanted:
                kind = self.signature.indices[name]
                assert isinstance(kind, k.DType)
                if case[name] not in kind.names:
                    raise self.error(place, f"{name} ranges over {', '.join(kind.names)}, got {case[name]!r}")
            found.append({name: case[name] for name in wanted})
        return found

    def _given(self, branch: Branch) -> dict[str, Any]:
        """Values of the indices that the row writes; checks that it writes exactly the relevant ones."""
        relevant = {name for name in self._relevant(branch) if not isinstance(self.signature.indices[name], k.DType)}
        generated = self._generated(branch)
        given = {name for name in self.signature.indices if name in self.raw}
        missing = sorted(relevant - generated - given)
        if missing:
            raise self.error(None, f"row misses {', '.join(missing)}, which this branch uses")
        irrelevant = sorted(given - (relevant - generated))
        if irrelevant:
            why = "a generator determines it" if irrelevant[0] in generated else "this branch does not use it"
            raise self.error(irrelevant[0], f"row gives irrelevant {', '.join(irrelevant)}; {why}, remove it")
        values = {}
        for name in sorted(given, key=list(self.signature.indices).index):
            kind = self.signature.indices[name]
            try:
                values[name] = convert(self._list(name) if kind == k.INTS else self.raw[name], kind)
            except ValueMismatch as error:
                raise self.error(name, str(error)) from None
        return values

    def _generated(self, branch: Branch) -> set[str]:
        """Dim indices that the shapes of generated tensors determine."""
        found: set[str] = set()
        for tensor in branch.inputs.values():
            if tensor.decl.values is None:
                continue
            arguments = branch.reads([branch.folded(tensor.decl.values)])
            found |= {
                name for item in tensor.items for name in branch.reads([item.expr]) if name in self.signature.indices
            } - arguments
        return found

    def _list(self, name: str) -> Any:
        """A Seq[Int]: written out, or a call of a value primitive over literals."""
        raw = self.raw[name]
        if not isinstance(raw, str):
            return raw
        try:
            expr = parse(raw, f"{self.where}.{name}")
        except ManifestError as error:
            raise self.error(name, str(error).removeprefix(f"{self.where}.{name}: ")) from None
        function = call_name(expr.node) if isinstance(expr.node, ast.Call) else None
        if expr.names or function not in PRIMITIVES or PRIMITIVES[function].result != k.INTS:
            raise self.error(name, f'expected a list or a call such as "repeat(512, 64)" over literals, got {raw!r}')
        try:
            return evaluate(expr, {})
        except ManifestError as error:
            raise self.error(name, str(error)) from None

    # --- the call ---

    def _call(
        self,
        label: str,
        params: Mapping[str, Any],
        values: Mapping[str, Any],
        plan: Plan,
        dtypes: Mapping[str, str],
    ) -> Call:
        branch = plan.branch
        scalars = {name: values[name] for name in self.signature.scalars}
        scope: dict[str, Any] = {**scalars, **self._given(branch), **dtypes}
        generated = self._generate(branch, scope)
        self._define_lets(branch, scope)
        held = {name: self._tensor(tensor, scope) for name, tensor in branch.held.items()}
        ordered = {name: generated.get(name) or self._tensor(tensor, scope) for name, tensor in branch.inputs.items()}
        facts: dict[str, TensorFacts] = {name: (item.shape, item.dtype) for name, item in {**held, **ordered}.items()}
        try:
            indices = unify(self.entry.name, plan, scalars, facts)
        except CheckError as error:
            raise self._refused(error) from None
        for name in {
            *dtypes,
            *(name for name in self.raw if name in self.signature.indices and self.signature.indices[name] != k.INTS),
        }:
            if indices.get(name, scope[name]) != scope[name]:
                raise self.error(
                    name, f"the inferred {name} = {indices[name]!r} disagrees with the row's {scope[name]!r}"
                )
        self._check_requires(branch, ordered, {**scope, **indices})
        outputs = {
            name: AbstractTensor(name, shape, dtype)
            for name, (shape, dtype) in output_facts(branch, {**scope, **indices}).items()
        }
        return Call(
            self.entry,
            self._case_id(label, dtypes, values),
            label,
            self.position,
            params,
            scalars,
            {**scope, **indices},
            held,
            ordered,
            outputs,
            branch,
        )

    def _case_id(self, label: str, dtypes: Mapping[str, str], values: Mapping[str, Any]) -> str:
        parts = [label, *(dtypes[name] for name in self.signature.indices if name in dtypes)]
        for name, param in self.signature.scalars.items():
            inner = param.kind.inner if isinstance(param.kind, k.Maybe) else param.kind
            if isinstance(inner, k.DType) and values[name] is not None:
                parts.append(values[name])
        return "-".join(parts)

    def _tensor(self, tensor: BranchTensor, scope: Mapping[str, Any]) -> AbstractTensor:
        """A tensor of ordinary data."""
        try:
            shape, dtype = shape_of(tensor.items, scope), evaluate(tensor.dtype, scope)
        except ManifestError as error:
            raise self.error(None, str(error)) from None
        return AbstractTensor(tensor.name, shape, dtype, None, tensor.decl.cpu)

    def _define_lets(self, branch: Branch, scope: dict[str, Any]) -> None:
        pending = dict(branch.lets)
        progress = True
        while progress:
            progress = False
            for name, expr in list(pending.items()):
                if expr.names <= scope.keys():
                    try:
                        scope[name] = evaluate(expr, scope)
                    except ManifestError as error:
                        raise self.error(None, str(error)) from None
                    del pending[name]
                    progress = True

    def _generate(self, branch: Branch, scope: dict[str, Any]) -> dict[str, AbstractTensor]:
        """Runs the generators in order of dependence and unifies their results with the declared shapes."""
        found: dict[str, AbstractTensor] = {}
        pending = {
            name: branch.folded(tensor.decl.values)
            for name, tensor in branch.inputs.items()
            if tensor.decl.values is not None
        }
        while pending:
            self._define_lets(branch, scope)
            ready = [name for name, call in pending.items() if call.names <= scope.keys()]
            if not ready:
                name, call = next(iter(pending.items()))
                raise self.error(
                    None,
                    f"the values of {name} need {', '.join(sorted(call.names - scope.keys()))}, "
                    "which nothing determines",
                )
            name = ready[0]
            call = pending.pop(name)
            found[name] = self._generated_tensor(branch, name, call, scope)
            self._solve(branch.inputs[name], found[name].shape, scope)
        return found

    def _solve(self, tensor: BranchTensor, shape: tuple[int, ...], scope: dict[str, Any]) -> None:
        """Gives the indices of a generated tensor's shape their values: ``[NS + 1]`` solves NS."""
        fixed = sum(isinstance(item, Axis) for item in tensor.items)
        if fixed > len(shape) or (fixed < len(shape) and fixed == len(tensor.items)):
            member = tensor.decl.values
            raise self.error(
                None,
                f"{tensor.decl.where}.values: {member.source if member else ''!r} has {len(shape)} axes, "
                f"the shape {tensor.shape_text} has not",
            )
        position = 0
        for item in tensor.items:
            if isinstance(item, Segment):
                size = len(shape) - fixed if len(tensor.items) == fixed + 1 else len(evaluate(item.expr, scope))
                if isinstance(item.expr.node, ast.Name):
                    scope.setdefault(item.expr.node.id, shape[position : position + size])
                position += size
                continue
            unknown = item.expr.names - scope.keys()
            index = next(iter(unknown), "")
            parts = affine(item.expr.node, index) if len(unknown) == 1 else None
            if parts is not None and index in self.signature.indices:
                scale, offset = (evaluate(item.expr.with_node(part), scope) for part in parts)
                if scale > 0 and shape[position] >= offset and (shape[position] - offset) % scale == 0:
                    scope[index] = (shape[position] - offset) // scale
            position += 1

    def _generated_tensor(self, branch: Branch, name: str, call: Expr, scope: Mapping[str, Any]) -> AbstractTensor:
        decl = branch.inputs[name].decl
        assert isinstance(call.node, ast.Call)
        member = GENERATORS.get(call_name(call.node) or "")
        if member is None:
            raise self.error(None, f"{name}: {call.source!r} calls no built-in generator")
        positional, keywords = call_arguments(call, scope)
        if member.random:
            seed = WORKLOAD_SEED ^ zlib.crc32(f"{self.entry.name}:{name}".encode())
            positional = [np.random.default_rng(seed), *positional]
        try:
            values = member.function(*positional, **keywords)
        except DomainError as error:
            raise self.error(None, f"{decl.where}.values: in {call.source!r}: {error}") from None
        dtype = evaluate(branch.inputs[name].dtype, scope)
        facts = DTYPES[dtype]
        if facts.name not in ("int32", "int64"):
            raise self.error(None, f"{decl.where}.dtype: a generated tensor is int32 or int64, got {dtype}")
        if values.size and (values.min() < facts.low or values.max() > facts.high):
            raise self.error(None, f"{decl.where}.values: a value of {call.source!r} does not fit {dtype}")
        return AbstractTensor(name, tuple(values.shape), dtype, values.astype(dtype), decl.cpu)

    def _check_requires(self, branch: Branch, inputs: Mapping[str, AbstractTensor], scope: Mapping[str, Any]) -> None:
        for name, tensor in branch.inputs.items():
            for predicate in tensor.decl.requires:
                call = branch.folded(predicate)
                assert isinstance(call.node, ast.Call)
                member = PREDICATES.get(call_name(call.node) or "")
                if member is None:
                    raise self.error(None, f"{predicate.where}: {predicate.source!r} calls no built-in predicate")
                contents = {other: item.values for other, item in inputs.items() if item.values is not None}
                positional, keywords = call_arguments(call, {**scope, **contents})
                try:
                    holds = member.function(inputs[name].values, *positional, **keywords)
                except DomainError as error:
                    raise self.error(None, f"{predicate.where}: in {predicate.source!r}: {error}") from None
                if not holds:
                    raise self.error(
                        None,
                        f"{predicate.where}: requires {predicate.source!r} fails on the generated values of {name}",
                    )


def call_arguments(call: Expr, scope: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Values of the arguments of a generator or predicate call."""
    assert isinstance(call.node, ast.Call)
    positional = [evaluate(call.with_node(argument), scope) for argument in call.node.args]
    keywords = {item.arg: evaluate(call.with_node(item.value), scope) for item in call.node.keywords if item.arg}
    return positional, keywords


def repeated_case_ids(calls: Iterable[Call]) -> list[str]:
    """Case ids that occur more than once, sorted."""
    seen: dict[str, int] = {}
    for call in calls:
        seen[call.case_id] = seen.get(call.case_id, 0) + 1
    return sorted(case_id for case_id, count in seen.items() if count > 1)
