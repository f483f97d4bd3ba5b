"""Attention with linear biases on the CPU: the biases of every head."""

from __future__ import annotations

import numpy as np

from tileops.jit import direct, parallel
from tileops.jit.cpu.direct import Address
from tileops.jit.program import Program
from tileops.kernels.base import Config, Kernel, Launch
from tileops.kernels.elementwise.call_spec import AlibiCall, AlibiFwdInterface


def slopes(num_heads: int, regular: int) -> np.ndarray:
    """The slope of each head (Press et al., "Train Short, Test Long", ICLR 2022): a geometric sequence for a power of
    two; other numbers continue with every other slope of the next power.
    """
    first = np.arange(1, regular + 1) * (-8.0 / regular)
    others = np.arange(1, 2 * (num_heads - regular), 2) * (-4.0 / regular)
    return np.exp2(np.concatenate([first, others])).astype(np.float32)


class AlibiCpuKernel(Kernel, AlibiFwdInterface):
    """One unit is a row: a head and a query position."""

    devices = frozenset({"cpu"})

    @classmethod
    def programs(cls, call: AlibiCall, config: Config) -> dict[str, Program]:
        place = "tileops.kernels.elementwise._positions_cpu:alibi"
        return {"main": Program.of(place, ["ptr", "ptr", "i64"], dtype=call.output.short)}

    def bind(self, call: AlibiCall) -> Launch:
        heads, size, _ = call.output.shape
        table = slopes(heads, call.regular_heads)
        arguments = (table.ctypes.data, Address(0), size)
        limit = parallel.limit(call.output.numel * 0.15)
        return direct.launcher(self.entries["main"], limit, heads * size, arguments, 1, table)
