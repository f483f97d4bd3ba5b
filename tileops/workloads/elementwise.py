"""References and baselines of the elementwise operators.

Most follow a function of PyTorch: that one, on float64 copies, is the reference, and as it is the baseline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tileops.workloads import Workload


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """``silu(x[:, :N]) * x[:, N:]`` in float64."""
    return _silu_and_mul(x.double())


def _silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def _gelu_and_mul(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate) * up


def _gelu_tanh_and_mul(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


def add(a: torch.Tensor, b: torch.Tensor, *, alpha: int | float = 1) -> torch.Tensor:
    """``a + alpha * b``: in float64 for float dtypes, in the dtype itself (wrapping) for integers."""
    return exactly(torch.add)(a, b, alpha=alpha)


def exactly(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` on float64 copies of float tensors, on the others as they are; it writes none of its arguments."""

    def reference(*tensors: torch.Tensor | None, **params: Any) -> Any:
        if params.get("inplace"):
            params = {**params, "inplace": False}
        wide = [t.double() if t is not None and t.is_floating_point() else t for t in tensors]
        return function(*wide, **params)

    return reference


def _like(op: str, function: Callable[..., Any], name: str = "") -> Workload:
    """An operator that a function of PyTorch defines, called alike."""
    return Workload(op, exactly(function), torch={name or f"torch.{function.__name__}": function})


WORKLOADS = (
    Workload("SiluAndMulFwdOp", exactly(_silu_and_mul), torch={"silu*mul": _silu_and_mul}),
    Workload("GeluAndMulFwdOp", exactly(_gelu_and_mul), torch={"gelu*mul": _gelu_and_mul}),
    Workload("GeluTanhAndMulFwdOp", exactly(_gelu_tanh_and_mul), torch={"gelu*mul": _gelu_tanh_and_mul}),
    _like("AddFwdOp", torch.add),
    _like("SubFwdOp", torch.sub),
    _like("MulFwdOp", torch.mul),
    _like("EqFwdOp", torch.eq),
    _like("ExpFwdOp", torch.exp),
    _like("ReluFwdOp", F.relu),
    _like("LeakyReluFwdOp", F.leaky_relu),
)
