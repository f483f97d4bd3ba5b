"""RMSNorm on CUDA."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tileops.autotune.space import TileSpace, power_of_two
from tileops.jit.program import Program
from tileops.kernels.base import Config, Kernel, Launch
from tileops.kernels.cuda import (
    VECTOR_BYTES,
    access_width,
    blocks_for,
    once,
    refuse_float_call,
    refused,
    walk_geometry,
)
from tileops.kernels.layout import coalesce
from tileops.kernels.norm.call_spec import RMSNormCall, RMSNormFwdInterface, row_length

_BODIES = "tileops.kernels.norm._rms_norm_cuda"
_WARP = 32
_BLOCKS = (128, 256, 512, 1024)
#: Accesses that a thread may hold: a block of 1,024 threads has 64 registers a thread, too few for four.
_HELD = {128: 4, 256: 4, 512: 4, 1024: 2}
#: Axes of the geometry of the strided form, over rows and within a row.
_AXES = 8


@dataclass(frozen=True)
class Plan:
    """How a call runs.

    Attributes:
        form: body in `_rms_norm_cuda`.
        width: bytes of an access.
        classes: what else is compiled in.
        rows_per_block: rows that a block takes at a time.
        sizes: arguments of the body between the number of rows and the floats.
        geometry: see `lang.walk`; arguments after the floats.
    """

    form: str
    width: int
    classes: tuple[tuple[str, int], ...]
    rows_per_block: int
    sizes: tuple[int, ...]
    geometry: tuple[int, ...] = ()


class RMSNormCudaKernel(Kernel, RMSNormFwdInterface):
    """A row in the registers of a warp or of a block where it fits, else walked twice.

    Compile classes: four of rows held in registers, rows streamed in accesses of 16 bytes, 4 bytes or one element, and
    any strides. The length of a row, its distance to the next and whether there is a weight are run-time arguments.
    """

    devices = frozenset({"cuda"})
    tile_space = TileSpace({"block": _BLOCKS})

    @classmethod
    def refusal(cls, call: RMSNormCall) -> str | None:
        reason = refuse_float_call(call, call.x)
        if reason is None and plan(call, _BLOCKS[0]) is None:
            reason = f"x has more than {_AXES} axes that cannot be merged, over rows or within a row"
        return reason or super().refusal(call)

    @classmethod
    def default_config(cls, call: RMSNormCall) -> Config:
        """The smallest block in which two accesses a thread hold a row; 512 threads for longer rows."""
        accesses = -(-row_length(call) * call.x.itemsize // VECTOR_BYTES)
        return {"block": next((block for block in _BLOCKS[:3] if accesses <= 2 * block), 512)}

    @classmethod
    def compile_class(cls, call: RMSNormCall) -> Hashable:
        block = int(cls.default_config(call)["block"])
        chosen = plan(call, block)
        if chosen is None:
            return None
        # How a row is held depends, for every size of blocks, on the least power of two that its accesses do not pass.
        held = chosen.width == VECTOR_BYTES and chosen.form != "strided_rows"
        accesses = chosen.sizes[0] // VECTOR_BYTES if held else 1
        longest = _BLOCKS[-1] * _HELD[_BLOCKS[-1]]
        return call.x.dtype, block, chosen.form, chosen.width, power_of_two(min(accesses, longest + 1))

    @classmethod
    def programs(cls, call: RMSNormCall, config: Config) -> dict[str, Program]:
        block = int(config["block"])
        chosen = _planned(call, block)
        program = Program.of(
            f"{_BODIES}:{chosen.form}",
            ["ptr"] * 3 + ["i64"] * (1 + len(chosen.sizes)) + ["f32"] * 2 + ["i64"] * len(chosen.geometry),
            device="cuda",
            block=block,
            dtype=call.x.short,
            threads=block,
            **dict(chosen.classes),
        )
        return {"main": program}

    def bind(self, call: RMSNormCall) -> Launch:
        chosen = _planned(call, int(self.config["block"]))
        size = row_length(call)
        rows = call.x.numel // size
        grid = blocks_for(rows, chosen.rows_per_block)
        launch, device = self.entries["main"].launch, call.device.index
        rest = (rows, *chosen.sizes, np.float32(1 / size), np.float32(call.eps), *chosen.geometry)

        def run(x: Any, weight: Any, output: Any) -> None:
            factors = 0 if weight is None else weight.data_ptr()
            launch(grid, x.data_ptr(), factors, output.data_ptr(), *rest, device=device)

        return run


def _planned(call: RMSNormCall, block: int) -> Plan:
    chosen = plan(call, block)
    if chosen is None:
        raise refused(RMSNormCudaKernel, call)
    return chosen


def plan(call: RMSNormCall, block: int) -> Plan | None:
    """The plan of a call with blocks of `block` threads, or None where its strides need too many axes."""
    return once(call, block, lambda: _plan(call, block))


def _plan(call: RMSNormCall, block: int) -> Plan | None:
    x, weight, itemsize = call.x, call.weight, call.x.itemsize
    split = x.ndim - call.normalized_ndim
    row_sizes, (row_steps,) = coalesce(x.shape[:split], x.strides[:split])
    weight_strides = (0,) * call.normalized_ndim if weight is None else weight.strides
    sizes, (x_steps, weight_steps) = coalesce(x.shape[split:], x.strides[split:], weight_strides)
    dense = (
        len(row_sizes) == 1
        and len(sizes) == 1
        and (sizes[0] == 1 or (x_steps[0] == 1 and (weight is None or weight_steps[0] == 1)))
    )
    if not dense:
        return _strided(itemsize, (row_sizes, row_steps), (sizes, x_steps, weight_steps))
    row_bytes, x_step = sizes[0] * itemsize, row_steps[0] * itemsize
    bases = [x.alignment, call.output.alignment, *([] if weight is None else [weight.alignment])]
    width = access_width(itemsize, [*bases, row_bytes, *([x_step] if row_sizes[0] > 1 else [])])
    arguments = (row_bytes, x_step)
    if width < VECTOR_BYTES:
        return Plan("streamed_rows", width, (("vectors", 4), ("width", width)), 1, arguments)
    accesses = row_bytes // width
    for vectors in (1, 4):
        if accesses <= _WARP * vectors and vectors <= _HELD[block]:
            classes = (("threads_per_row", _WARP), ("vectors", vectors), ("width", width))
            return Plan("held_rows", width, classes, block // _WARP, arguments)
    for vectors in (2, 4):
        if accesses <= block * vectors and vectors <= _HELD[block]:
            classes = (("threads_per_row", block), ("vectors", vectors), ("width", width))
            return Plan("held_rows", width, classes, 1, arguments)
    return Plan("streamed_rows", width, (("vectors", 2), ("width", width)), 1, arguments)


def _strided(
    itemsize: int,
    rows: tuple[tuple[int, ...], tuple[int, ...]],
    within: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
) -> Plan | None:
    geometry: list[int] = []
    for sizes, *steps in (rows, within):
        if len(sizes) > _AXES:
            return None
        geometry += walk_geometry(sizes, steps, [itemsize] * len(steps), _AXES)
    count = math.prod(within[0])
    return Plan("strided_rows", itemsize, (("axes", _AXES),), 1, (count,), tuple(geometry))
