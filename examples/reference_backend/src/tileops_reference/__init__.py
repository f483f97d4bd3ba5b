"""Target "reference": two operators in plain PyTorch, on any device that PyTorch has.

A builder is asked once for each combination of device, dtypes and shapes, and may take its time. What it returns is
called with the tensors of each call, after TileOPs has checked them: contiguous, on one device, of the shapes and
dtypes that the builder was told. It returns new tensors, which TileOPs checks again.
"""

from __future__ import annotations

import torch

from tileops import backend

TARGET = "reference"


def detect(device: torch.device) -> bool:
    """Never claims a device: it serves the operators that name it, or a process that makes it the default."""
    return False


def build_rms_norm(
    x: backend.TensorSpec,
    weight: backend.TensorSpec | None,
    *,
    normalized_shape: tuple[int, ...],
    eps: float | None,
) -> backend.TargetKernel:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the trailing axes, in float32."""
    axes = tuple(range(-len(normalized_shape), 0))
    epsilon = torch.finfo(torch.float32).eps if eps is None else eps

    def kernel(x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        wide = x.float()
        y = wide * torch.rsqrt(wide.square().mean(axes, keepdim=True) + epsilon)
        return (y if weight is None else y * weight.float()).to(x.dtype)

    return kernel


def build_silu_and_mul(x: backend.TensorSpec) -> backend.TargetKernel | None:
    """``silu(x[..., :N]) * x[..., N:]``; declines what it was not written for."""
    if x.dtype not in ("float32", "bfloat16", "float16"):
        return None  # the caller gets an OpNotAvailableError that names this target

    def kernel(x: torch.Tensor) -> torch.Tensor:
        gate, up = x.float().chunk(2, dim=-1)
        return (torch.nn.functional.silu(gate) * up).to(x.dtype).contiguous()

    return kernel


backend.register_detector(TARGET, detect)
backend.register_kernel_builder("RMSNormFwdOp", TARGET, build_rms_norm)
backend.register_kernel_builder("SiluAndMulFwdOp", TARGET, build_silu_and_mul)
