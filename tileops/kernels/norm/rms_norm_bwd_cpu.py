"""The gradients of RMSNorm on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from tileops.autotune.space import TileSpace
from tileops.jit import parallel
from tileops.jit.program import Program
from tileops.kernels.base import FLOAT_DTYPES, Config, Kernel
from tileops.kernels.norm.call_spec import RMSNormBwdCall, RMSNormBwdInterface, row_length
from tileops.kernels.norm.row_layout import axes_of, geometry, has_dense_rows, split

_BODIES = "tileops.kernels.norm._rms_norm_bwd_cpu"
#: Nanoseconds that one thread takes for a KiB of `x`, cache-resident; decides when two threads pay.
_NS_PER_KIB = 40.0
#: Chunks of rows that a call is cut into, unless one had more than `_ROWS` rows. More than any machine has cores, and
#: the lines of partial sums, one a chunk, stay small beside the rows.
_CHUNKS, _ROWS = 64, 256
#: Columns of a unit of the final sum, and the nanoseconds that a KiB of its input takes.
_COLUMNS, _SUM_NS_PER_KIB = 256, 15.0


class RMSNormBwdCpuKernel(Kernel, RMSNormBwdInterface):
    """Two sweeps over each row: the sum of squares and the product with the gradient, then the result. The second
    sweep reads from the cache and adds the row's share in the gradient of the weight to the partial sums of its
    chunk of rows, which a second launch adds up.

    Everything is float32 and rounded once. How rows are cut into chunks depends on their number alone, so the sums
    have the same bits with any number of threads. As in the forward, rows whose elements are dense are read in
    place, and others are gathered into scratch.
    """

    devices = frozenset({"cpu"})
    tile_space = TileSpace({"unroll": (1, 2, 4)})

    @classmethod
    def refusal(cls, call: RMSNormBwdCall) -> str | None:
        if call.x.dtype not in FLOAT_DTYPES:
            return f"x is {call.x.dtype}; the CPU kernel takes {', '.join(FLOAT_DTYPES)}"
        return super().refusal(call)

    @classmethod
    def default_config(cls, call: RMSNormBwdCall) -> Config:
        return {"unroll": 4}

    @classmethod
    def programs(cls, call: RMSNormBwdCall, config: Config) -> dict[str, Program]:
        form = "rows" if _is_dense(call) else "gathered_rows"
        pointers = 6 if form == "rows" else 7
        main = Program.of(
            f"{_BODIES}:{form}",
            ["i64", "i64", "i64", "f32", "f32", *["ptr"] * pointers],
            dtype=call.x.short,
            unroll=config["unroll"],
            weighted=call.weight is not None,
        )
        if call.weight is None:
            return {"main": main}
        sums = Program.of(f"{_BODIES}:column_sums", ["i64", "i64", "ptr", "ptr"], dtype=call.x.short, width=_COLUMNS)
        return {"main": main, "sums": sums}

    def bind(self, call: RMSNormBwdCall) -> Callable[..., None]:
        size = row_length(call)
        rows = call.x.numel // size
        height = chunk_height(rows)
        chunks = -(-rows // height)
        weighted, dense = call.weight is not None, _is_dense(call)
        limit = parallel.limit(call.x.numel * call.x.itemsize / 1024 * _NS_PER_KIB)
        main, team = self.entries["main"].launch, parallel.team
        keep = geometry(_groups(call), call.x.itemsize)
        fixed = (rows, height, size, 1.0 / size, float(call.eps), ctypes.addressof(keep))

        def launch(grad: Any, x: Any, weight: Any, grad_x: Any, partial: Any, _keep: Any = keep) -> None:
            threads = team(limit) if limit else 0
            factors, sums = (weight.data_ptr(), partial.data_ptr()) if weighted else (0, 0)
            pointers = [grad.data_ptr(), x.data_ptr(), factors, grad_x.data_ptr(), sums]
            if not dense:
                scratch = torch.empty(3 * size * max(threads, 1), dtype=torch.float32, device="cpu")
                pointers.append(scratch.data_ptr())
            main(threads, chunks, *fixed, *pointers)

        if not weighted:
            return lambda grad, x, weight, grad_x, grad_weight: launch(grad, x, None, grad_x, None)

        sums_limit = parallel.limit(chunks * size * 4 / 1024 * _SUM_NS_PER_KIB)
        add_up, blocks = self.entries["sums"].launch, -(-size // _COLUMNS)

        def weighted_launch(grad: Any, x: Any, weight: Any, grad_x: Any, grad_weight: Any) -> None:
            partial = torch.empty(chunks * size, dtype=torch.float32, device="cpu")
            launch(grad, x, weight, grad_x, partial)
            threads = team(sums_limit) if sums_limit else 0
            add_up(threads, blocks, chunks, size, partial.data_ptr(), grad_weight.data_ptr())

        return weighted_launch


def chunk_height(rows: int) -> int:
    """Rows of a chunk."""
    return max(1, min(_ROWS, -(-rows // _CHUNKS)))


def _is_dense(call: RMSNormBwdCall) -> bool:
    """Whether the elements of a row, of its gradient and of the weight lie next to each other."""
    weight = call.weight
    return all(has_dense_rows(item, call.normalized_ndim) for item in (call.x, call.grad_out)) and (
        weight is None or has_dense_rows(weight, weight.ndim)
    )


def _groups(call: RMSNormBwdCall) -> list[Any]:
    """The axes over rows of `x` and of the gradient, then those within a row, then those of the weight."""
    outer, inner = split(call.x, call.normalized_ndim)
    grad_outer, grad_inner = split(call.grad_out, call.normalized_ndim)
    weight = ((1,), (0,)) if call.weight is None else axes_of(call.weight.shape, call.weight.strides)
    return [outer, grad_outer, inner, grad_inner, weight]
