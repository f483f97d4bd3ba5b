"""Loads a cubin and launches it with cuda.core, on the stream that is torch's current one at that moment."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tileops.errors import LaunchError
from tileops.jit.artifact import Artifact
from tileops.jit.program import Program

_MAX_GRID = 2**31 - 1
_FLOATS = {"f32": np.float32, "f64": np.float64}
_DEFAULT_SMEM = 48 << 10  # what a block may use without asking for more


class CudaEntry:
    """A loaded kernel.

    The CUDA library behind it belongs to no context: one entry serves every GPU of its architecture.

    Attributes:
        program: what was compiled.
        launch: ``launch(grid, *args, device=None)``, see `put`.
        facts: of the artifact: entry, block, registers, spill_bytes, ...
    """

    def __init__(self, artifact: Artifact, program: Program) -> None:
        import torch
        from cuda.core import LaunchConfig, ObjectCode, launch

        if not torch.cuda.is_initialized():
            torch.cuda.init()
            torch.cuda.synchronize()  # makes the context that the driver loads into
        self.program = program
        self.facts = dict(artifact.facts)
        self.launch: Callable[..., None] = self.put
        self._kinds: tuple[str, ...] = tuple(self.facts["args"])
        self._floats = tuple(i for i, kind in enumerate(self._kinds) if kind in _FLOATS)
        code = ObjectCode.from_cubin(artifact.parts["cubin"], name=str(self.facts["entry"]))
        self._kernel = code.get_kernel(self.facts["entry"])
        self._launch = launch
        self._current_stream = torch.cuda.current_stream
        self._current_device = torch.cuda.current_device
        self._device_guard = torch.cuda.device
        block, smem = self.facts["block"], self.facts["dynamic_smem"]
        self._config = functools.lru_cache(maxsize=256)(
            lambda grid: LaunchConfig(grid=(grid, 1, 1), block=(block, 1, 1), shmem_size=smem)
        )
        self._smem_allowed: set[int] = set()

    def put(self, grid: int, *args: Any, device: int | None = None) -> None:
        """Puts the kernel on torch's current stream of a device.

        Args:
            grid: blocks; 0 launches nothing.
            args: one per declared argument: int addresses and sizes, and floats. NumPy scalars of the
                declared width are taken as they are, Python floats are converted at each launch.
            device: number of the GPU that holds the data; the current one if None.

        Raises:
            LaunchError: the grid is out of range, or CUDA refuses the launch.
        """
        if grid == 0:
            return
        if not 0 < grid <= _MAX_GRID:
            raise LaunchError(f"{self.facts['entry']}: a grid of {grid} blocks is outside 0 .. {_MAX_GRID}")
        if any(type(args[i]) is float for i in self._floats):
            args = pack_arguments(self._kinds, args)
        current = self._current_device()
        if device is None or device == current:
            self._put(current, grid, args)
        else:
            with self._device_guard(device):
                self._put(device, grid, args)

    def _put(self, device: int, grid: int, args: tuple[Any, ...]) -> None:
        if self.facts["dynamic_smem"] > _DEFAULT_SMEM and device not in self._smem_allowed:
            self._allow_smem(device)
        try:
            self._launch(self._current_stream(device), self._config(grid), self._kernel, *args)
        except Exception as error:  # cuda.core raises several types, by the layer that failed
            raise LaunchError(
                f"{self.facts['entry']} ({self.facts['arch']}) on cuda:{device}, grid {grid}, block "
                f"{self.facts['block']}: {error}"
            ) from error

    def _allow_smem(self, device: int) -> None:
        from cuda.bindings import driver

        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (status,) = driver.cuKernelSetAttribute(attribute, self.facts["dynamic_smem"], self._kernel.handle, device)
        if int(status) != 0:
            raise LaunchError(
                f"{self.facts['entry']}: cuda:{device} refuses {self.facts['dynamic_smem']} bytes of shared "
                f"memory per block ({status})"
            )
        self._smem_allowed.add(device)

    def __repr__(self) -> str:
        return f"CudaEntry({self.facts['entry']}, {self.facts['arch']}, block={self.facts['block']})"


def load(artifact: Artifact, program: Program) -> CudaEntry:
    """Loads a compiled kernel. Needs a GPU and its driver.

    Args:
        artifact: of `compile_program`.
        program: what it was compiled from, which the entry carries.

    Raises:
        LaunchError: the driver is missing or refuses the cubin.
        KeyError: the artifact lacks a part or a fact.
    """
    try:
        return CudaEntry(artifact, program)
    except KeyError:
        raise  # an artifact of another format: the caller's business
    except Exception as error:  # a missing library, a missing driver, a cubin for another architecture
        raise LaunchError(
            f"{artifact.facts.get('entry')} ({artifact.facts.get('arch')}) cannot be loaded: "
            f"{type(error).__name__}: {error}; it needs a GPU of that architecture and its driver"
        ) from error


def pack_arguments(kinds: tuple[str, ...], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments as cuda.core packs them right: it takes every Python float for a double."""
    return tuple(_FLOATS[kind](arg) if kind in _FLOATS else arg for kind, arg in zip(kinds, args, strict=True))
