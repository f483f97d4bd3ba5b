"""Runs our CUDA kernel classes in the PTX interpreter: real programs, real host side, pretended GPU."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest

from tests.ptx.ptxsim import GlobalMemory, Machine, Program, launch, parse
from tileops.jit.artifact import Artifact
from tileops.jit.cuda import compile_to_ptx, cuda_target
from tileops.jit.cuda.compile import assemble
from tileops.jit.cuda.loader import pack_arguments
from tileops.jit.program import Program as JitProgram
from tileops.kernels import scratch
from tileops.kernels.base import DeviceFacts, Kernel, TensorSpec

ARCHS = ("sm_80", "sm_90a")
DTYPES = ("float32", "bfloat16", "float16")
NUMPY = {"bfloat16": np.dtype(ml_dtypes.bfloat16)} | {
    name: np.dtype(name) for name in ("float32", "float16", "bool", "uint8", "int8", "int16", "int32", "int64")
}
#: Dtypes with architectures. The PTX of the two differs in its header: each dtype is tried on one of them, and on the
#: other in the nightly tests.
DTYPES_AND_ARCHS = pytest.mark.parametrize(
    ("dtype", "arch"),
    [
        pytest.param(dtype, arch, marks=[] if number % 2 == place else [pytest.mark.nightly])
        for number, dtype in enumerate(DTYPES)
        for place, arch in enumerate(ARCHS)
    ],
)
#: Largest error against the float64 reference, absolute and relative.
TOLERANCE = {"float32": 1e-5, "bfloat16": 1.6e-2, "float16": 1e-3}
DEVICE = {arch: DeviceFacts("cuda", 0, arch.rstrip("a"), 4, 164 << 10) for arch in ARCHS}


@functools.cache
def ptx_of(program: JitProgram, arch: str) -> str:
    """PTX of a program, compiled once per session."""
    return compile_to_ptx(program, cuda_target(arch))


@functools.cache
def parsed(program: JitProgram, arch: str) -> Program:
    """The parsed PTX of a program."""
    return parse(ptx_of(program, arch))


@functools.cache
def artifact_of(program: JitProgram, arch: str) -> Artifact:
    """The machine code of a program, and what the assembler says about it."""
    return assemble(ptx_of(program, arch), program, cuda_target(arch))


def facts_of(program: JitProgram, arch: str) -> Mapping[str, Any]:
    """What the assembler says about a program."""
    return artifact_of(program, arch).facts


@dataclass
class FakeTensor:
    """A tensor in the interpreter's memory.

    Attributes:
        values: what was placed, with its strides.
        dtype: its name.
        address: of the first element.
    """

    values: np.ndarray
    dtype: str
    address: int

    def data_ptr(self) -> int:
        return self.address

    @property
    def spec(self) -> TensorSpec:
        """What the op would say about it."""
        itemsize = self.values.itemsize
        alignment = next(size for size in (16, 8, 4, 2, 1) if self.address % size == 0)
        strides = tuple(step // itemsize for step in self.values.strides)
        return TensorSpec("cuda:0", self.dtype, self.values.shape, strides, max(alignment, itemsize))


class Device:
    """One pretended GPU: memory and a launcher.

    Args:
        arch: architecture that kernels are compiled for.
        max_grid: blocks of a launch at most, so that kernels have to loop; None for as many as they ask for.
    """

    def __init__(self, arch: str, max_grid: int | None = None) -> None:
        self.arch = arch
        self.memory = GlobalMemory()
        self.max_grid = max_grid
        self.machines: list[Machine] = []

    def tensor(self, values: np.ndarray, dtype: str, *, storage_offset: int = 0, output: bool = False) -> FakeTensor:
        """Places an array, `storage_offset` elements past a 256-byte boundary."""
        assert values.dtype == NUMPY[dtype]
        offset = storage_offset * values.itemsize
        return FakeTensor(values, dtype, self.memory.place(values, offset=offset, writable=output))

    def empty(self, shape: Sequence[int], dtype: str, *, storage_offset: int = 0) -> FakeTensor:
        """An output, filled with bytes of 0xFF: NaN, -1 or what is no truth value."""
        values = np.full(tuple(shape), -1, f"i{NUMPY[dtype].itemsize}").view(NUMPY[dtype])
        return self.tensor(values, dtype, storage_offset=storage_offset, output=True)

    def fetch(self, tensor: FakeTensor) -> np.ndarray:
        """The contents of a contiguous tensor now."""
        values = tensor.values
        return self.memory.fetch(tensor.address, values.shape, values.strides, values.dtype)

    def run(self, kernel: type[Kernel], call: Any, *tensors: FakeTensor | None, **config: Any) -> JitProgram:
        """Chooses, compiles, binds and launches a kernel as an op would; returns its program."""
        refusal = kernel.refusal(call)
        assert refusal is None, refusal
        config = config or kernel.default_config(call)
        programs = kernel.programs(call, config)
        entries = {name: _Entry(self, program) for name, program in programs.items()}
        with mock.patch.object(scratch, "floats", lambda count, like: self.empty((count,), "float32")):
            kernel(config, entries).bind(call)(*tensors)
        return programs["main"]


class _Entry:
    def __init__(self, device: Device, program: JitProgram) -> None:
        self.device, self.program = device, program

    def launch(self, grid: int, *args: Any, device: int | None = None) -> None:
        if grid == 0:
            return
        grid = min(grid, self.device.max_grid or grid)
        args = pack_arguments(self.program.args, args)
        program = parsed(self.program, self.device.arch)
        self.device.machines.append(launch(program, self.device.memory, grid, self.program.block, args))


def random(shape: Sequence[int], dtype: str, seed: int = 0) -> np.ndarray:
    """Normally distributed values."""
    return np.random.default_rng(seed).standard_normal(tuple(shape)).astype(NUMPY[dtype])


def assert_close(actual: np.ndarray, expected: np.ndarray, dtype: str) -> None:
    """`actual` against a float64 reference, with the tolerance of `dtype`."""
    np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
