"""Every pointwise operator with the instructions of x86-64-v3, whose vectors are half as wide and have no masks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.ops.elementwise_cases import (
    BINARY,
    UNARY,
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
from tileops import settings
from tileops.errors import DispatchError, SettingsError
from tileops.jit import cpu_target
from tileops.testing import calls

pytestmark = pytest.mark.in_tree_kernels

NIGHTLY = pytest.mark.nightly
#: One dtype in the ordinary suite.
DTYPES = pytest.mark.parametrize(
    "dtype", [torch.bfloat16, *(pytest.param(dtype, marks=NIGHTLY) for dtype in (torch.float16, torch.float32))]
)
COMPARED = ("Eq", "Ne", "Gt", "Lt", "Ge", "Le", "LogicalAnd", "LogicalOr")
BITS = ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
PREDICATES = ("Isnan", "Isinf", "Isfinite", "LogicalNot", "BitwiseNot")
#: What the tests of one and two tensors, of integers and of choices leave out: one call each in the ordinary suite.
OTHERS = ("Dropout", "GeluAndMul", "GeluTanhAndMul", "Alibi", "Sinusoidal", "RoPELlama31", "YaRN", "LongRoPE")


@pytest.fixture(autouse=True)
def instruction_set() -> Iterator[None]:
    with settings.scope(cpu="x86-64-v3"):
        try:
            cpu_target()
        except SettingsError as error:
            pytest.skip(str(error))
        yield


@DTYPES
@pytest.mark.parametrize(("name", "params"), UNARY, ids=str)
def test_of_one_tensor(name: str, params: dict[str, Any], dtype: torch.dtype) -> None:
    x = over_float32() if dtype == torch.float32 else every_value(dtype)
    verify(make(name, **params)(x), exact(name, x, **params), limit_of(name, params, dtype), x)


@DTYPES
@pytest.mark.parametrize(("name", "params"), BINARY, ids=str)
def test_of_two_tensors(name: str, params: dict[str, Any], dtype: torch.dtype) -> None:
    a, b = pairs(dtype)
    result, wanted = make(name, **params)(a, b), exact(name, a, b, **params)
    if name in ("MaximumFwdOp", "MinimumFwdOp"):
        result, wanted = result + 0.0, wanted + 0.0  # either of two zeros
    verify(result, wanted, limit_of(name, params, dtype), a, b)


@pytest.mark.parametrize("name", [f"{name}FwdOp" for name in (*COMPARED, *BITS, *PREDICATES)])
def test_of_integers(name: str) -> None:
    values = every_value(torch.uint8)
    a, b = (x.contiguous() for x in torch.broadcast_tensors(values[:, None], values))
    operands = (a,) if name.removesuffix("FwdOp") in PREDICATES else (a, b)
    assert torch.equal(make(name)(*operands), as_torch(name)(*operands))


def test_choices() -> None:
    values = special(torch.bfloat16)
    a, b, c = (x.contiguous() for x in torch.meshgrid(values, values, values, indexing="ij"))
    mask = a < b
    for result, wanted in (
        (make("WhereFwdOp")(mask, a, c), torch.where(mask, a, c)),
        (make("MaskedFillScalarFwdOp", value=1.5)(c, mask), c.masked_fill(mask, 1.5)),
        (make("MaskedFillFwdOp")(c, mask, values[1]), c.masked_fill(mask, values[1])),
        (make("ClampTensorFwdOp")(a, b, c), torch.clamp(a, b, c)),
        (make("LerpFwdOp", weight=0.25)(a, b), torch.lerp(a, b, 0.25)),
        (make("LerpTensorFwdOp")(a, b, torch.full_like(a, 0.25)), torch.lerp(a, b, 0.25)),
        (make("PreluFwdOp")(a, values[3:4]), torch.nn.functional.prelu(a, values[3:4])),
        (make("DivFwdOp", rounding_mode="trunc")(a, b), (a.float() / b.float()).trunc().bfloat16()),
    ):
        torch.testing.assert_close(result, wanted, rtol=2.0**-8, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("name", [f"{name}FwdOp" for name in OTHERS])
def test_one_call(name: str) -> None:
    call = next(iter(calls.by_dtype(name).values()))
    calls.check(calls.example(call, torch.device("cpu")), call.case_id)


@pytest.mark.nightly
@pytest.mark.parametrize("name", calls.operators())
def test_small_calls(name: str) -> None:
    """Of every operator, in every dtype and layout."""
    for call in calls.by_dtype(name).values():
        item = calls.example(call, torch.device("cpu"))
        try:
            calls.check(item, call.case_id)
        except DispatchError:  # no kernel for this dtype on any CPU: a reason, see tests/contract
            continue
        for where, tensors in calls.relayouts(item):
            calls.check(item, f"{call.case_id}, {where}", tensors)
