"""What a CUDA kernel is compiled for: an architecture, known or asked of the driver."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from tileops.errors import KernelCompileError


@dataclass(frozen=True)
class CudaTarget:
    """A CUDA architecture.

    Attributes:
        arch: ``"sm_80"``, ``"sm_90a"``, ... The suffix "a" (instructions of that very architecture, such as
            wgmma) is added for 9.0 and newer by `cuda_target`.
    """

    arch: str

    @property
    def capability(self) -> tuple[int | str, ...]:
        """``(8, 0)`` or ``(9, 0, "a")``."""
        number, suffix = _split(self.arch)
        capability = divmod(number, 10)
        return (*capability, suffix) if suffix else capability

    def describe(self) -> dict[str, str]:
        """What identifies the target in the key of a compiled kernel."""
        return {"device": "cuda", "arch": self.arch}


def cuda_target(arch: str | None = None, *, device: int | None = None) -> CudaTarget:
    """The target of `arch`, or of a GPU of this machine.

    Args:
        arch: ``"sm_80"``, ``"sm_90"`` or ``"sm_90a"`` (the last two are the same target); None asks the
            driver.
        device: number of the GPU that is asked; the current one if None.

    Raises:
        KernelCompileError: `arch` is malformed or older than sm_80, or there is no GPU to ask.
    """
    if arch is None:
        arch = _arch_of_device(device)
    number, suffix = _split(arch)
    if number < 80:
        raise KernelCompileError(f"arch={arch!r}: kernels need compute capability 8.0 or newer; use sm_80 or later")
    return CudaTarget(f"sm_{number}{suffix or ('a' if number >= 90 else '')}")


def _split(arch: str) -> tuple[int, str]:
    match = re.fullmatch(r"sm_(\d{2,3})(a?)", arch)
    if match is None:
        raise KernelCompileError(f"arch={arch!r}: expected sm_NN, for example sm_80 or sm_90a")
    return int(match[1]), match[2]


def _arch_of_device(device: int | None) -> str:
    import torch

    if not torch.cuda.is_available():
        raise KernelCompileError("no GPU was found to compile for; name an architecture, for example sm_90a")
    return _arch_of(torch.cuda.current_device() if device is None else device)


@functools.cache
def _arch_of(device: int) -> str:
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"
