"""Inputs of tests and benchmarks: reproducible values, and every layout that a caller may hand over."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from tileops.manifest.workload import WORKLOAD_SEED, AbstractTensor, Call
from tileops.ops.dtypes import dtype_of


def seed_of(op: str, tensor: str) -> int:
    """Seed of one input: equal for every row of an operator, different between its inputs."""
    return WORKLOAD_SEED ^ zlib.crc32(f"{op}:{tensor}".encode())


def generator(op: str, tensor: str, device: str | torch.device = "cpu") -> torch.Generator:
    """A generator seeded for one input of one operator."""
    return torch.Generator(device=device).manual_seed(seed_of(op, tensor))


def draw(
    shape: Sequence[int],
    dtype: torch.dtype,
    generator: torch.Generator,
    device: str | torch.device = "cpu",
) -> torch.Tensor:
    """Random values: standard normal for float dtypes (within range for float8), small integers, fair bits.

    Drawn in float32 and rounded, so the values of two float dtypes agree up to rounding.
    """
    shape = tuple(shape)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator, device=device).bool()
    if not (dtype.is_floating_point or dtype.is_complex):
        low = 0 if dtype == torch.uint8 else -8
        return torch.randint(low, 9, shape, generator=generator, device=device).to(dtype)
    if dtype in (torch.float64, torch.complex64, torch.complex128):
        return torch.randn(shape, generator=generator, device=device, dtype=dtype)
    return torch.randn(shape, generator=generator, device=device).to(dtype)


def materialize(call: Call, device: str | torch.device = "cpu") -> dict[str, torch.Tensor]:
    """The tensors of an abstract call, construction-time ones included, by name: contiguous, none sharing memory,
    metadata with its values, the rest random. A row gives the same bits in every process.

    Args:
        call: the call.
        device: its device, "meta" for tensors without values; tensors that live on the CPU stay there.
    """
    return {**_made(call, call.held, device), **_made(call, call.inputs, device)}


def held(call: Call, device: str | torch.device = "cpu") -> dict[str, torch.Tensor]:
    """The construction-time tensors among those that `materialize` makes."""
    return _made(call, call.held, device)


def _made(call: Call, declared: Mapping[str, AbstractTensor], device: str | torch.device) -> dict[str, torch.Tensor]:
    tensors = {}
    for name, item in declared.items():
        where = torch.device("cpu" if item.cpu else device)
        dtype = dtype_of(item.dtype)
        if where.type == "meta":
            tensors[name] = torch.empty(item.shape, dtype=dtype, device=where)
        elif item.values is not None:
            values = torch.from_numpy(np.array(item.values))
            tensors[name] = values.to(device=where, dtype=dtype)
        else:
            tensors[name] = draw(item.shape, dtype, generator(call.op, name, where), where)
    return tensors


def layouts(x: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Views with the values of `x` (any rank) in every kind of memory layout, with a name for each.

    Contiguous, transposed, inner and outer steps of two, a window of a wider tensor, reversed axes order, a
    storage offset of one element, and, where it has a size-1 axis, an expanded zero stride.
    """
    yield "contiguous", x.contiguous()
    yield "offset 1", at_offset(x, 1)
    if x.ndim == 0:
        return
    yield "inner step 2", _in_larger(x, [1] * (x.ndim - 1) + [2])
    yield "outer step 2", _in_larger(x, [2] + [1] * (x.ndim - 1))
    yield "window", _window(x)
    if x.ndim >= 2:
        yield "transposed", x.transpose(-1, -2).contiguous().transpose(-1, -2)
        yield "axes reversed", _permuted_storage(x, tuple(reversed(range(x.ndim))))
    if x.ndim >= 3:
        yield "first axis innermost", _permuted_storage(x, (*range(1, x.ndim), 0))
        yield "outer axes swapped", _permuted_storage(x, (1, 0, *range(2, x.ndim)))


def at_offset(x: torch.Tensor, offset: int) -> torch.Tensor:
    """A contiguous copy of `x` whose first element lies `offset` elements into its storage."""
    room = torch.empty(x.numel() + offset, dtype=x.dtype, device=x.device)
    view = room[offset:].view(x.shape)
    view.copy_(x)
    return view


def expanded(x: torch.Tensor, axis: int) -> torch.Tensor:
    """`x` with its values of index 0 along `axis` repeated by a zero stride."""
    return x.narrow(axis, 0, 1).expand(x.shape)


def _in_larger(x: torch.Tensor, steps: Sequence[int]) -> torch.Tensor:
    room = torch.full(
        [size * step for size, step in zip(x.shape, steps, strict=True)], 7, dtype=x.dtype, device=x.device
    )
    view = room[tuple(slice(None, None, step) for step in steps)]
    view.copy_(x)
    return view


def _window(x: torch.Tensor) -> torch.Tensor:
    room = torch.full([size + 3 for size in x.shape], 7, dtype=x.dtype, device=x.device)
    view = room[tuple(slice(2, 2 + size) for size in x.shape)]
    view.copy_(x)
    return view


def _permuted_storage(x: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """The values of `x` stored with axis `order[0]` outermost."""
    inverse = [order.index(axis) for axis in range(x.ndim)]
    return x.permute(*order).contiguous().permute(*inverse)
