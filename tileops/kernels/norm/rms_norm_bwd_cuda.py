"""The gradients of RMSNorm on CUDA."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tileops.autotune.space import TileSpace
from tileops.jit.program import Program
from tileops.kernels import scratch
from tileops.kernels.base import Config, DeviceFacts, Kernel, Launch, TensorSpec
from tileops.kernels.cuda import (
    VECTOR_BYTES,
    access_width,
    blocks_for,
    once,
    refuse_float_call,
    refused,
    sm_count,
    walk_geometry,
)
from tileops.kernels.layout import coalesce
from tileops.kernels.norm.call_spec import RMSNormBwdCall, RMSNormBwdInterface, row_length

_BODIES = "tileops.kernels.norm._rms_norm_bwd_cuda"
_WARP = 32
_BLOCKS = (128, 256, 512)
#: Axes of the geometry of strided rows, over rows and within a row.
_AXES = 8
#: Elements of a row that a thread may hold beside the sums of as many columns.
_HELD_ELEMENTS = 16
#: Threads of held rows that a multiprocessor has registers for.
_RESIDENT = 1024
#: Threads of a block that adds up columns, each warp one.
_SUM_BLOCK = 256


@dataclass(frozen=True)
class Held:
    """A call whose rows stay in registers.

    Attributes:
        vectors: accesses that a thread holds.
        threads_per_row: a warp, or the block.
        owners: such groups of threads, each with `height` rows and a line of partial sums.
        height: rows of an owner.
        row_bytes: bytes of a row.
        grad_step: bytes from a row of the gradient to the next.
        x_step: the same of `x`.
    """

    vectors: int
    threads_per_row: int
    owners: int
    height: int
    row_bytes: int
    grad_step: int
    x_step: int

    def line(self, itemsize: int) -> int:
        """Partial sums of a line: of everything that the owner's threads may hold."""
        return self.threads_per_row * self.vectors * VECTOR_BYTES // itemsize


@dataclass(frozen=True)
class Strided:
    """A call with any strides, element by element.

    Attributes:
        geometry: see `_rms_norm_bwd_cuda.strided_rows`.
    """

    geometry: tuple[int, ...]


class RMSNormBwdCudaKernel(Kernel, RMSNormBwdInterface):
    """A row in the registers of a warp or of a block, which takes several rows one after the other and keeps the sums
    for the gradient of the weight in registers too. A second launch adds up what these owners have written.

    Rows that do not fit, or whose elements cannot be read in accesses of 16 bytes, are walked element by element,
    and the gradient of the weight takes a pass of its own. Compile classes: four of held rows, one of any
    strides, and the two second launches. In how many parts the rows are summed depends on the call and on the number
    of multiprocessors.
    """

    devices = frozenset({"cuda"})
    tile_space = TileSpace({"block": _BLOCKS})

    @classmethod
    def refusal(cls, call: RMSNormBwdCall) -> str | None:
        reason = refuse_float_call(call, call.x)
        if reason is None and plan(call, _BLOCKS[0]) is None:
            reason = f"x and grad_out have more than {_AXES} axes that cannot be merged, over rows or within a row"
        return reason or super().refusal(call)

    @classmethod
    def default_config(cls, call: RMSNormBwdCall) -> Config:
        """The smallest block in which two accesses a thread hold a row; the largest for longer rows."""
        accesses = -(-row_length(call) * call.x.itemsize // VECTOR_BYTES)
        return {"block": next((block for block in _BLOCKS if accesses <= 2 * block), _BLOCKS[-1])}

    @classmethod
    def programs(cls, call: RMSNormBwdCall, config: Config) -> dict[str, Program]:
        block, dtype = int(config["block"]), call.x.short
        chosen = _planned(call, block)
        if isinstance(chosen, Held):
            main = Program.of(
                f"{_BODIES}:held_rows",
                ["ptr"] * 5 + ["i64"] * 6 + ["f32"] * 2,
                device="cuda",
                block=block,
                dtype=dtype,
                width=VECTOR_BYTES,
                vectors=chosen.vectors,
                threads=block,
                threads_per_row=chosen.threads_per_row,
            )
            form, arguments, classes = "line_sums", ["ptr"] * 2 + ["i64"] * 4, {"width": VECTOR_BYTES}
        else:
            words = ["i64"] * len(chosen.geometry)
            main = Program.of(
                f"{_BODIES}:strided_rows",
                ["ptr"] * 5 + ["i64"] * 2 + ["f32"] * 2 + words,
                device="cuda",
                block=block,
                dtype=dtype,
                axes=_AXES,
                threads=block,
            )
            form, arguments, classes = "strided_columns", ["ptr"] * 4 + ["i64"] * 2 + words, {"axes": _AXES}
        if call.weight is None:
            return {"main": main}
        sums = Program.of(
            f"{_BODIES}:{form}", arguments, device="cuda", block=_SUM_BLOCK, dtype=dtype, threads=_SUM_BLOCK, **classes
        )
        return {"main": main, "sums": sums}

    def bind(self, call: RMSNormBwdCall) -> Launch:
        block = int(self.config["block"])
        chosen = _planned(call, block)
        return self._held(call, chosen, block) if isinstance(chosen, Held) else self._strided(call, chosen)

    def _held(self, call: RMSNormBwdCall, chosen: Held, block: int) -> Launch:
        size, device = row_length(call), call.device.index
        rows, line = call.x.numel // size, chosen.line(call.x.itemsize)
        grid = blocks_for(chosen.owners, block // chosen.threads_per_row)
        sums_grid = blocks_for(size, _SUM_BLOCK // _WARP)
        sizes = (rows, chosen.owners, chosen.height, chosen.row_bytes, chosen.grad_step, chosen.x_step)
        rest = (*sizes, np.float32(1 / size), np.float32(call.eps))
        main = self.entries["main"].launch
        sums = None if call.weight is None else self.entries["sums"].launch

        def run(grad_out: Any, x: Any, weight: Any, grad_x: Any, grad_weight: Any) -> None:
            inputs = grad_out.data_ptr(), x.data_ptr()
            if sums is None:
                main(grid, *inputs, 0, grad_x.data_ptr(), 0, *rest, device=device)
                return
            partial = scratch.floats(chosen.owners * line, x)
            main(grid, *inputs, weight.data_ptr(), grad_x.data_ptr(), partial.data_ptr(), *rest, device=device)
            lines = (chosen.owners, line * 4, size, chosen.threads_per_row)
            sums(sums_grid, partial.data_ptr(), grad_weight.data_ptr(), *lines, device=device)

        return run

    def _strided(self, call: RMSNormBwdCall, chosen: Strided) -> Launch:
        size, device = row_length(call), call.device.index
        rows = call.x.numel // size
        grid, sums_grid = blocks_for(rows, 1), blocks_for(size, _SUM_BLOCK // _WARP)
        rest = (rows, size, np.float32(1 / size), np.float32(call.eps), *chosen.geometry)
        main = self.entries["main"].launch
        sums = None if call.weight is None else self.entries["sums"].launch

        def run(grad_out: Any, x: Any, weight: Any, grad_x: Any, grad_weight: Any) -> None:
            inputs = grad_out.data_ptr(), x.data_ptr()
            if sums is None:
                main(grid, *inputs, 0, grad_x.data_ptr(), 0, *rest, device=device)
                return
            scales = scratch.floats(rows, x)
            main(grid, *inputs, weight.data_ptr(), grad_x.data_ptr(), scales.data_ptr(), *rest, device=device)
            outputs = scales.data_ptr(), grad_weight.data_ptr()
            sums(sums_grid, *inputs, *outputs, rows, size, *chosen.geometry, device=device)

        return run


def _planned(call: RMSNormBwdCall, block: int) -> Held | Strided:
    chosen = plan(call, block)
    if chosen is None:
        raise refused(RMSNormBwdCudaKernel, call)
    return chosen


def plan(call: RMSNormBwdCall, block: int) -> Held | Strided | None:
    """The plan of a call with blocks of `block` threads, or None where its strides need too many axes."""
    return once(call, block, lambda: _held_plan(call, block) or _strided_plan(call))


def _held_plan(call: RMSNormBwdCall, block: int) -> Held | None:
    itemsize, size = call.x.itemsize, row_length(call)
    split = call.x.ndim - call.normalized_ndim
    steps = [_dense_row_step(item, split) for item in (call.grad_out, call.x)]
    weight = call.weight
    if None in steps or (weight is not None and _dense_row_step(weight, 0) is None):
        return None
    grad_step, x_step = ((step or 0) * itemsize for step in steps)
    rows, row_bytes = call.x.numel // size, size * itemsize
    tensors = [call.grad_out, call.x, call.grad_x, *([] if weight is None else [weight])]
    between_rows = [grad_step, x_step] if rows > 1 else []
    if access_width(itemsize, [*(item.alignment for item in tensors), row_bytes, *between_rows]) < VECTOR_BYTES:
        return None
    accesses = row_bytes // VECTOR_BYTES
    most = _HELD_ELEMENTS * itemsize // VECTOR_BYTES
    choices = [(_WARP, 1), (_WARP, most), (block, most // 2), (block, most)]
    fitting = [choice for choice in choices if accesses <= math.prod(choice)]
    if not fitting:
        return None
    threads_per_row, vectors = fitting[0]
    height = 1 if weight is None else max(1, -(-rows // _owners(call.device, threads_per_row)))
    return Held(vectors, threads_per_row, -(-rows // height), height, row_bytes, grad_step, x_step)


def _owners(device: DeviceFacts, threads_per_row: int) -> int:
    """Groups of threads that are at work at the same time."""
    return sm_count(device) * (_RESIDENT // threads_per_row)


def _dense_row_step(x: TensorSpec, split: int) -> int | None:
    """Elements from a row to the next where the rows are one axis and their elements lie next to each other."""
    rows, (row_steps,) = coalesce(x.shape[:split], x.strides[:split])
    sizes, (steps,) = coalesce(x.shape[split:], x.strides[split:])
    dense = len(rows) == 1 and len(sizes) == 1 and (sizes[0] == 1 or steps[0] == 1)
    return row_steps[0] if dense else None


def _strided_plan(call: RMSNormBwdCall) -> Strided | None:
    x, grad, itemsize = call.x, call.grad_out, call.x.itemsize
    split = x.ndim - call.normalized_ndim
    weight = (0,) * call.normalized_ndim if call.weight is None else call.weight.strides
    groups = (
        coalesce(x.shape[:split], grad.strides[:split], x.strides[:split]),
        coalesce(x.shape[split:], grad.strides[split:], x.strides[split:], weight),
    )
    geometry: list[int] = []
    for sizes, steps in groups:
        if len(sizes) > _AXES:
            return None
        geometry += walk_geometry(sizes, steps, [itemsize] * len(steps), _AXES)
    return Strided(tuple(geometry))
