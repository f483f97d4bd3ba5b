"""The calls of manifest rows, and recorded calls, as kernels see them: without tensors and for any device.

for planned in planned_calls(RMSNormFwdOp, device_for("sm_90a")):
    planned.kernel.programs(planned.call, planned.kernel.default_config(planned.call))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from tileops import backend, manifest
from tileops.backend import registry
from tileops.errors import CheckError, DispatchError, OpNotAvailableError
from tileops.kernels.base import CallSpec, DeviceFacts, Kernel, TensorSpec
from tileops.kernels.gemm.paths import packed_layouts
from tileops.manifest.workload import AbstractTensor, Call, cases
from tileops.ops import dispatch, selection
from tileops.ops.base import Op
from tileops.ops.composing import stage_calls
from tileops.ops.dtypes import dtype_of, torch_parameters
from tileops.ops.facts import CallFacts, allocated_spec, spec_of
from tileops.ops.recording import RecordedCall

# Compute capabilities that a build machine compiles for, and the shared memory a block may ask for there.
_SMEM_PER_BLOCK = {"sm_80": 163 << 10, "sm_86": 99 << 10, "sm_89": 99 << 10, "sm_90": 227 << 10}


@dataclass(frozen=True)
class PlannedCall:
    """A row's call at one call site.

    Attributes:
        case_id: the case, or the line of a calls file, that it comes from.
        site: the op's call site.
        call: the call spec.
        kernel: the kernel class that serves it.
        packed: layout of a packed operand, or None.
    """

    case_id: str
    site: str
    call: CallSpec
    kernel: type[Kernel]
    packed: str | None = None


@dataclass(frozen=True)
class RefusedCall:
    """A row's call that no kernel serves, with the reason."""

    case_id: str
    reason: str


def device_for(arch: str | None) -> DeviceFacts:
    """The device of an architecture such as ``sm_90a``; None is this machine's CPU."""
    if arch is None:
        return DeviceFacts()
    base = arch.rstrip("af")
    return DeviceFacts(type="cuda", arch=base, smem_per_block=_SMEM_PER_BLOCK.get(base, 99 << 10))


def planned_calls(
    op: type[Op], device: DeviceFacts, case_ids: Sequence[str] | None = None, *, packed: bool = False
) -> Iterator[PlannedCall | RefusedCall]:
    """Every call of the op's rows on `device`, with the kernel that would serve it.

    Args:
        op: the operator's class.
        device: where the calls run.
        case_ids: only these cases.
        packed: each call once more with its weight packed, where the op and the device know packs.
    """
    for row in cases(op.entry):
        if case_ids is None or row.case_id in case_ids:
            yield from _plan(op, row, device, packed)


def replanned_calls(recorded: RecordedCall, device: DeviceFacts) -> Iterator[PlannedCall | RefusedCall]:
    """A recorded call on `device`, with the kernels that would serve it; nothing where its outputs are empty.

    Args:
        recorded: a call from `recording.read_calls`.
        device: where it is going to run, whatever it was recorded on.
    """
    op = op_class(recorded.op)
    if op is None:
        yield RefusedCall(recorded.place, f"no operator is called {recorded.op}")
        return
    try:
        held = [slot.name for slot in op._held_slots]
        params, target = dispatch.decode(recorded.construction)
        if target not in (None, backend.BUILTIN):
            yield RefusedCall(recorded.place, f"the kernels of target {target!r} are not ours to compile")
            return
        params |= {name: _stand_in(recorded.tensors.get(name)) for name in held}
        instance = op(**params)
        tensors = tuple(_stand_in(recorded.tensors.get(name)) for name in op._input_names)
        instance._require_tensors(tensors)
        checked = op._signature.check_call(instance._construction, tensors)
    except (CheckError, TypeError, ValueError, AttributeError) as error:  # the operator has changed since
        yield RefusedCall(recorded.place, f"{type(error).__name__}: {error}")
        return
    if not checked.written and all(output is None or 0 in output.shape for output in checked.outputs):
        return
    facts = {name: _moved(recorded.tensors.get(name), device) for name in (*op._input_names, *held)}
    place = torch.device(device.type, device.index) if device.type != "cpu" else torch.device("cpu")
    for name, output in zip(op.entry.signature.outputs, checked.outputs, strict=True):
        facts[name] = None if output is None else allocated_spec(output.shape, output.dtype, place)
    yield from _sites(instance, recorded.place, CallFacts(device, facts, checked.indices, recorded.packed))


def _plan(op: type[Op], row: Call, device: DeviceFacts, packed: bool) -> Iterator[PlannedCall | RefusedCall]:
    values = torch_parameters(row.values)
    held: dict[str, Any] = {slot.name: _stand_in(_spec(row.held.get(slot.name), device)) for slot in op._held_slots}
    instance = op(**{name: values[name] for name in op.entry.signature.scalars}, **held)
    if op.entry.composition:
        yield from _plan_stages(instance, row, device, packed)
        return
    tensors = {**row.held, **row.inputs, **row.outputs}
    names = (*held, *op.entry.signature.inputs, *op.entry.signature.outputs)
    specs = {name: _spec(tensors.get(name), device) for name in names}
    yield from _both(instance, row.case_id, CallFacts(device, specs, dict(row.indices)), packed)


def _both(op: Op, case_id: str, facts: CallFacts, packed: bool) -> Iterator[PlannedCall | RefusedCall]:
    """A call, and where it is wanted and possible the same with its weight packed."""
    yield from _sites(op, case_id, facts)
    weight = facts[op._packed_input] if op._packed_input is not None else None
    if packed and weight is not None and facts.device.type == "cpu":
        for layout in packed_layouts(weight.dtype):
            yield from _sites(op, case_id, CallFacts(facts.device, facts.tensors, facts.indices, layout))


def _plan_stages(op: Op, row: Call, device: DeviceFacts, packed: bool) -> Iterator[PlannedCall | RefusedCall]:
    """The calls that a composite op makes of its delegates."""
    specs = {name: _spec(row.inputs.get(name), device) for name in op._input_names}
    for delegate, tensors in stage_calls(op, [_stand_in(specs[name]) for name in op._input_names]):
        checked = delegate._signature.check_call(delegate._construction, tensors)
        made: dict[str, TensorSpec | None] = {
            name: None if tensor is None else _moved(spec_of(tensor), device)
            for name, tensor in zip(delegate._input_names, tensors, strict=True)
        }
        place = torch.device("cpu") if device.type == "cpu" else torch.device(device.type, device.index)
        for name, output in zip(delegate.entry.signature.outputs, checked.outputs, strict=True):
            made[name] = None if output is None else allocated_spec(output.shape, output.dtype, place)
        yield from _both(delegate, row.case_id, CallFacts(device, made, checked.indices), packed)


def _sites(op: Op, case_id: str, facts: CallFacts) -> Iterator[PlannedCall | RefusedCall]:
    """What `op` asks for at each of its call sites while it binds a call."""
    wanted: list[tuple[str, CallSpec]] = []

    def note(site: str, call: CallSpec) -> Any:
        wanted.append((site, call))
        return _NOTHING

    object.__setattr__(op, "kernel_for", note)
    try:
        op._bind(facts)
        for site, call in wanted:
            kernel = selection.choose(type(op).__name__, site, op._sites[site], call)
            yield PlannedCall(case_id, site, call, kernel, facts.packed)
    except (DispatchError, OpNotAvailableError) as error:
        yield RefusedCall(case_id, str(error))


class _Nothing:
    """Stands for a kernel that is not built."""

    def bind(self, call: CallSpec) -> Callable[..., None]:
        return lambda *tensors: None


_NOTHING = _Nothing()


def op_class(name: str) -> type[Op] | None:
    """The operator called `name`: one of ours, or one that a loaded package defines. None for an entry without a
    class; a family all of whose entries are spec-only has no module either.
    """
    entry = manifest.load_all().get(name)
    if entry is not None:
        module = f"tileops.{entry.family}"
        return getattr(import_module(module), name, None) if find_spec(module) is not None else None
    registry.load_backends()
    pending = [Op]
    while pending:
        known = pending.pop()
        if known.__name__ == name and known._signature is not None:
            return known
        pending += known.__subclasses__()
    return None


def _stand_in(spec: TensorSpec | None) -> torch.Tensor | None:
    return (
        None
        if spec is None
        else torch.empty_strided(spec.shape, spec.strides, dtype=dtype_of(spec.dtype), device="meta")
    )


def _moved(spec: TensorSpec | None, device: DeviceFacts) -> TensorSpec | None:
    """The same tensor on `device`; what another kind of device allocates is taken to be aligned like new tensors."""
    if spec is None:
        return None
    recorded_on = spec.device.partition(":")[0]
    if device.type == "cpu":
        return replace(spec, device="cpu", alignment=spec.itemsize)
    alignment = spec.alignment if recorded_on == device.type else 16
    return replace(spec, device=f"{device.type}:{device.index}", alignment=alignment)


def _spec(tensor: AbstractTensor | None, device: DeviceFacts) -> TensorSpec | None:
    if tensor is None:
        return None
    place = "cpu" if tensor.cpu or device.type == "cpu" else f"{device.type}:{device.index}"
    return TensorSpec.contiguous(tensor.dtype, tensor.shape, place)
