"""References and baselines of the normalisation operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

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


def _over_rows(terms: torch.Tensor, normalized_shape: Sequence[int]) -> torch.Tensor:
    """The sum over the leading axes, of which there may be none."""
    rows = math.prod(terms.shape[: terms.ndim - len(normalized_shape)])
    return terms.reshape(rows, *normalized_shape).sum(0)


def rms_norm_bwd(
    grad_out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    *,
    normalized_shape: Sequence[int],
    eps: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Gradients of `rms_norm` in float64, by the chain rule written out."""
    if eps is None:
        eps = torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps
    axes = _mean_square_axes(normalized_shape)
    wide, grad = x.double(), grad_out.double()
    scale = 1 / (wide.square().mean(axes, keepdim=True) + eps).sqrt()
    normalized = wide * scale
    inner = grad if weight is None else grad * weight.double()
    grad_x = (inner - normalized * (inner * normalized).mean(axes, keepdim=True)) * scale
    if weight is None:
        return grad_x, None
    return grad_x, _over_rows(grad * normalized, normalized_shape)


def _manual_bwd(
    grad_out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    *,
    normalized_shape: Sequence[int],
    eps: float | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The same formula in float32."""
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    axes = _mean_square_axes(normalized_shape)
    wide, grad = x.float(), grad_out.float()
    scale = torch.rsqrt(wide.pow(2).mean(axes, keepdim=True) + eps)
    normalized = wide * scale
    inner = grad if weight is None else grad * weight.float()
    grad_x = ((inner - normalized * (inner * normalized).mean(axes, keepdim=True)) * scale).to(x.dtype)
    if weight is None:
        return grad_x, None
    return grad_x, _over_rows(grad * normalized, normalized_shape).to(weight.dtype)


def _autograd_bwd(
    grad_out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    *,
    normalized_shape: Sequence[int],
    eps: float | None,
) -> Callable[[], tuple[torch.Tensor, torch.Tensor | None]]:
    """The backward pass of ``F.rms_norm``; the forward that it needs is not timed."""
    leaves = [item.detach().requires_grad_() for item in (x, weight) if item is not None]
    with torch.enable_grad():
        y = F.rms_norm(leaves[0], tuple(normalized_shape), None if weight is None else leaves[1], eps)

    def backward() -> tuple[torch.Tensor, torch.Tensor | None]:
        grads = torch.autograd.grad(y, leaves, grad_out, retain_graph=True)
        return grads[0], None if weight is None else grads[1]

    return backward


WORKLOADS = (
    Workload("RMSNormFwdOp", rms_norm, torch={"F.rms_norm": _functional, "manual": _manual}),
    Workload("RMSNormBwdOp", rms_norm_bwd, torch={"manual": _manual_bwd}, baselines={"torch-autograd": _autograd_bwd}),
)
