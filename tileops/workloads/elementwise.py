"""References and baselines of the elementwise operators.

Most follow a function of PyTorch: that one, on float64 copies, is the reference, and as it is the baseline.
"""

from __future__ import annotations

import math
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


def alibi(*, seq_len: int, num_heads: int, out_dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
    """Biases in float64."""
    power = 2 ** math.floor(math.log2(num_heads))
    rates = [2.0 ** (-8.0 * (h + 1) / power) for h in range(power)]
    doubled = [2.0 ** (-8.0 * (h + 1) / (2 * power)) for h in range(2 * power)]
    rates += doubled[0::2][: num_heads - power]
    place = torch.arange(seq_len, dtype=torch.float64, device=device)
    return -torch.tensor(rates, dtype=torch.float64, device=device)[:, None, None] * (place[:, None] - place).abs()


def _alibi(*, seq_len: int, num_heads: int, out_dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
    power = 2 ** math.floor(math.log2(num_heads))
    rates = 2.0 ** (torch.arange(1, power + 1, device=device) * (-8.0 / power))
    if num_heads > power:
        rates = torch.cat((rates, 2.0 ** (torch.arange(1, 2 * (num_heads - power), 2, device=device) * (-4.0 / power))))
    place = torch.arange(seq_len, device=device)
    return (-rates[:, None, None] * (place[:, None] - place).abs()).to(out_dtype)


def sinusoidal(
    *, seq_len: int, d_model: int, out_dtype: torch.dtype = torch.float32, device: Any = None
) -> torch.Tensor:
    """Sines and cosines of float64 angles."""
    rates = 10000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64, device=device) / d_model)
    angles = torch.arange(seq_len, dtype=torch.float64, device=device)[:, None] * rates
    return torch.stack((angles.sin(), angles.cos()), dim=2).reshape(seq_len, d_model)


def _sinusoidal(
    *, seq_len: int, d_model: int, out_dtype: torch.dtype = torch.float32, device: Any = None
) -> torch.Tensor:
    rates = torch.exp(torch.arange(0, d_model, 2, device=device) * (-math.log(10000.0) / d_model))
    angles = torch.arange(seq_len, device=device)[:, None] * rates
    output = torch.empty(seq_len, d_model, device=device)
    output[:, 0::2], output[:, 1::2] = angles.sin(), angles.cos()
    return output.to(out_dtype)


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


def _round(input: torch.Tensor, *, decimals: int = 0) -> torch.Tensor:
    # torch rounds integers only where it is not told to how many decimals.
    return torch.round(input, decimals=decimals) if decimals else torch.round(input)


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
    Workload("AlibiFwdOp", alibi, torch={"outer": _alibi}),
    Workload("SinusoidalFwdOp", sinusoidal, torch={"sin, cos": _sinusoidal}),
    Workload("DropoutFwdOp", dropout, torch={"F.dropout": _dropout}, unlike="PyTorch draws other random numbers"),
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
            "Round": _round,
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
