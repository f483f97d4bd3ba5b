"""Targets: kernels that another package brings for some operators and devices.

A backend is an installed package with an entry point in group ``tileops.backends``. Its module registers,
when imported, a detector for its devices and one builder for each op that it serves. The names below are
stable; everything else is not.
"""

from __future__ import annotations

from tileops.backend.protocol import (
    BUILTIN,
    BuildKernel,
    Detector,
    KernelResult,
    Target,
    TargetKernel,
    TensorSpec,
)
from tileops.backend.registry import (
    load_failures,
    register_detector,
    register_kernel_builder,
    register_kernel_type,
    registered_targets,
    set_default_target,
)
from tileops.errors import AmbiguousTargetError, BackendError, OpNotAvailableError, UnknownTargetError

__all__ = [
    "BUILTIN",
    "AmbiguousTargetError",
    "BackendError",
    "BuildKernel",
    "Detector",
    "KernelResult",
    "OpNotAvailableError",
    "Target",
    "TargetKernel",
    "TensorSpec",
    "UnknownTargetError",
    "load_failures",
    "register_detector",
    "register_kernel_builder",
    "register_kernel_type",
    "registered_targets",
    "set_default_target",
]
