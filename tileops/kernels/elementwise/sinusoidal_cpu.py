"""Sinusoidal positions on the CPU."""

from __future__ import annotations

import ctypes
import math
from typing import Any

from tileops.jit import parallel
from tileops.jit.program import Program
from tileops.kernels.base import Config, Kernel, Launch
from tileops.kernels.elementwise.call_spec import SinusoidalCall, SinusoidalFwdInterface

BASE = 10000.0


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
        rates = (BASE ** (-2.0 * pair / width) * 2.0 / math.pi for pair in range(pairs))
        table = (ctypes.c_double * pairs)(*rates)
        where, team = ctypes.addressof(table), parallel.team
        limit, entry = parallel.limit(call.output.numel * 0.6), self.entries["main"].launch

        def launch(output: Any, _keep: Any = table) -> None:
            entry(team(limit), positions, where, output.data_ptr(), pairs)

        return launch
