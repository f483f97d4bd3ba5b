"""References and baselines of the elementwise operators."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tileops.workloads import Workload


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """``silu(x[:, :N]) * x[:, N:]`` in float64."""
    gate, up = x.double().chunk(2, dim=-1)
    return F.silu(gate) * up


def _silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def add(a: torch.Tensor, b: torch.Tensor, *, alpha: int | float = 1) -> torch.Tensor:
    """``a + alpha * b``: in float64 for float dtypes, in the dtype itself (wrapping) for integers."""
    if not a.is_floating_point():
        return torch.add(a, b, alpha=alpha)
    return a.double() + alpha * b.double()


def _add(a: torch.Tensor, b: torch.Tensor, *, alpha: int | float = 1) -> torch.Tensor:
    return torch.add(a, b, alpha=alpha)


WORKLOADS = (
    Workload("SiluAndMulFwdOp", silu_and_mul, torch={"silu*mul": _silu_and_mul}),
    Workload("AddFwdOp", add, torch={"torch.add": _add}),
)
