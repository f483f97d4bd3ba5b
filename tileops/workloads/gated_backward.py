"""References and baselines of the gradients of the gated activations."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from tileops.workloads import Workload


def silu_and_mul_bwd(grad_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Gradient of ``silu(x[:, :N]) * x[:, N:]`` in float64, by the chain rule written out."""
    return _manual(grad_out.double(), x.double())


def _manual(grad_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    s = torch.sigmoid(gate)
    return torch.cat((grad_out * up * (s * (1 + gate * (1 - s))), grad_out * (gate * s)), dim=-1)


def _autograd(grad_out: torch.Tensor, x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """The backward pass of PyTorch's formulation; the forward that it needs is not timed."""
    leaf = x.detach().requires_grad_()
    with torch.enable_grad():
        gate, up = leaf.chunk(2, dim=-1)
        y = F.silu(gate) * up
    return lambda: torch.autograd.grad(y, leaf, grad_out, retain_graph=True)[0]


SILU_AND_MUL_BWD = Workload(
    "SiluAndMulBwdOp", silu_and_mul_bwd, torch={"manual": _manual}, baselines={"torch-autograd": _autograd}
)
