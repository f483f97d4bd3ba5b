"""From tensors to the plain facts that kernels are chosen by."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from tileops.errors import CheckError
from tileops.kernels.base import DTYPES, DeviceFacts, TensorSpec, contiguous_strides
from tileops.ops.dtypes import name_of

_CPU = DeviceFacts()


@lru_cache(maxsize=64)
def device_facts(device: torch.device) -> DeviceFacts:
    """The facts of a device; asks the driver once per GPU."""
    if device.type != "cuda":
        return _CPU if device.type == "cpu" else DeviceFacts(type=device.type, index=device.index or 0)
    index = torch.cuda.current_device() if device.index is None else device.index
    found = torch.cuda.get_device_properties(index)
    return DeviceFacts(
        type="cuda",
        index=index,
        arch=f"sm_{found.major}{found.minor}",
        sm_count=found.multi_processor_count,
        smem_per_block=getattr(found, "shared_memory_per_block_optin", found.shared_memory_per_block),
    )


def address_class(tensor: torch.Tensor) -> int:
    """Bytes, at most 16, that the address of `tensor` is a multiple of; never under the element size."""
    address = tensor.data_ptr() | 16
    return max(address & -address, tensor.element_size())


def placement(tensor: torch.Tensor) -> tuple[torch.device, int]:
    """The part of the call signature that says where a tensor off the CPU lies."""
    device = tensor.device
    return device, (address_class(tensor) if device.type == "cuda" else 0)


#: dtype -> (name, bytes of an element)
_DTYPES = {getattr(torch, name): (name, size) for name, (size, _) in DTYPES.items() if hasattr(torch, name)}


def _described(dtype: torch.dtype) -> tuple[str, int]:
    return _DTYPES.get(dtype) or (name_of(dtype), dtype.itemsize)


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """The facts of one tensor. Strides of axes of size one are normalised, so equal layouts compare equal."""
    shape = tuple(tensor.shape)
    name, itemsize = _DTYPES.get(tensor.dtype) or _described(tensor.dtype)
    if tensor.is_cpu:
        return cpu_spec(tensor, shape, name, itemsize)
    device = tensor.device
    dense = tensor.is_contiguous()
    strides = contiguous_strides(shape) if dense else tensor.stride()
    alignment = address_class(tensor) if device.type == "cuda" else itemsize
    return _spec(str(device), name, shape, strides, alignment, dense)


def cpu_spec(tensor: torch.Tensor, shape: tuple[int, ...], dtype: str, itemsize: int) -> TensorSpec:
    """`spec_of` a tensor on the CPU, of which shape and dtype are known."""
    strides, dense = tensor.stride(), tensor.is_contiguous()
    if dense and (1 in shape or 0 in shape):
        strides = contiguous_strides(shape)
    spec = object.__new__(TensorSpec)
    # As `TensorSpec.made`, without its call.
    object.__setattr__(
        spec,
        "__dict__",
        {
            "device": "cpu",
            "dtype": dtype,
            "shape": shape,
            "strides": strides,
            "alignment": itemsize,
            "is_contiguous": dense,
            "numel": tensor.numel(),
        },
    )
    return spec


def new_cpu_spec(shape: tuple[int, ...], dtype: str) -> TensorSpec:
    """`allocated_spec` on the CPU for a shape that is met for the first time."""
    numel = math.prod(shape)
    if len(shape) == 2 and numel > 1:
        strides: tuple[int, ...] = (shape[1], 1)
    else:
        strides = contiguous_strides(shape)
    return TensorSpec.made(
        {
            "device": "cpu",
            "dtype": dtype,
            "shape": shape,
            "strides": strides,
            "alignment": DTYPES[dtype][0],
            "is_contiguous": True,
            "numel": numel,
        }
    )


def _spec(
    device: str, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], alignment: int, dense: bool
) -> TensorSpec:
    return TensorSpec.made(
        {
            "device": device,
            "dtype": dtype,
            "shape": shape,
            "strides": strides,
            "alignment": alignment,
            "is_contiguous": dense,
        }
    )


def allocated_spec(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> TensorSpec:
    """The facts of an output that is allocated for the call."""
    size = tuple(shape)
    name, itemsize = _described(dtype)
    kind = device.type
    alignment = 16 if kind == "cuda" else itemsize
    return _spec("cpu" if kind == "cpu" else str(device), name, size, contiguous_strides(size), alignment, True)


class CallFacts(dict[str, Any]):
    """A checked call, as `Op._call_spec` sees it: the `TensorSpec` of every input and output by manifest name, None for
    an absent one.

    Attributes:
        device: the call device.
        packed: layout of a packed operand, where the op has one.
    """

    __slots__ = ("_indices", "device", "packed")

    def __init__(
        self,
        device: DeviceFacts,
        tensors: Mapping[str, TensorSpec | None],
        indices: dict[str, Any] | Callable[[], dict[str, Any]],
        packed: str | None = None,
    ) -> None:
        super().__init__(tensors)
        self.device = device
        self._indices = indices
        self.packed = packed

    @property
    def indices(self) -> dict[str, Any]:
        """Values of the indices that the call solved."""
        return self._indices() if callable(self._indices) else self._indices

    @property
    def tensors(self) -> dict[str, Any]:
        """The facts themselves."""
        return self


def call_device(
    op: str, names: Sequence[str], tensors: Sequence[torch.Tensor | None], section: str = "inputs"
) -> torch.device | None:
    """The device that all these tensors share; None where there is none.

    Raises:
        CheckError: two tensors lie on different devices, or a tensor is not strided.
    """
    first: tuple[str, torch.device] | None = None
    for name, tensor in zip(names, tensors, strict=True):
        if tensor is None:
            continue
        if tensor.layout != torch.strided or tensor.is_nested:
            kind = "nested" if tensor.is_nested else str(tensor.layout)
            remedy = (
                "pad it with torch.nested.to_padded_tensor()" if tensor.is_nested else "convert it with .to_dense()"
            )
            raise CheckError(op, f"{section}.{name}", f"a dense tensor is needed, this one is {kind}; {remedy}")
        if first is None:
            first = name, tensor.device
        elif tensor.device != first[1]:
            raise CheckError(
                op,
                f"{section}.{name}",
                f"all inputs must be on one device, but {first[0]} is on {first[1]} and {name} on "
                f"{tensor.device}; "
                f"move one with .to()",
            )
    return None if first is None else first[1]
