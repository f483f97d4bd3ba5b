"""The calls of manifest rows as kernels see them, without tensors and for any device.

for planned in planned_calls(RMSNormFwdOp, device_for("sm_90a")):
    planned.kernel.programs(planned.call, planned.kernel.default_config(planned.call))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tileops.errors import DispatchError
from tileops.kernels.base import CallSpec, DeviceFacts, Kernel, TensorSpec
from tileops.manifest.workload import AbstractTensor, Call, cases
from tileops.ops import selection
from tileops.ops.base import Op
from tileops.ops.dtypes import torch_parameters
from tileops.ops.facts import CallFacts

# Compute capabilities that a build machine compiles for, and the shared memory a block may ask for there.
_SMEM_PER_BLOCK = {"sm_80": 163 << 10, "sm_86": 99 << 10, "sm_89": 99 << 10, "sm_90": 227 << 10}


@dataclass(frozen=True)
class PlannedCall:
    """A row's call at one call site.

    Attributes:
        case_id: the case that it comes from.
        site: the op's call site.
        call: the call spec.
        kernel: the kernel class that serves it.
    """

    case_id: str
    site: str
    call: CallSpec
    kernel: type[Kernel]


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
    op: type[Op], device: DeviceFacts, case_ids: Sequence[str] | None = None
) -> Iterator[PlannedCall | RefusedCall]:
    """Every call of the op's rows on `device`, with the kernel that would serve it.

    Args:
        op: the operator's class.
        device: where the calls run.
        case_ids: only these cases.
    """
    for row in cases(op.entry):
        if case_ids is None or row.case_id in case_ids:
            yield from _plan(op, row, device)


def _plan(op: type[Op], row: Call, device: DeviceFacts) -> Iterator[PlannedCall | RefusedCall]:
    values = torch_parameters(row.values)
    instance = op(**{name: values[name] for name in op.entry.signature.params})
    (site,) = op.interfaces
    tensors = {**row.inputs, **row.outputs}
    names = (*op.entry.signature.inputs, *op.entry.signature.outputs)
    specs = {name: _spec(tensors.get(name), device) for name in names}
    call = instance._call_spec(CallFacts(device, specs, dict(row.indices)))
    try:
        yield PlannedCall(row.case_id, site, call, selection.choose(op.__name__, site, instance._sites[site], call))
    except DispatchError as error:
        yield RefusedCall(row.case_id, str(error))


def _spec(tensor: AbstractTensor | None, device: DeviceFacts) -> TensorSpec | None:
    if tensor is None:
        return None
    place = "cpu" if tensor.cpu or device.type == "cpu" else f"{device.type}:{device.index}"
    return TensorSpec.contiguous(tensor.dtype, tensor.shape, place)
