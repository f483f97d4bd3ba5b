"""Reference and baselines of matrix multiplication."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from tileops.workloads import Workload


def _operands(a: torch.Tensor, b: torch.Tensor, trans_a: bool, trans_b: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """`a` as ``[M, K]`` and `b` as ``[K, N]``."""
    return a.t() if trans_a else a, b.t() if trans_b else b


def gemm(a: torch.Tensor, b: torch.Tensor, *, trans_a: bool = False, trans_b: bool = True) -> torch.Tensor:
    """``op(a) @ op(b)`` in float64, where ``op`` transposes the operand whose flag is set."""
    left, right = _operands(a.double(), b.double(), trans_a, trans_b)
    return left @ right


def _matmul(a: torch.Tensor, b: torch.Tensor, *, trans_a: bool, trans_b: bool) -> torch.Tensor:
    left, right = _operands(a, b, trans_a, trans_b)
    return torch.matmul(left, right)


def _linear(a: torch.Tensor, b: torch.Tensor, *, trans_a: bool, trans_b: bool) -> torch.Tensor:
    """As ``nn.Linear`` calls it; a single row as a matrix-vector product, which has kernels of its own."""
    left = a.t() if trans_a else a
    weight = b if trans_b else b.t()
    return torch.mv(weight, left[0])[None] if left.shape[0] == 1 else F.linear(left, weight)


def _torch_packed(a: torch.Tensor, b: torch.Tensor, *, trans_a: bool, trans_b: bool) -> Callable[[], torch.Tensor]:
    """oneDNN's prepacked linear, as ``torch.compile`` with freezing uses it for constant weights."""
    if not torch.backends.mkldnn.is_available() or a.device.type != "cpu":
        raise NotImplementedError("oneDNN is not available here")
    if trans_a or not trans_b:
        raise NotImplementedError("oneDNN packs weights that are stored [N, K] and read rows of a")
    packed = torch.ops.mkldnn._reorder_linear_weight(b.contiguous(), a.shape[0])
    return lambda: torch.ops.mkldnn._linear_pointwise(a, packed, None, "none", [], "")


WORKLOADS = (
    Workload(
        "GemmFwdOp",
        gemm,
        torch={"matmul": _matmul, "linear": _linear},
        baselines={"torch-packed": _torch_packed},
        cold=("b",),
    ),
)
