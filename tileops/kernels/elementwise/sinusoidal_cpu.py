"""Sinusoidal positions on the CPU."""

from __future__ import annotations

import math

import numpy as np

from tileops.jit import direct, parallel
from tileops.jit.cpu.direct import Address
from tileops.jit.program import Program
from tileops.kernels.base import Config, Kernel, Launch
from tileops.kernels.elementwise.call_spec import SINUSOIDAL_BASE, SinusoidalCall, SinusoidalFwdInterface


class SinusoidalCpuKernel(Kernel, SinusoidalFwdInterface):
    """One unit is a position. Angles are reduced in float64, in quarter turns, so that no position is too far."""

    devices = frozenset({"cpu"})

    @classmethod
    def programs(cls, call: SinusoidalCall, config: Config) -> dict[str, Program]:
        place = "tileops.kernels.elementwise._positions_cpu:sinusoidal"
        return {"main": Program.of(place, ["ptr", "ptr", "i64"], dtype=call.output.short)}

    def bind(self, call: SinusoidalCall) -> Launch:
        positions, width = call.output.shape
        pairs = width // 2
        table = SINUSOIDAL_BASE ** (np.arange(pairs) * -2.0 / width) * (2.0 / math.pi)
        arguments = (table.ctypes.data, Address(0), pairs)
        limit = parallel.limit(call.output.numel * 0.6)
        return direct.launcher(self.entries["main"], limit, positions, arguments, 1, table)
