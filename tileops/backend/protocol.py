"""What a target is: the types that a third-party package meets. This module is the stable part of
`tileops.backend`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

from tileops.kernels.base import TensorSpec

#: Name of a set of kernels, for example "builtin" or "acme".
Target = str

#: The kernels of this package, for CPU and CUDA devices.
BUILTIN: Final[Target] = "builtin"

KernelResult = Any
"""One tensor, a tuple of tensors in the order of the entry's outputs, or None for an op without outputs."""

TargetKernel = Callable[..., KernelResult]
"""What a target's builder returns: any callable. It is called with the op's tensors in forward order (None
where absent), made contiguous unless the op writes them, allocates its outputs on the call device, runs on
the current stream and must not compile anything. Where the caller passed ``out`` it comes by keyword; then, as for
an output that stands for a written input, the result is that very tensor."""

BuildKernel = Callable[..., "TargetKernel | None"]
"""``build_kernel(*specs, **params)``: one `TensorSpec` or None for each call-time input in forward order, and
the construction parameters by name. Called once per op instance and (device, dtypes, cache key of the
shapes). Compiling belongs here. Returning None
declines: the call raises OpNotAvailableError."""

Detector = Callable[["torch.device"], bool]
"""``detect(device) -> bool``: whether the target wants to serve calls on `device`. Must be cheap and must not
raise.
"""

__all__ = ["BUILTIN", "BuildKernel", "Detector", "KernelResult", "Target", "TargetKernel", "TensorSpec"]
