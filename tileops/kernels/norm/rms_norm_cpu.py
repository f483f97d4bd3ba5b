"""RMSNorm on the CPU."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Hashable
from typing import Any

import torch

from tileops.autotune.space import TileSpace
from tileops.jit import direct, parallel
from tileops.jit.cpu.direct import SCRATCH, Address, Family, Member, address_of
from tileops.jit.program import Program
from tileops.kernels.base import Config, Kernel
from tileops.kernels.norm.call_spec import RMSNormCall, RMSNormFwdInterface, row_length
from tileops.kernels.norm.row_layout import axes_of, has_dense_rows, split
from tileops.kernels.norm.row_layout import geometry as geometry_of

#: Nanoseconds that one thread takes for a KiB of input, cache-resident; decides when two threads pay.
_NS_PER_KIB = 20.0
#: The geometry of rows that lie one after the other.
_one_axis = struct.Struct("@3q").pack
_TENSORS = (Address(0), Address(1), Address(2))
_TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class RMSNormCpuKernel(Kernel, RMSNormFwdInterface):
    """Two sweeps over each row: sum of squares, then scale. Everything is float32 and rounded once at the
    end, as torch does; the second sweep reads the row from the cache.

    Rows whose elements are dense are read in place, wherever the rows themselves lie. Otherwise a row (and
    the weight, once per thread) is first gathered into float32 scratch.
    """

    devices = frozenset({"cpu"})
    tile_space = TileSpace({"unroll": (1, 2, 4, 8)})

    @classmethod
    def refusal(cls, call: RMSNormCall) -> str | None:
        if call.x.dtype not in _TORCH_DTYPES:
            return f"x is {call.x.dtype}; the CPU kernel takes {', '.join(_TORCH_DTYPES)}"
        return super().refusal(call)

    @classmethod
    def default_config(cls, call: RMSNormCall) -> Config:
        return {"unroll": 4}

    @classmethod
    def compile_class(cls, call: RMSNormCall) -> Hashable:
        return call.x.dtype, _is_dense(call)

    @classmethod
    def programs(cls, call: RMSNormCall, config: Config) -> dict[str, Program]:
        form = "rows" if _is_dense(call) else "gathered_rows"
        pointers = 5 if form == "rows" else 6
        program = Program.of(
            f"tileops.kernels.norm._rms_norm_cpu:{form}",
            ["i64", "f32", *["ptr"] * (pointers - 1)],
            dtype=call.x.short,
            unroll=config["unroll"],
        )
        return {"main": program}

    def bind(self, call: RMSNormCall) -> Callable[..., None]:
        x = call.x
        total, itemsize = x.numel, x.itemsize
        size = row_length(call)
        rows = total // size
        limit = parallel.limit(total * itemsize * (_NS_PER_KIB / 1024))
        entry, eps = self.entries["main"], float(call.eps)
        # Without a weight the kernel multiplies by ones, which is exact and saves a second set of kernels.
        ones = None
        if call.weight is None:
            ones = torch.ones(size, dtype=_TORCH_DTYPES[x.dtype], device="cpu")
        factors: direct.Argument = _TENSORS[1] if ones is None else ones.data_ptr()

        if _is_dense(call):
            if x.is_contiguous:
                geometry: Any = _one_axis(1, rows, size * itemsize)
                where = address_of(geometry)
            else:
                geometry = geometry_of([split(x, call.normalized_ndim)[0]], itemsize)
                where = ctypes.addressof(geometry)
            dense = (size, eps, where, _TENSORS[0], factors, _TENSORS[2])
            return direct.launcher(entry, limit, rows, dense, 3, (geometry, ones))

        outer, inner = split(x, call.normalized_ndim)
        weight_axes = ((size,), (1,)) if call.weight is None else axes_of(call.weight.shape, call.weight.strides)
        geometry = geometry_of([outer, inner, weight_axes], itemsize)
        arguments = (size, eps, ctypes.addressof(geometry), _TENSORS[0], factors, _TENSORS[2], Address(SCRATCH))
        return direct.launcher(entry, limit, rows, arguments, 3, (geometry, ones), 2 * size * 4)

    def resized(self, call: RMSNormCall) -> Callable[..., Member | None] | None:
        if call.weight is None or not _is_dense(call):
            return None
        size, itemsize = call.weight.numel, call.x.itemsize
        row, cost = size * itemsize, itemsize * (_NS_PER_KIB / 1024)
        family = Family([(self.entries["main"], (size, float(call.eps), None, *_TENSORS))], 3)

        def at(x: tuple[int, ...], *others: tuple[int, ...]) -> Member:
            total = math.prod(x)
            rows = total // size
            geometry = _one_axis(1, rows, row)
            return Member(family, (rows, parallel.limit(total * cost), address_of(geometry)), geometry)

        return at


def _is_dense(call: RMSNormCall) -> bool:
    """Whether the elements of a row, and of the weight, lie next to each other."""
    weight = call.weight
    return has_dense_rows(call.x, call.normalized_ndim) and (weight is None or has_dense_rows(weight, weight.ndim))
