"""References and baselines of the normalisation operators."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from tileops.workloads import Workload


def _mean_square_axes(normalized_shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(range(-len(normalized_shape), 0))


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    normalized_shape: Sequence[int],
    eps: float | None = None,
) -> torch.Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` in float64; `eps` None is float32's machine epsilon, as in
    torch, which computes in float32 for half precisions too.
    """
    if eps is None:
        eps = torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps
    wide = x.double()
    y = wide / (wide.square().mean(_mean_square_axes(normalized_shape), keepdim=True) + eps).sqrt()
    return y if weight is None else y * weight.double()


def _functional(
    x: torch.Tensor, weight: torch.Tensor | None, *, normalized_shape: Sequence[int], eps: float | None
) -> torch.Tensor:
    return F.rms_norm(x, tuple(normalized_shape), weight, eps)


def _manual(
    x: torch.Tensor, weight: torch.Tensor | None, *, normalized_shape: Sequence[int], eps: float | None
) -> torch.Tensor:
    """The formula as models spell it out: statistics in float32, then the weight in the input's dtype."""
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    wide = x.float()
    mean_square = wide.pow(2).mean(_mean_square_axes(normalized_shape), keepdim=True)
    y = (wide * torch.rsqrt(mean_square + eps)).to(x.dtype)
    return y if weight is None else y * weight


WORKLOADS = (Workload("RMSNormFwdOp", rms_norm, torch={"F.rms_norm": _functional, "manual": _manual}),)
