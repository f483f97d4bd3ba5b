"""What users of similar libraries reported, on the elementwise operators: each test is one kind of failure."""

from __future__ import annotations

import math

import pytest
import torch

from tests.ops.elementwise_cases import make
from tileops import jit
from tileops.elementwise import AddFwdOp, MaskedFillScalarFwdOp, ReluFwdOp
from tileops.errors import CheckError

pytestmark = pytest.mark.in_tree_kernels


def test_offsets_beyond_32_bits() -> None:
    """Rows that lie 2**30 elements apart, the last beyond 2**31, read and written. Untouched memory costs nothing."""
    row = 2**30
    room = torch.empty(2 * row + 64, dtype=torch.bfloat16)
    x = room.as_strided((3, 64), (row, 1))
    near = torch.randn(3, 64, dtype=torch.bfloat16)
    x.copy_(near)
    mask = torch.empty(2 * row + 64, dtype=torch.bool).as_strided((3, 64), (row, 1)).copy_(near > 0)
    assert torch.equal(make("NegFwdOp")(x), -near)
    assert torch.equal(make("WhereFwdOp")(mask, x, -near), near.abs())
    assert torch.equal(make("EqFwdOp")(x.t(), near.t()), torch.ones(64, 3, dtype=torch.bool))
    make("ReluFwdOp", inplace=True)(x)
    assert torch.equal(x, near.relu())


@pytest.mark.nightly
def test_more_elements_than_32_bits_count() -> None:
    x = torch.zeros(2**31 + 16, dtype=torch.int8)
    x[-1] = 5
    y = make("NegFwdOp")(x)
    assert y[-1] == -5
    assert not y[:-1].any()


def test_views_that_only_torch_negates() -> None:
    """The imaginary part of a conjugate has the other sign in memory."""
    x = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert x.is_neg()
    assert make("NegFwdOp")(x).tolist() == [2.0, -4.0]
    assert make("AddFwdOp")(x, x).tolist() == [-4.0, 8.0]


def test_dtypes_that_arrays_do_not_know() -> None:
    x = torch.tensor([1.5, -2.0], dtype=torch.bfloat16, requires_grad=True)
    assert make("NegFwdOp")(x).tolist() == [-1.5, 2.0]
    with pytest.raises(CheckError, match="float8_e4m3fn"):
        make("NegFwdOp")(torch.zeros(3, dtype=torch.float8_e4m3fn))
    assert make("LogicalNotFwdOp")(torch.tensor([True, False])).tolist() == [False, True]


def test_numbers_do_not_change_what_is_compiled_or_computed() -> None:
    """A Python float is rounded to float32, an integer wraps; neither is compiled in, whatever its type."""
    x = torch.full((300,), 0.1)
    make("LeakyReluFwdOp")(x)
    before = jit.stats().compiled + jit.stats().loaded
    for slope in (0.01, 1, -2.5, math.inf, 1e-40):
        wanted = torch.nn.functional.leaky_relu(-x, slope)
        assert torch.equal(make("LeakyReluFwdOp", negative_slope=float(slope))(-x), wanted)
    assert jit.stats().compiled + jit.stats().loaded == before
    ends = torch.tensor([2**31 - 1, -(2**31)], dtype=torch.int32)
    assert torch.equal(make("AddFwdOp")(ends, ends), ends + ends)
    assert torch.equal(make("NegFwdOp")(ends), -ends)
    assert torch.equal(make("AbsFwdOp")(ends), ends.abs())


@pytest.mark.parametrize("size", [1, 31, 32, 33, 1023, 1025])
def test_nan_passes_from_either_side(size: int) -> None:
    for place in {0, size // 2, size - 1}:
        a, b = torch.ones(size), torch.zeros(size)
        a[place] = math.nan
        for name in ("MaximumFwdOp", "MinimumFwdOp", "AddFwdOp"):
            for operands in ((a, b), (b, a)):
                found = make(name)(*operands).isnan()
                assert found[place]
                assert found.sum() == 1
        assert make("ReluFwdOp")(a).isnan().sum() == 1
        assert make("SignFwdOp")(a)[place] == 0  # as torch has it


def test_clamps() -> None:
    x, nan = torch.tensor([-2.0, 0.5, 3.0, math.nan]), torch.tensor(math.nan)
    assert make("ClampTensorFwdOp")(x, nan).isnan().all()
    assert make("ClampTensorFwdOp")(x, None, nan).isnan().all()
    assert make("ClampScalarFwdOp", min=-1.0, max=1.0)(x)[:3].tolist() == [-1.0, 0.5, 1.0]
    assert make("ClampScalarFwdOp", min=-1.0, max=1.0)(x)[3].isnan()
    assert make("ClampScalarFwdOp", min=2.0, max=1.0)(x)[:3].tolist() == [1.0, 1.0, 1.0]
    small = torch.tensor([0, 1, 255], dtype=torch.uint8)
    for bounds in ({"min": -1}, {"max": -1}, {"min": -255, "max": -2}):  # these wrap, as in torch
        assert torch.equal(make("ClampScalarFwdOp", **bounds)(small), torch.clamp(small, **bounds))
    for min_value in (math.nan, 1.5):
        with pytest.raises(CheckError, match=rf"category\(T\) == 'float'.* not hold for T='int64', min={min_value};"):
            make("ClampScalarFwdOp", min=min_value)(torch.tensor([1, 2]))
    with pytest.raises(CheckError, match="ClampScalarFwdOp"):
        make("ClampScalarFwdOp")
    with pytest.raises(CheckError, match="ClampTensorFwdOp"):
        make("ClampTensorFwdOp")(x)


@pytest.mark.parametrize(
    ("name", "params", "wanted"),
    [
        ("EluFwdOp", {"alpha": math.inf}, [-math.inf, -0.0, 2.5, math.inf]),
        ("EluFwdOp", {"alpha": -math.inf}, [math.inf, -0.0, 2.5, math.inf]),
        ("EluFwdOp", {"alpha": math.nan}, [math.nan, -0.0, 2.5, math.inf]),
        ("HardtanhFwdOp", {"min_val": math.nan}, [math.nan] * 4),
        ("HardtanhFwdOp", {"min_val": -math.inf, "max_val": math.inf}, [-1e-3, -0.0, 2.5, math.inf]),
        ("SoftplusFwdOp", {"beta": 1e-40}, [math.inf] * 4),
        ("LeakyReluFwdOp", {"negative_slope": -math.inf}, [math.inf, math.nan, 2.5, math.inf]),
        ("RoundFwdOp", {"decimals": 39}, [-1e-3, -0.0, 2.5, math.inf]),
        ("RoundFwdOp", {"decimals": 2**31}, [-1e-3, -0.0, 2.5, math.inf]),
        ("RoundFwdOp", {"decimals": -39}, [-0.0, -0.0, 0.0, math.inf]),
        ("RoundFwdOp", {"decimals": -(2**63)}, [-0.0, -0.0, 0.0, math.inf]),
    ],
)
def test_extreme_parameters(name: str, params: dict, wanted: list[float]) -> None:
    result = make(name, **params)(torch.tensor([-1e-3, -0.0, 2.5, math.inf]))
    assert str(result.tolist()) == str(torch.tensor(wanted).tolist())


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("EluFwdOp", {"alpha": 1e39}),
        ("LeakyReluFwdOp", {"negative_slope": -1e39}),
        ("SoftplusFwdOp", {"beta": 1e300}),
        ("SoftplusFwdOp", {"threshold": 1e39}),
        ("LerpFwdOp", {"weight": 1e39}),
    ],
)
def test_parameters_beyond_float32_are_refused(name: str, params: dict) -> None:
    """As PyTorch does, which cannot convert them either."""
    with pytest.raises(CheckError, match=f"representable.{next(iter(params))}"):
        make(name, **params)


def test_bounds_beyond_the_dtype_are_refused() -> None:
    op = make("HardtanhFwdOp", max_val=7e4)
    assert op(torch.tensor([8e4])).tolist() == [7e4]
    with pytest.raises(CheckError, match=r"representable\(max_val"):
        op(torch.tensor([1.0], dtype=torch.float16))


def test_only_the_view_is_written() -> None:
    base = torch.arange(-6.0, 6.0)
    wanted = base[:8].relu()
    make("ReluFwdOp", inplace=True)(base[:8])
    assert torch.equal(base[:8], wanted)
    assert base[8:].tolist() == [2.0, 3.0, 4.0, 5.0]


def test_fills_of_booleans_are_truths() -> None:
    mask = torch.tensor([True, False])
    for value in (0.5, -0.5, 1e40, math.inf, math.nan, 2, 0):
        result = MaskedFillScalarFwdOp(value)(torch.zeros(2, dtype=torch.bool), mask)
        assert result.tolist() == [bool(value), False]


def test_zero_tensors_without_memory_are_zeros() -> None:
    zeros = torch._efficientzerotensor(4)
    assert torch.equal(ReluFwdOp()(zeros), torch.zeros(4))
    assert torch.equal(AddFwdOp()(zeros, torch.ones(4)), torch.ones(4))
