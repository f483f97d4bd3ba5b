"""Kernels for the tests of the tuner: plain Python launches, so that nothing is compiled."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from tileops.autotune.space import TileSpace
from tileops.errors import KernelCompileError
from tileops.kernels.base import CallSpec, Kernel, KernelInterface, TensorSpec


@dataclass(frozen=True)
class DoubleCall(CallSpec):
    x: TensorSpec
    output: TensorSpec
    exact: bool = True
    scale: float = 1.0


class DoubleFwdInterface(KernelInterface):
    call_spec = DoubleCall
    tensors = ("x", "output")


def call(rows: int = 16, dtype: str = "float32", **options) -> DoubleCall:
    spec = TensorSpec.contiguous(dtype, (rows, 8))
    return DoubleCall(x=spec, output=spec, **options)


class Kernel0(Kernel, DoubleFwdInterface):
    devices = frozenset({"cpu"})

    @classmethod
    def default_config(cls, call):
        return {"way": "slow"}

    @classmethod
    def programs(cls, call, config):
        if config["way"] == "impossible":
            raise ValueError("this way does not exist")
        return {}

    def bind(self, call):
        way = self.config["way"]

        def launch(x, output):
            if way == "abort":
                os.abort()
            if way == "hang":
                while True:
                    time.sleep(1)
            if way == "huge":
                x.new_empty(1 << 40)
            if way == "wrong":
                output.copy_(x * 2 + 1)
                return
            if way == "unwritten":
                output[1:] = x[1:] * 2
                return
            if way == "uncompilable":
                raise KernelCompileError("no such instruction")
            time.sleep({"slow": 0.004, "good": 0.001, "medium": 0.002}[way])
            output.copy_(x * 2)

        return launch


class Double(Kernel0):
    tile_space = TileSpace(
        {
            "way": (
                "slow",
                "medium",
                "good",
                "abort",
                "hang",
                "huge",
                "wrong",
                "unwritten",
                "uncompilable",
                "impossible",
            )
        }
    )


class Sound(Kernel0):
    tile_space = TileSpace({"way": ("slow", "medium", "good")})


class Broken(Kernel0):
    tile_space = TileSpace({"way": ("abort", "wrong", "uncompilable")})

    @classmethod
    def default_config(cls, call):
        return {"way": "abort"}


class Bounded(Kernel0):
    """The fast way is for few rows only."""

    tile_space = TileSpace(
        {"way": ("slow", "good")},
        constraints=(lambda config, call: config["way"] == "slow" or call.x.shape[0] <= 16,),
        bucket=lambda call: {},
    )


class Updating(Kernel0):
    """Reads and writes `output`."""

    tile_space = TileSpace({"way": ("slow", "good")})

    def bind(self, call):
        def launch(x, output):
            time.sleep(0.002 if self.config["way"] == "slow" else 0.001)
            output.add_(x)

        return launch


class Plain(Kernel0):
    """Without tile parameters."""


class Grid(Kernel, DoubleFwdInterface):
    """Measured by fakes only."""

    devices = frozenset({"cpu"})
    tile_space = TileSpace({"a": tuple(range(8)), "b": tuple(range(4))}, constraints=("a >= b",))

    @classmethod
    def default_config(cls, call):
        return {"a": 3, "b": 1}

    @classmethod
    def programs(cls, call, config):
        return {}


class Large(Grid):
    tile_space = TileSpace({"a": tuple(range(20)), "b": tuple(range(10)), "flag": (False, True)})

    @classmethod
    def default_config(cls, call):
        return {"a": 0, "b": 0, "flag": False}
