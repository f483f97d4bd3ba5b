"""How exact the elementwise operators are: every value of the 16-bit dtypes, float32 over its whole range, every pair
of bytes, and the special values of all of them, against float64 and against torch.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.ops.helpers import FLOATS, bits, on_device
from tileops import manifest
from tileops.workloads import workload

pytestmark = pytest.mark.in_tree_kernels

HALF = (torch.bfloat16, torch.float16)
#: Units in the last place that a result may be off by; one rounding of the exact value is 0.5.
LIMITS = {torch.bfloat16: 0.52, torch.float16: 0.6, torch.float32: 2.0}
#: The two differ in the conversion at both ends only: float16 is left to the nightly tests but for a few functions.
NIGHTLY = pytest.mark.nightly
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, pytest.param(torch.float16, marks=NIGHTLY)])
FLOAT16_TOO = {"ExpFwdOp", "TanhFwdOp", "GeluFwdOp", "SoftplusFwdOp"}
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


def _of_16_bits() -> list[Any]:
    found = []
    for name, params in UNARY:
        for dtype in HALF:
            later = dtype == torch.float16 and name not in FLOAT16_TOO
            marks = [NIGHTLY] if later else []
            found.append(pytest.param(name, params, dtype, marks=marks, id=f"{name}-{params}-{dtype}"))
    return found


@pytest.mark.parametrize(("name", "params", "dtype"), _of_16_bits())
def test_every_value_of_16_bits(name: str, params: dict[str, Any], dtype: torch.dtype) -> None:
    x = every_value(dtype)
    verify(make(name, **params)(on_device(x)), exact(name, x, **params), LIMITS[dtype], x)


@pytest.mark.parametrize(("name", "params"), UNARY, ids=str)
def test_float32(name: str, params: dict[str, Any]) -> None:
    x = over_float32()
    verify(make(name, **params)(on_device(x)), exact(name, x, **params), limit_of(name, params, torch.float32), x)


@DTYPES
@pytest.mark.parametrize(("name", "params"), BINARY, ids=str)
def test_pairs(name: str, params: dict[str, Any], dtype: torch.dtype) -> None:
    a, b = pairs(dtype)
    result, wanted = make(name, **params)(on_device(a), on_device(b)), exact(name, a, b, **params)
    if name in ("MaximumFwdOp", "MinimumFwdOp"):
        # Of zeros of both signs either may be returned, by torch as well.
        result, wanted = result + 0.0, wanted + 0.0
    verify(result, wanted, limit_of(name, params, dtype), a, b)


@DTYPES
def test_quotients_are_truncated_as_torch_does(dtype: torch.dtype) -> None:
    """The quotient is rounded to float32 first: a float32 one may become the next whole number."""
    a, b = pairs(dtype)
    result = make("DivFwdOp", rounding_mode="trunc")(on_device(a), on_device(b))
    quotient = (a.float() / b.float()).double()
    verify(result, quotient.trunc(), 0.5, a, b)


@DTYPES
@pytest.mark.parametrize("weight", [0.25, 1.5])
def test_lerp(weight: float, dtype: torch.dtype) -> None:
    """Apart from the rounding of the result, exact to a float32 rounding of its terms."""
    a, b = pairs(dtype)
    fits = (b.float() - a.float()).isfinite() | ~(a + b).isfinite()  # the difference may overflow, as in torch
    a, b = a[fits], b[fits]
    wanted = torch.lerp(a.double(), b.double(), weight)
    terms = (a.double().abs() + b.double().abs()) * (1 + abs(weight))
    limit = 0.5001 * torch.finfo(dtype).eps * wanted.abs() + 2**-22 * terms + torch.finfo(dtype).smallest_normal * 1e-2
    weights = torch.full_like(a, weight)
    for result in (make("LerpFwdOp", weight=weight)(a, b), make("LerpTensorFwdOp")(a, b, weights)):
        assert torch.equal(result.isnan(), wanted.isnan())
        finite = wanted.to(dtype).isfinite()
        assert torch.equal(result[wanted.isinf()].double(), wanted[wanted.isinf()])
        assert ((result.double() - wanted).abs() <= limit)[finite].all()


def test_lerp_is_exact_at_its_ends() -> None:
    a, b = torch.randn(2, 1000) * torch.tensor([[1.0], [1e6]])
    for weight, end in ((0.0, a), (1.0, b)):
        assert torch.equal(make("LerpFwdOp", weight=weight)(a, b), end)


@DTYPES
def test_prelu(dtype: torch.dtype) -> None:
    x, weight = pairs(dtype)
    x, weight = x[: len(x) // 2 * 2].view(2, -1), weight[: len(x) // 2]
    verify(make("PreluFwdOp")(x, weight), exact("PreluFwdOp", x, weight), 0.5001, x, weight)


@DTYPES
@pytest.mark.parametrize("decimals", [2, -1])
def test_decimals(decimals: int, dtype: torch.dtype) -> None:
    """As torch computes it in float32; large numbers as they are, where scaling might overflow."""
    x = over_float32() if dtype == torch.float32 else every_value(dtype)
    wanted = torch.round(x.float(), decimals=decimals).to(dtype)
    if decimals > 0:
        wanted = torch.where(x.abs() >= 2**23, x, wanted)
    verify(make("RoundFwdOp", decimals=decimals)(on_device(x)), wanted.double(), 0.0, x)


def _by_dtype(
    cases: list[tuple[str, dict[str, Any]]], few: tuple[torch.dtype, ...], floats: tuple[torch.dtype, ...] = ()
) -> Any:
    """Each case in each dtype that its entry names: the first in all, the others in `few`, the rest nightly."""
    found = []
    for number, (name, params) in enumerate(cases):
        kinds = str(manifest.load_entry(name).signature.indices["T"])
        for dtype in (*WHOLE, *floats):
            if str(dtype).removeprefix("torch.") not in re.findall(r"\w+", kinds):
                continue
            if params and dtype == torch.bool:
                continue  # a factor of booleans is 0 or 1
            marks = [] if number == 0 or dtype in few else [NIGHTLY]
            found.append(pytest.param(name, params, dtype, marks=marks, id=f"{name}-{params}-{dtype}"))
    return pytest.mark.parametrize(("name", "params", "dtype"), found)


@_by_dtype(
    [(f"{name}FwdOp", {}) for name in ("Isinf", "Isnan", "Isfinite", "LogicalNot")],
    (torch.bfloat16, torch.bool),
    FLOATS,
)
def test_predicates(name: str, params: dict[str, Any], dtype: torch.dtype) -> None:
    x = every_value(dtype) if dtype.itemsize <= 2 else over_float32().to(dtype)
    assert torch.equal(make(name)(on_device(x)).cpu(), as_torch(name)(x))


@_by_dtype(
    [(f"{name}FwdOp", {}) for name in ("Le", "Eq", "Ne", "Gt", "Lt", "Ge", "LogicalAnd", "LogicalOr")],
    (torch.uint8, torch.bfloat16),
    FLOATS,
)
def test_comparisons(name: str, params: dict[str, Any], dtype: torch.dtype) -> None:
    a, b = _grid(dtype)
    assert torch.equal(make(name)(on_device(a), on_device(b)).cpu(), as_torch(name)(a, b))


@_by_dtype(
    [
        ("AddFwdOp", {"alpha": 3}),
        ("SubFwdOp", {"alpha": 101}),
        *((f"{name}FwdOp", {}) for name in ("Mul", "Maximum", "Minimum", "BitwiseAnd", "BitwiseOr", "BitwiseXor")),
    ],
    (torch.uint8, torch.bool),
)
def test_integers_wrap(name: str, params: dict[str, Any], dtype: torch.dtype) -> None:
    a, b = _grid(dtype)
    assert torch.equal(make(name, **params)(on_device(a), on_device(b)).cpu(), as_torch(name)(a, b, **params))


def _grid(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Every pair of bytes, or of special values of the wider dtypes."""
    values = every_value(dtype) if dtype in BYTES else special(dtype)
    a, b = torch.broadcast_tensors(values[:, None], values)
    return a.contiguous(), b.contiguous()


@_by_dtype(
    [(f"{n}FwdOp", {}) for n in ("Sign", "Abs", "Neg", "Floor", "Ceil", "Trunc", "Round", "BitwiseNot", "Reciprocal")],
    (torch.uint8, torch.bool),
)
def test_integers_of_one_tensor(name: str, params: dict[str, Any], dtype: torch.dtype) -> None:
    x = every_value(dtype) if dtype.itemsize <= 2 else special(dtype)
    assert torch.equal(make(name)(on_device(x)).cpu(), as_torch(name)(x))


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.uint8, torch.int64),
        *(pytest.param(dtype, marks=NIGHTLY) for dtype in (torch.int8, torch.int16, torch.int32)),
    ],
)
def test_integers_are_chosen_and_bounded(dtype: torch.dtype) -> None:
    """The ends of the dtype as tensors and as numbers, which are passed as 64 bits."""
    values, ends = special(dtype), torch.iinfo(dtype)
    grid = torch.meshgrid(values, values, values, indexing="ij")
    a, low, high = (x.contiguous() for x in grid)
    assert torch.equal(make("ClampTensorFwdOp")(a, low, high), torch.clamp(a, low, high))
    for bound in (ends.min, 1, ends.max - 1):
        assert torch.equal(make("ClampScalarFwdOp", min=bound)(a), torch.clamp(a, min=bound))
        assert torch.equal(make("ClampScalarFwdOp", min=bound, max=3)(a), torch.clamp(a, min=bound, max=3))
    mask = a < low
    assert torch.equal(make("WhereFwdOp")(mask, a, high), torch.where(mask, a, high))
    for value in (ends.min, ends.max):
        assert torch.equal(make("MaskedFillScalarFwdOp", value=value)(a, mask), a.masked_fill(mask, value))
        number = torch.tensor(value, dtype=dtype)
        assert torch.equal(make("MaskedFillFwdOp")(a, mask, number), a.masked_fill(mask, number))


@DTYPES
def test_choices_keep_every_bit(dtype: torch.dtype) -> None:
    """Zeros, infinities and subnormals as they are; NaN stays NaN."""
    values = special(dtype)
    a, b = (x.contiguous() for x in torch.broadcast_tensors(values[:, None], values))
    mask = torch.randn(a.shape, generator=torch.Generator().manual_seed(1)) < 0
    for name, result, wanted in (
        ("where", make("WhereFwdOp")(mask, a, b), torch.where(mask, a, b)),
        ("fill", make("MaskedFillScalarFwdOp", value=-math.inf)(a, mask), a.masked_fill(mask, -math.inf)),
        ("fill with", make("MaskedFillFwdOp")(a, mask, values[-1]), a.masked_fill(mask, values[-1])),
        # Of zeros of both signs either may be returned, by torch as well.
        ("from below", make("ClampTensorFwdOp")(a, b) + 0.0, torch.clamp(a, b) + 0.0),
        ("from above", make("ClampTensorFwdOp")(a, None, b) + 0.0, torch.clamp(a, max=b) + 0.0),
        ("between", make("ClampTensorFwdOp")(a, b, -b) + 0.0, torch.clamp(a, b, -b) + 0.0),
    ):
        assert torch.equal(result.isnan(), wanted.isnan())
        kept = ~wanted.isnan()
        assert torch.equal(bits(result)[kept], bits(wanted)[kept]), name


def test_choices_of_booleans() -> None:
    values = torch.tensor([False, True])
    mask, a, b = (x.contiguous() for x in torch.meshgrid(values, values, values, indexing="ij"))
    assert torch.equal(make("WhereFwdOp")(mask, a, b), torch.where(mask, a, b))
    assert torch.equal(make("MaskedFillFwdOp")(a, mask, values[1]), a.masked_fill(mask, values[1]))
    assert torch.equal(make("MaskedFillScalarFwdOp", value=True)(a, mask), a.masked_fill(mask, True))
