"""Sinusoidal positions on CUDA."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tileops.jit.program import Program
from tileops.kernels.base import Config, Kernel, Launch
from tileops.kernels.cuda import access_width, blocks_for, refuse_float_call
from tileops.kernels.elementwise.call_spec import SINUSOIDAL_BASE, SinusoidalCall, SinusoidalFwdInterface

_THREADS = 256


class SinusoidalCudaKernel(Kernel, SinusoidalFwdInterface):
    """Angles in 64-bit fixed point from the position, as the rotary embeddings take them; no table."""

    devices = frozenset({"cuda"})

    @classmethod
    def refusal(cls, call: SinusoidalCall) -> str | None:
        return refuse_float_call(call, call.output) or super().refusal(call)

    @staticmethod
    def _width(call: SinusoidalCall) -> int:
        """Bytes of an access: 16 where rows consist of such, else one pair."""
        output = call.output
        return access_width(2 * output.itemsize, [output.alignment, output.shape[1] * output.itemsize], narrow=False)

    @classmethod
    def programs(cls, call: SinusoidalCall, config: Config) -> dict[str, Program]:
        program = Program.of(
            "tileops.kernels.elementwise._sinusoidal_cuda:rows",
            ["ptr", "i64", "i64", "f64", "f64"],
            device="cuda",
            block=_THREADS,
            dtype=call.output.short,
            width=cls._width(call),
        )
        return {"main": program}

    def bind(self, call: SinusoidalCall) -> Launch:
        positions, width = call.output.shape
        strips = width * call.output.itemsize // self._width(call)
        slope = -2.0 * math.log2(SINUSOIDAL_BASE) / max(width, 1)
        rest = (positions * strips, strips, np.float64(slope), np.float64(2.0**slope))
        grid = blocks_for(positions * strips, _THREADS)
        launch, device = self.entries["main"].launch, call.device.index

        def run(output: Any) -> None:
            launch(grid, output.data_ptr(), *rest, device=device)

        return run
