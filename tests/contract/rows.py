"""Workload rows as calls on meta tensors, and the traffic that a signature implies, counted a second time."""

from __future__ import annotations

from typing import Any

import torch

from tileops.manifest.entry import Entry
from tileops.manifest.workload import AbstractTensor, Call
from tileops.ops.dtypes import dtype_of
from tileops.ops.signature_codegen import CallSignature, Checked, Construction


def meta(tensor: AbstractTensor) -> torch.Tensor:
    """A tensor of a row: without data, but for one that has to be on the CPU."""
    if tensor.cpu and tensor.values is not None:
        return torch.from_numpy(tensor.values)
    return torch.empty(tensor.shape, dtype=dtype_of(tensor.dtype), device="cpu" if tensor.cpu else "meta")


def constructed(signature: CallSignature, call: Call) -> Construction:
    """The row's construction parameters, its construction-time tensors among them, as an op takes them."""
    scalars = {name: python_value(signature, name, value) for name, value in call.values.items()}
    return signature.construct(**scalars, **{name: meta(item) for name, item in call.held.items()})


def python_value(signature: CallSignature, name: str, value: Any) -> Any:
    """A parameter of a row, which names dtypes, as an op takes it."""
    kind = signature.entry.signature.params[name].kind
    return dtype_of(value) if isinstance(value, str) and "DType" in str(kind) else value


def tensors_of(
    signature: CallSignature, call: Call, out: torch.Tensor | None = None
) -> tuple[torch.Tensor | None, ...]:
    """The row's tensors in forward order, and a buffer where the op takes one."""
    found = {name: meta(item) for name, item in call.inputs.items()}
    return tuple(out if name == "out" else found.get(name) for name in signature.forward_order)


def counted_bytes(entry: Entry, checked: Checked, call: Call) -> tuple[int, int]:
    """Bytes read and written by the counting rules, from the declarations as they are written in the file."""
    read = written = 0
    declared = entry.raw["signature"]
    for name, item in {**call.held, **call.inputs}.items():
        size = item_bytes(item.shape, item.dtype)
        writes = name in checked.written
        if not (writes and declared["inputs"][name].get("write_only", False)):
            read += size
        if writes:
            written += size
    for output in checked.outputs:
        if output is not None and declared["outputs"][output.name].get("alias") not in checked.written:
            written += item_bytes(output.shape, output.dtype)
    return read, written


def item_bytes(shape: tuple[int, ...], dtype: str | torch.dtype) -> int:
    """Bytes of the carrier."""
    element = dtype_of(dtype) if isinstance(dtype, str) else dtype
    count = 1
    for size in shape:
        count *= int(size)
    return count * element.itemsize
