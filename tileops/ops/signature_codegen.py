"""Checks and costs of an operator, generated from its manifest entry.

    sig = signature_for(load_entry("RMSNormFwdOp"))      cached per entry
    construction = sig.construct(normalized_shape=(4096,))
        construction.params      dict, Python values as the op stores them (dtypes as torch.dtype), defaults
        filled in
        construction.values      dict, the same with dtypes by name, as expressions read them
    checked = sig.check_call(construction, (x, weight))  tensors in `sig.forward_order`, None where absent
        checked.indices          dict: parameters, solved indices, lets; dtypes by name
        checked.inputs           dict name -> (shape, dtype name) of the inputs that were passed
        checked.outputs          tuple of Output(name, shape, dtype: torch.dtype), None where a nullable
        output is absent
        checked.written          names of written inputs ("out" included)
        checked.device           the call device (None without tensors)
    flops, bytes = sig.roofline(checked)
    sig.read_bytes(checked)

    sig.name, sig.entry, sig.forward_order               ("x", "weight", "out" where declared, keyword-only
    inputs)
    sig.params    tuple of ParamSlot(name, type, required, default, kw_only, is_tensor)
    sig.inputs    tuple of InputSlot(name, optional, kw_only, mutated, write_only, contiguous, cpu, metadata)
    sig.outputs   tuple of OutputSlot(name, nullable, buffer, alias)
    sig.has_boundary                                     calls are torch.library operators
    sig.source(construction, tensors present as a tuple of bool)   generated Python, for people

A check function is generated once per branch (the parameters' discriminants and which tensors are passed),
when first needed, under a lock, and registered with `linecache`, so a traceback shows its lines. Every
failure is a `tileops.errors.CheckError`.
"""

from __future__ import annotations

import linecache
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from tileops.manifest.adts import ADTValue, to_object
from tileops.manifest.branch import (
    Branch,
    branch_at,
    construction_branch,
    construction_values,
    discriminants,
)
from tileops.manifest.construction import (
    ConstructionChecks,
    bind_parameters,
    check_construction,
    construction_checks,
)
from tileops.manifest.dtypes import DTYPES
from tileops.manifest.entry import Entry
from tileops.manifest.expr import NAMESPACE, Expr
from tileops.manifest.expr.evaluation import UNDEFINED, describe_undefined
from tileops.manifest.failures import Failures
from tileops.manifest.plan import Plan, plan_branch, plan_held
from tileops.manifest.roofline import CallView, evaluate_roofline, traffic
from tileops.manifest.signature import REQUIRED
from tileops.manifest.unify import unify
from tileops.ops.codegen import runtime
from tileops.ops.codegen.emit import Source, TorchNames, emit_call_check
from tileops.ops.codegen.runtime import Checked, Output, SizeCheck
from tileops.ops.codegen.sizes import dtype_indices, emit_sizes, plain_broadcast, solved_indices

__all__ = [
    "CallSignature",
    "Checked",
    "Construction",
    "InputSlot",
    "Output",
    "OutputSlot",
    "ParamSlot",
    "signature_for",
]

_TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES if hasattr(torch, name)}
_DTYPE_NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in _TORCH_DTYPES.items()}


class ParamSlot(NamedTuple):
    """A construction parameter. `default` is meaningful where it is not `required`."""

    name: str
    type: str
    required: bool
    default: Any
    kw_only: bool
    is_tensor: bool


class InputSlot(NamedTuple):
    """A call-time input. `optional`: it may be None on some call; `metadata`: its contents are lengths,
    offsets or indices.
    """

    name: str
    optional: bool
    kw_only: bool
    mutated: bool
    write_only: bool
    contiguous: bool
    cpu: bool
    metadata: bool


class OutputSlot(NamedTuple):
    """An output. `nullable`: it may be None; `buffer`: ``out`` may be passed for it; `alias`: the input that
    it may be.
    """

    name: str
    nullable: bool
    buffer: bool
    alias: str | None


class Construction:
    """Checked construction parameters of one op instance.

    Attributes:
        params: Python values by name, dtypes as `torch.dtype`.
        values: the same with dtypes by name.
    """

    __slots__ = ("_checks", "params", "point", "values")

    def __init__(self, values: dict[str, Any], params: dict[str, Any], point: dict[str, Any]) -> None:
        self.values = values
        self.params = params
        self.point = point
        self._checks: dict[tuple[bool, ...], Callable[..., Checked]] = {}

    def __repr__(self) -> str:
        return f"Construction({', '.join(f'{name}={value!r}' for name, value in self.params.items())})"


class CallSignature:
    """The generated side of one entry; see the module's docstring for what it offers."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.name = entry.name
        self.has_boundary = entry.has_boundary
        self._signature = signature = entry.signature
        self._failures = Failures(entry.name)
        self._choices = discriminants(signature)
        self._lock = threading.RLock()
        self._construction_checks: dict[tuple[Any, ...], ConstructionChecks] = {}
        self._makers: dict[tuple[Any, ...], Callable[[dict[str, Any]], Callable[..., Checked]]] = {}
        self._size_makers: dict[tuple[Any, ...], tuple[Callable[..., Any], Plan]] = {}
        self._sources: dict[tuple[Any, ...], str] = {}
        self.forward_order = signature.forward_order
        self.params = tuple(
            ParamSlot(
                name,
                param.type,
                param.required,
                None if param.default is REQUIRED else _as_python(param.default, param.kind),
                param.kw_only,
                param.tensor is not None,
            )
            for name, param in signature.params.items()
        )
        self.inputs = tuple(
            InputSlot(
                decl.name,
                decl.optional is not None,
                decl.kw_only,
                decl.mutated is not None,
                decl.write_only,
                decl.contiguous,
                decl.cpu,
                decl.values is not None,
            )
            for decl in signature.inputs.values()
        )
        self.outputs = tuple(
            OutputSlot(decl.name, decl.nullable is not None, decl.buffer, decl.alias)
            for decl in signature.outputs.values()
        )

    # --- construction ---

    def construct(self, **params: Any) -> Construction:
        """Checks and normalises construction parameters.

        Raises:
            CheckError: a parameter is missing, unknown, not of its type, or violates a declaration.
        """
        values = bind_parameters(self._signature, self._failures, params, _dtype_name)
        point = construction_values(self._choices, values)
        key = tuple(point.values())
        checks = self._construction_checks.get(key)
        if checks is None:
            checks = self._construction_checks[key] = construction_checks(self._signature, self._choices, point)
        check_construction(checks, self._failures, self._signature, values)
        self._check_held(values, point)
        python = {name: _as_python(value, self._signature.params[name].kind) for name, value in values.items()}
        for name, value in params.items():
            if isinstance(values[name], ADTValue) and not isinstance(value, ADTValue):
                python[name] = value  # the caller's own object
        return Construction(values, python, point)

    def _check_held(self, values: dict[str, Any], point: dict[str, Any]) -> None:
        """Solves, at construction, what construction-time tensors alone decide."""
        decls = {name: param.tensor for name, param in self._signature.params.items() if param.tensor}
        if not decls:
            return
        for name, decl in decls.items():
            value = values[name]
            if value is None and decl.optional is None:
                raise self._failures.missing_tensor(decl.where, name)
            if value is not None and not isinstance(value, torch.Tensor):
                raise self._failures.not_a_tensor(decl.where, name, value)
        branch = construction_branch(self._signature, self._choices, point)
        facts = {name: (tuple(values[name].shape), _name_of(values[name].dtype)) for name in branch.held}
        scalars = {name: values[name] for name in self._signature.scalars}
        unify(self.name, plan_held(branch), scalars, facts)

    # --- calls ---

    def check_call(self, construction: Construction, tensors: Sequence[torch.Tensor | None]) -> Checked:
        """Checks one call and infers its outputs.

        Args:
            construction: what `construct` returned.
            tensors: in `forward_order`, None where absent; meta and fake tensors and symbolic sizes are fine.

        Raises:
            CheckError: a declaration does not hold.
        """
        return self.check_of(construction, tensors)(*tensors)

    def check_of(self, construction: Construction, tensors: Sequence[torch.Tensor | None]) -> Callable[..., Checked]:
        """The function ``check(*tensors)`` of calls in which the same tensors are present.

        Raises:
            CheckError: no call may have this presence.
        """
        presence = tuple([tensor is not None for tensor in tensors])
        check = construction._checks.get(presence)
        if check is None:
            check = construction._checks[presence] = self._maker(construction, presence)(construction.values)
        return check

    def sizes_of(self, construction: Construction, checked: Checked, presence: Sequence[bool]) -> SizeCheck:
        """The check of the sizes of calls that are like one that passed in all else: the same tensors are present, with
        the same dtypes and devices.

        Args:
            construction: what `construct` returned; without construction-time tensors.
            checked: what the check of that call returned; it writes no tensor of the caller.
            presence: which tensors it has, in `forward_order`.
        """
        key = (*construction.point.values(), *presence)
        known = self._size_makers.get(key)
        if known is None:
            with self._lock:
                plan = plan_branch(checked.branch)
                namespace = self._execute(emit_sizes(self.name, plan), f"sizes {len(self._size_makers)}", _PLAIN)
                known = self._size_makers[key] = namespace["make_sizes"], plan
        make, plan = known
        names = dtype_indices(plan)
        dtypes = {name: checked.indices[name] for name in names}
        accept, outputs, inputs = make(construction.values, *dtypes.values())
        return SizeCheck(
            accept,
            checked.branch,
            {**construction.values, **dtypes},
            solved_indices(plan),
            tuple(zip(checked.branch.inputs, inputs, strict=True)),
            tuple(
                None if dtype is None else (name, dtype)
                for name, dtype in zip(self._signature.outputs, outputs, strict=True)
            ),
            checked.device,
        )

    def source(self, construction: Construction, presence: Sequence[bool]) -> str:
        """The generated Python of the check for calls with these tensors present (in `forward_order`)."""
        self._maker(construction, tuple(presence))
        return self._sources[(*construction.point.values(), *presence)]

    def branch(self, construction: Construction, presence: Sequence[bool]) -> Branch:
        """The branch of the signature for calls with these tensors present.

        Raises:
            CheckError: no call may have this presence.
        """
        if len(presence) != len(self.forward_order):
            raise self._failures.count(len(self.forward_order), len(presence))
        given = dict(zip(self.forward_order, presence, strict=True))
        signature = self._signature
        for name, decl in signature.inputs.items():
            if decl.optional is None and not given[name]:
                raise self._failures.missing_tensor(decl.where, name)
        point = dict(construction.point)
        point.update({choice.name: given[choice.name] for choice in self._choices if not choice.at_construction})
        branch = branch_at(signature, self._choices, point)
        for name, decl in signature.inputs.items():
            if isinstance(decl.optional, Expr) and branch.facts.present[name] != given[name]:
                if given[name]:
                    raise self._failures.unexpected_tensor(decl.where, name, decl.optional.source)
                raise self._failures.missing_tensor(decl.where, name, decl.optional.source)
        if branch.restrictions:
            rule = branch.restrictions[0]
            shown = {
                name: construction.values[name]
                for name in sorted(rule.names | rule.tested)
                if name in construction.values
            }
            shown |= {f"present({name})": branch.present(name) for name in sorted(rule.tested)}
            raise self._failures.restriction(rule.where, rule.source, shown)
        return branch

    def _maker(
        self, construction: Construction, presence: tuple[bool, ...]
    ) -> Callable[[dict[str, Any]], Callable[..., Checked]]:
        key = (*construction.point.values(), *presence)
        maker = self._makers.get(key)
        if maker is None:
            with self._lock:
                maker = self._makers.get(key)
                if maker is None:
                    maker = self._makers[key] = self._generate(key, self.branch(construction, presence))
        return maker

    def _generate(self, key: tuple[Any, ...], branch: Branch) -> Callable[[dict[str, Any]], Callable[..., Checked]]:
        source = emit_call_check(self.name, plan_branch(branch))
        names = {"_fail": self._failures, "_branch": branch}
        namespace = self._execute(source, f"check {len(self._sources)}", names)
        self._sources[key] = source.text
        return namespace["make_check"]

    def _execute(self, source: Source, what: str, names: dict[str, Any]) -> dict[str, Any]:
        """Runs generated source, and shows it in tracebacks."""
        filename = f"<tileops.{self.entry.family}.{self.name} {what}>"
        namespace = _NAMESPACE | names
        for name, value in source.constants.items():
            if isinstance(value, TorchNames):
                value = {_TORCH_DTYPES[item]: item for item in value if item in _TORCH_DTYPES}
            namespace[name] = value
        exec(compile(source.text, filename, "exec"), namespace)
        # An entry without a modification time is never dropped by linecache.checkcache().
        linecache.cache[filename] = (len(source.text), None, source.text.splitlines(keepends=True), filename)
        return namespace

    # --- costs ---

    def call_view(self, checked: Checked, metadata: dict[str, Any] | None = None) -> CallView:
        """What roofline functions read of a checked call."""
        tensors = dict(checked.inputs)
        for output in checked.outputs:
            if output is not None:
                tensors[output.name] = (tuple(output.shape), _DTYPE_NAMES[output.dtype])
        return CallView(checked.branch, checked.indices, tensors, metadata)

    def roofline(self, checked: Checked, metadata: dict[str, Any] | None = None) -> tuple[int, int]:
        """``(flops, bytes)`` of a checked call.

        Args:
            checked: what `check_call` returned.
            metadata: contents of metadata tensors, for the formulas that read them.
        """
        return evaluate_roofline(self.entry.roofline, self.call_view(checked, metadata), checked.branch)

    def read_bytes(self, checked: Checked) -> int:
        """Bytes that a call reads, each input that is not write-only counted once."""
        return traffic(self.call_view(checked), checked.branch)[0]


def _name_of(dtype: torch.dtype) -> str:
    """Name of a dtype, also of one that no entry may declare."""
    return _DTYPE_NAMES.get(dtype) or str(dtype).removeprefix("torch.")


def _dtype_name(value: Any) -> str | None:
    return _DTYPE_NAMES.get(value) if isinstance(value, torch.dtype) else None


def _as_python(value: Any, kind: Any) -> Any:
    """A manifest value as the op stores it: dtype names become torch dtypes, ADT values their Python objects."""
    from tileops.manifest import kinds as k

    inner = kind.inner if isinstance(kind, k.Maybe) else kind
    if isinstance(value, ADTValue):
        return to_object(value, inner if isinstance(inner, k.ADT) else None)
    return _TORCH_DTYPES[value] if isinstance(inner, k.DType) and isinstance(value, str) else value


_NAMESPACE: dict[str, Any] = {
    **NAMESPACE,
    "_Tensor": torch.Tensor,
    "_Checked": Checked,
    "_Output": Output,
    "_Undefined": UNDEFINED,
    "_describe": describe_undefined,
    "_settle": runtime.settle,
    "_either": runtime.either,
    "_both": runtime.both,
    "_negation": runtime.negation,
    "_choose": runtime.choose,
    "_member": runtime.member,
    "_same": runtime.same,
    "_non_negative": runtime.non_negative,
    "_torch": _TORCH_DTYPES,
}

#: Faster where sizes are plain integers.
_PLAIN: dict[str, Any] = {"prim_broadcast": plain_broadcast}

_signatures: dict[str, CallSignature] = {}
_signatures_lock = threading.Lock()


def signature_for(entry: Entry) -> CallSignature:
    """The generated checks of `entry`, made once.

    Raises:
        CheckError: never here; a malformed entry fails where its branch is first needed, naming the
            declaration.
    """
    known = _signatures.get(entry.name)
    if known is None or known.entry is not entry:
        with _signatures_lock:
            known = _signatures.get(entry.name)
            if known is None or known.entry is not entry:
                known = _signatures[entry.name] = CallSignature(entry)
    return known
