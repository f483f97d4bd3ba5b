"""References and baselines of the elementwise operators.

Most follow a function of PyTorch: that one, on float64 copies, is the reference, and as it is the baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tileops.workloads import Workload
from tileops.workloads.gated_backward import SILU_AND_MUL_BWD


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


def _prelu(input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.prelu(input, weight.reshape(-1))


def _clamp_tensor(
    input: torch.Tensor, min: torch.Tensor | None = None, max: torch.Tensor | None = None
) -> torch.Tensor:
    return torch.clamp(input, min, max)


def dropout(input: torch.Tensor, *, p: float = 0.5, training: bool = True, seed: int = 0) -> torch.Tensor:
    """Dropout in float64 with the mask of `seed`, drawn with NumPy's integers."""
    if not training or p == 0:
        return input.double()
    kept = 1.0 - p
    number = np.arange(input.numel(), dtype=np.uint64)
    words = philox(number >> np.uint64(2), seed)
    drawn = np.take_along_axis(words, (number & np.uint64(3)).astype(np.int64)[None], 0)[0]
    keep = torch.from_numpy(drawn < min(round(kept * 2**32), 2**32 - 1)).reshape(input.shape).to(input.device)
    return torch.where(keep, input.double() / max(kept, 1e-300), 0.0)


def philox(counters: np.ndarray, key: int) -> np.ndarray:
    """Philox4x32-10: four words of 32 bits, as uint64 ``[4, N]``, for each 64-bit counter."""
    low = np.uint64(0xFFFFFFFF)
    zero = np.zeros_like(counters)
    a, b, c, d = counters & low, counters >> np.uint64(32), zero, zero
    k0, k1 = key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF
    for _ in range(10):
        one, two = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (
            (two >> np.uint64(32)) ^ b ^ np.uint64(k0),
            two & low,
            (one >> np.uint64(32)) ^ d ^ np.uint64(k1),
            one & low,
        )
        k0, k1 = k0 + 0x9E3779B9 & 0xFFFFFFFF, k1 + 0xBB67AE85 & 0xFFFFFFFF
    return np.stack((a, b, c, d))


def _dropout(input: torch.Tensor, *, p: float = 0.5, training: bool = True, seed: int = 0) -> torch.Tensor:
    return F.dropout(input, p, training)


def exactly(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` on float64 copies of float tensors, on the others as they are; it writes none of its arguments."""

    def reference(*tensors: torch.Tensor | None, **params: Any) -> Any:
        if params.get("inplace"):
            params = {**params, "inplace": False}
        wide = [t.double() if t is not None and t.is_floating_point() else t for t in tensors]
        return function(*wide, **params)

    return reference


def _nan_to_num(input: torch.Tensor, **params: Any) -> torch.Tensor:
    return torch.nan_to_num(input, **params)


def _like(op: str, function: Callable[..., Any], name: str = "") -> Workload:
    """An operator that a function of PyTorch defines, called alike."""
    return Workload(op, exactly(function), torch={name or f"torch.{function.__name__}": function})


def _pairs(ops: Mapping[str, Callable[..., Any]]) -> list[Workload]:
    return [_like(f"{op}FwdOp", function) for op, function in ops.items()]


WORKLOADS = (
    SILU_AND_MUL_BWD,
    Workload("SiluAndMulFwdOp", exactly(_silu_and_mul), torch={"silu*mul": _silu_and_mul}),
    Workload("GeluAndMulFwdOp", exactly(_gelu_and_mul), torch={"gelu*mul": _gelu_and_mul}),
    Workload("GeluTanhAndMulFwdOp", exactly(_gelu_tanh_and_mul), torch={"gelu*mul": _gelu_tanh_and_mul}),
    Workload("DropoutFwdOp", dropout, torch={"F.dropout": _dropout}),
    *_pairs(
        {
            "Add": torch.add,
            "Sub": torch.sub,
            "Mul": torch.mul,
            "Div": torch.div,
            "Remainder": torch.remainder,
            "Pow": torch.pow,
            "FloorDivide": torch.floor_divide,
            "Lerp": torch.lerp,
            "LerpTensor": torch.lerp,
            "Maximum": torch.maximum,
            "Minimum": torch.minimum,
            "Eq": torch.eq,
            "Ne": torch.ne,
            "Gt": torch.gt,
            "Lt": torch.lt,
            "Ge": torch.ge,
            "Le": torch.le,
            "LogicalAnd": torch.logical_and,
            "LogicalOr": torch.logical_or,
            "LogicalNot": torch.logical_not,
            "BitwiseAnd": torch.bitwise_and,
            "BitwiseOr": torch.bitwise_or,
            "BitwiseXor": torch.bitwise_xor,
            "BitwiseNot": torch.bitwise_not,
            "Exp": torch.exp,
            "Expm1": torch.expm1,
            "Log": torch.log,
            "Log1p": torch.log1p,
            "Sqrt": torch.sqrt,
            "Rsqrt": torch.rsqrt,
            "Reciprocal": torch.reciprocal,
            "Abs": torch.abs,
            "Neg": torch.neg,
            "Sign": torch.sign,
            "Sin": torch.sin,
            "Cos": torch.cos,
            "Tanh": torch.tanh,
            "Sigmoid": torch.sigmoid,
            "Erf": torch.erf,
            "Floor": torch.floor,
            "Ceil": torch.ceil,
            "Round": torch.round,
            "Trunc": torch.trunc,
            "Isnan": torch.isnan,
            "Isinf": torch.isinf,
            "Isfinite": torch.isfinite,
            "Relu": F.relu,
            "Silu": F.silu,
            "Hardswish": F.hardswish,
            "Hardsigmoid": F.hardsigmoid,
            "Mish": F.mish,
            "Selu": F.selu,
            "LeakyRelu": F.leaky_relu,
            "Elu": F.elu,
            "Hardtanh": F.hardtanh,
            "Gelu": F.gelu,
            "Softplus": F.softplus,
            "Prelu": _prelu,
            "NanToNum": _nan_to_num,
            "ClampTensor": _clamp_tensor,
            "ClampScalar": torch.clamp,
            "Where": torch.where,
            "MaskedFill": torch.masked_fill,
            "MaskedFillScalar": torch.masked_fill,
        }
    ),
)
