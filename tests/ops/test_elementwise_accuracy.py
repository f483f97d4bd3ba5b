"""How exact the elementwise operators are: every value of the 16-bit dtypes, float32 over its whole range, every pair
of bytes, and the special values of all of them, against float64 and against torch.
"""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

from tests.ops.elementwise_cases import (
    BINARY,
    BYTES,
    HALF,
    LIMITS,
    UNARY,
    WHOLE,
    as_torch,
    every_value,
    exact,
    limit_of,
    make,
    over_float32,
    pairs,
    special,
    verify,
)
from tests.ops.helpers import FLOATS, bits, on_device
from tileops import manifest

pytestmark = pytest.mark.in_tree_kernels

#: The two differ in the conversion at both ends only: float16 is left to the nightly tests but for a few functions.
NIGHTLY = pytest.mark.nightly
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, pytest.param(torch.float16, marks=NIGHTLY)])
FLOAT16_TOO = {"ExpFwdOp", "TanhFwdOp", "GeluFwdOp", "SoftplusFwdOp", "ReciprocalFwdOp"}


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


@DTYPES
def test_alibi_of_rows_of_any_size(dtype: torch.dtype) -> None:
    """With eight heads all slopes are powers of two, so that products are exact."""
    for size in (1, 3, 16, 17, 63, 64, 65, 100, 515):
        op = make("AlibiFwdOp", seq_len=size, num_heads=8, out_dtype=dtype)
        slopes = 2.0 ** -torch.arange(1.0, 9.0)
        places = torch.arange(float(size))
        wanted = (-slopes[:, None, None] * (places[:, None] - places).abs()).to(dtype)
        assert torch.equal(bits(op()), bits(wanted))


@pytest.mark.parametrize(
    ("op", "sizes"),
    [("AlibiFwdOp", {"seq_len": 1, "num_heads": 2**50}), ("SinusoidalFwdOp", {"seq_len": 1, "d_model": 2**50})],
)
def test_positions_that_fit_no_memory_are_an_error(op: str, sizes: dict[str, int]) -> None:
    """Not the end of the process: what is a number for each head or pair does not grow object by object."""
    with pytest.raises((MemoryError, RuntimeError), match="allocate"):
        make(op, **sizes)()
