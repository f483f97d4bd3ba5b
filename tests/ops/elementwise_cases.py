"""What the accuracy of the elementwise operators is measured with: calls, values, exact results, distances."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import torch

from tileops import manifest
from tileops.workloads import workload

HALF = (torch.bfloat16, torch.float16)
#: Units in the last place that a result may be off by; one rounding of the exact value is 0.5.
LIMITS = {torch.bfloat16: 0.52, torch.float16: 0.6, torch.float32: 2.0}
BYTES = (torch.uint8, torch.int8, torch.bool)
WHOLE = (*BYTES, torch.int16, torch.int32, torch.int64)

#: Construction parameters of each function of one float tensor, every form that computes differently.
UNARY: list[tuple[str, dict[str, Any]]] = [
    *((f"{name}FwdOp", {}) for name in (
        "Exp", "Expm1", "Log", "Log1p", "Sqrt", "Rsqrt", "Reciprocal", "Abs", "Neg", "Sign", "Sin", "Cos", "Tanh",
        "Sigmoid", "Erf", "Floor", "Ceil", "Round", "Trunc", "Relu", "Silu", "Hardswish", "Hardsigmoid", "Mish", "Selu",
        "LeakyRelu", "Elu", "Hardtanh", "Softplus", "NanToNum",
    )),
    ("GeluFwdOp", {"approximate": "none"}),
    ("GeluFwdOp", {"approximate": "tanh"}),
    ("ClampScalarFwdOp", {"min": -1.5, "max": 0.1}),
    ("ClampScalarFwdOp", {"min": 2}),
    ("NanToNumFwdOp", {"nan": 1.5, "posinf": 1e4, "neginf": -1e4}),
    # The same kernels as with the defaults: these are arguments.
    ("EluFwdOp", {"alpha": 1.7}),
    ("HardtanhFwdOp", {"min_val": 0.0, "max_val": 6.0}),
    ("LeakyReluFwdOp", {"negative_slope": -0.2}),
    ("SoftplusFwdOp", {"beta": 2.0, "threshold": 10.0}),
]  # fmt: skip
#: Those of two, which are one rounding of the exact value of any operands (pow aside).
BINARY: list[tuple[str, dict[str, Any]]] = [
    *((f"{name}FwdOp", {}) for name in ("Add", "Sub", "Mul", "Div", "Maximum", "Minimum", "Pow", "Remainder")),
    ("AddFwdOp", {"alpha": -0.75}),
    ("SubFwdOp", {"alpha": 3}),
    ("FloorDivideFwdOp", {}),
    ("DivFwdOp", {"rounding_mode": "floor"}),
]
#: Results that are one rounding of the exact value in float32, too.
EXACT = {
    *("AbsFwdOp", "NegFwdOp", "SignFwdOp", "FloorFwdOp", "CeilFwdOp", "TruncFwdOp", "ReluFwdOp", "HardtanhFwdOp"),
    *("SqrtFwdOp", "ReciprocalFwdOp", "NanToNumFwdOp", "ClampScalarFwdOp", "AddFwdOp", "SubFwdOp", "MulFwdOp"),
    *("DivFwdOp", "MaximumFwdOp", "MinimumFwdOp", "RemainderFwdOp"),
}


def make(name: str, **params: Any) -> Any:
    return getattr(importlib.import_module(f"tileops.{manifest.load_entry(name).family}"), name)(**params)


def as_torch(name: str) -> Callable[..., torch.Tensor]:
    """torch's own function."""
    return next(iter(workload(name).torch.values()))


def _gelu(x: torch.Tensor, approximate: str) -> torch.Tensor:
    # torch's formulas cancel in the negative tail, even in float64.
    if approximate == "none":
        return 0.5 * x * torch.special.erfc(-x * math.sqrt(0.5))
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def _nan_to_num(x: torch.Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Any:
    largest = torch.finfo(x.dtype).max
    high, low = largest if posinf is None else posinf, -largest if neginf is None else neginf
    return x.double().nan_to_num(nan, high, low)


def exact(name: str, *tensors: torch.Tensor, **params: Any) -> torch.Tensor:
    """The result in float64."""
    if name == "GeluFwdOp":
        return _gelu(tensors[0].double(), **params)
    if name == "NanToNumFwdOp":
        return _nan_to_num(tensors[0], **params)
    result = workload(name).reference(*tensors, **params)
    assert isinstance(result, torch.Tensor)
    return result


def errors(actual: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Units in the last place between results and exact values. An infinity stands for the power of two that follows
    the largest number, which is where rounding puts it; NaN and infinities of exact values must be met.
    """
    info = torch.finfo(actual.dtype)
    beyond = 2.0 ** math.frexp(info.max)[1]
    got, want = actual.double().clamp(-beyond, beyond), wanted.clamp(-beyond, beyond)
    _, exponent = torch.frexp(want.abs().clamp(info.tiny, info.max))
    found = (got - want).abs() / torch.ldexp(torch.full_like(want, info.eps), exponent - 1)
    found = torch.where(wanted.isinf() & (actual != wanted), torch.inf, found)
    return torch.where(got.isnan() & want.isnan(), 0.0, found.nan_to_num(torch.inf))


def verify(actual: torch.Tensor, wanted: torch.Tensor, limit: float, *tensors: torch.Tensor) -> None:
    """Fails with the operands of the worst result; zeros have to have the sign of the exact value."""
    actual, wanted = actual.cpu(), wanted.cpu()
    found = errors(actual, wanted)
    worst = int(found.argmax())
    where = [tensor.expand(actual.shape).flatten()[worst].item() for tensor in tensors]
    got, want = actual.flatten()[worst].item(), wanted.flatten()[worst].item()
    assert found.flatten()[worst] <= limit, f"{found.max():.3f} ulp at {where}: {got!r}, exactly {want!r}"
    opposite = (actual == 0) & ~wanted.isnan() & (actual.signbit() != wanted.signbit())
    at = [tensor.expand(actual.shape)[opposite][:3].tolist() for tensor in tensors]
    assert not opposite.any(), f"zeros of the wrong sign at {at}"


def limit_of(name: str, params: dict[str, Any], dtype: torch.dtype) -> float:
    # Of a quotient of more than 21 bits the fraction is lost before it could be rounded down.
    rounded = "rounding_mode" in params
    return 0.5 if dtype == torch.float32 and name in EXACT and not rounded else LIMITS[dtype]


def every_value(dtype: torch.dtype) -> torch.Tensor:
    """All values of a dtype of at most 16 bits."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    size = dtype.itemsize * 8
    return torch.arange(2**size).to(torch.int16 if size == 16 else torch.uint8).view(dtype)


def over_float32() -> torch.Tensor:
    """Values of every sign and exponent, more of them where functions bend or lose digits."""
    generator = torch.Generator().manual_seed(11)
    every = (torch.arange(2**17) * 2**15 + 12345 - 2**31).to(torch.int32).view(torch.float32)
    edges = torch.arange(-(2**31), 2**31, 2**23)
    around = torch.cat([edges + 2**23 - 1, edges, edges + 1]).to(torch.int32).view(torch.float32)
    # Multiples of pi / 2, up to the hardest double of all and beyond; near 1, 0, and the ends of exp.
    whole = torch.randint(0, 2**24, (20_000,), generator=generator).double()
    bends = [(whole * math.pi / 2).float(), torch.tensor([6381956970095103.0 * 2.0**75, 16367173.0 * 2.0**72])]
    for middle, spread in ((1.0, 1e-3), (-1.0, 1e-3), (0.0, 1e-4), (0.0, 1.0), (0.0, 10.0), (0.0, 60.0), (88.7, 0.1)):
        bends.append(middle + spread * torch.randn(10_000, generator=generator))
    halves = torch.arange(-500, 500) + 0.5
    return torch.cat([every, around, *bends, halves, -(2.0 ** torch.arange(1.0, 25.0)) + 0.5])


def special(dtype: torch.dtype) -> torch.Tensor:
    """Values at which functions turn, and the ends of the dtype, with both signs."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if not dtype.is_floating_point:
        ends = torch.iinfo(dtype)
        return torch.tensor([ends.min, ends.min + 1, 0, 1, 2, 7, 100, ends.max - 1, ends.max], dtype=dtype)
    info = torch.finfo(dtype)
    whole = [0.0, 1.0, 2.0, 3.0, 7.0, 255.0, 4097.0, 2.0**23, 2.0**24 - 1]
    broken = [0.1, 0.5, 1.5, 1 / 3, math.pi, 1 - info.eps / 2, 1 + info.eps]
    ends = [info.tiny * info.eps, info.tiny, info.tiny * 1.5, info.max / 2, info.max, math.inf, math.nan]
    found = torch.tensor([*whole, *broken, *ends], dtype=torch.float64).to(dtype)
    return torch.cat([found, -found])


def pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Every pair of special values, any bits, and values of like size."""
    ends, count = special(dtype), 30_000
    generator = torch.Generator().manual_seed(12)
    whole = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    span = torch.iinfo(whole)
    any_bits = [torch.randint(span.min, span.max, (count,), generator=generator).to(whole).view(dtype) for _ in "abcd"]
    near = [(torch.randn(count, generator=generator) * size).to(dtype) for size in (1.0, 30.0, 1.0)]
    multiples = (near[0].float() * near[1].float().round()).to(dtype)
    left = [ends.repeat_interleave(len(ends)), *any_bits[:2], near[0], multiples, any_bits[3]]
    right = [ends.repeat(len(ends)), *any_bits[2:], near[1], near[0], near[1]]
    return torch.cat(left), torch.cat(right)
