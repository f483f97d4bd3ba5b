"""Attention with linear biases on the CPU: the biases of every head."""

from __future__ import annotations

import ctypes

from tileops.jit import direct, parallel
from tileops.jit.cpu.direct import Address
from tileops.jit.program import Program
from tileops.kernels.base import Config, Kernel, Launch
from tileops.kernels.elementwise.call_spec import AlibiCall, AlibiFwdInterface


def slopes(num_heads: int, regular: int) -> list[float]:
    """The slope of each head (Press et al., "Train Short, Test Long", ICLR 2022): a geometric sequence for a power of
    two; other numbers continue with every other slope of the next power.
    """
    first = [2.0 ** (-8.0 * (head + 1) / regular) for head in range(regular)]
    return first + [2.0 ** (-4.0 * (2 * head + 1) / regular) for head in range(num_heads - regular)]


class AlibiCpuKernel(Kernel, AlibiFwdInterface):
    """One unit is a row: a head and a query position."""

    devices = frozenset({"cpu"})

    @classmethod
    def programs(cls, call: AlibiCall, config: Config) -> dict[str, Program]:
        place = "tileops.kernels.elementwise._positions_cpu:alibi"
        return {"main": Program.of(place, ["ptr", "ptr", "i64"], dtype=call.output.short)}

    def bind(self, call: AlibiCall) -> Launch:
        heads, size, _ = call.output.shape
        table = (ctypes.c_float * heads)(*slopes(heads, call.regular_heads))
        arguments = (ctypes.addressof(table), Address(0), size)
        limit = parallel.limit(call.output.numel * 0.15)
        return direct.launcher(self.entries["main"], limit, heads * size, arguments, 1, table)
