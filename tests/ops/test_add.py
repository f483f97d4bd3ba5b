"""Addition against the reference: broadcasting, layouts, the factor, integers."""

from __future__ import annotations

import pytest
import torch

from tests.ops.helpers import FLOATS, at_threads, bits, check, on_device, spec_of
from tileops.elementwise import AddFwdOp
from tileops.kernels.elementwise.call_spec import BinaryCall
from tileops.kernels.elementwise.pointwise_cpu import BinaryCpuKernel
from tileops.workloads import inputs
from tileops.workloads.elementwise import add

pytestmark = pytest.mark.in_tree_kernels

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def values(shape: tuple[int, ...], dtype: torch.dtype, name: str) -> torch.Tensor:
    return on_device(inputs.draw(shape, dtype, inputs.generator("AddFwdOp", name)))


SHAPES = [
    ((), ()),
    ((1,), (1,)),
    ((5,), ()),
    ((3, 1), (1, 4)),
    ((3, 17), (17,)),
    ((3, 17), (3, 1)),
    ((1, 17), (3, 1)),
    ((2, 3, 5, 7), (3, 1, 1)),
    ((2, 1, 5, 1), (1, 3, 1, 7)),
    ((2, 3, 4, 5, 6), (3, 1, 5, 1)),
    ((0, 4), (1, 4)),
    ((3, 0), ()),
    ((3073,), (3073,)),
    ((2, 6150), (6150,)),
]


@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_broadcasting(dtype: torch.dtype, a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> None:
    a, b = values(a_shape, dtype, "a"), values(b_shape, dtype, "b")
    for left, right in ((a, b), (b, a)):
        y = AddFwdOp()(left, right)
        assert y.shape == torch.broadcast_shapes(a_shape, b_shape)
        assert torch.equal(bits(y), bits(left + right))
        check(AddFwdOp(alpha=-0.75)(left, right), add(left, right, alpha=-0.75))


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_pair_of_layouts(dtype: torch.dtype) -> None:
    a, b = values((3, 18, 37), dtype, "a"), values((3, 18, 37), dtype, "b")
    op, want = AddFwdOp(alpha=2), add(a, b, alpha=2)
    for a_name, a_view in inputs.layouts(a):
        for b_name, b_view in inputs.layouts(b):
            y = op(a_view, b_view)
            check(y, want, context=f"a {a_name}, b {b_name}")
            assert y.is_contiguous()


def test_zero_strides_and_overlapping_inputs() -> None:
    a = values((6, 40), torch.float32, "a")
    op = AddFwdOp()
    for left, right in (
        (a[:1].expand(6, 40), a),
        (a[:, :1].expand(6, 40), a),
        (a[:1, :1].expand(6, 40), a[:, 1:2].expand(6, 40)),
        (a, a),
        (a[1:], a[:-1]),
        (a.flatten().as_strided((6, 40), (3, 1)), a.flatten().as_strided((6, 40), (1, 6))),
    ):
        assert torch.equal(op(left, right), left + right)


def test_channels_last() -> None:
    a = values((2, 8, 5, 6), torch.float32, "a").to(memory_format=torch.channels_last)
    b = values((8, 1, 1), torch.float32, "b")
    assert torch.equal(AddFwdOp()(a, b), (a + b).contiguous())


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("offset", range(16))
def test_storage_offsets(dtype: torch.dtype, offset: int) -> None:
    a, b = values((3, 50), dtype, "a"), values((50,), dtype, "b")
    y = AddFwdOp()(inputs.at_offset(a, offset), inputs.at_offset(b, (5 * offset) % 16))
    assert torch.equal(bits(y), bits(a + b))


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values_are_those_of_torch(dtype: torch.dtype) -> None:
    special = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-8, -1e-8, 65504.0, 3e38, 1e-40]
    a = on_device(torch.tensor(special, dtype=dtype))[:, None]
    b = a.view(1, -1)
    y, want = AddFwdOp()(a, b), a + b
    assert torch.equal(y.isnan(), want.isnan())
    assert torch.equal(bits(y)[~want.isnan()], bits(want)[~want.isnan()])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_finite_half_precision_value_is_kept(dtype: torch.dtype) -> None:
    """Subnormals too, in whole vectors, where the conversion instruction of some CPUs would flush them."""
    a = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    a = on_device(a[a.isfinite()])
    zeros = torch.zeros_like(a)
    assert torch.equal(bits(AddFwdOp()(a, zeros)), bits(a + zeros))


@pytest.mark.parametrize("alpha", [0, 2, -1, 0.3])
@pytest.mark.parametrize("dtype", FLOATS)
def test_factor(dtype: torch.dtype, alpha: float) -> None:
    a, b = values((4, 333), dtype, "a"), values((4, 333), dtype, "b")
    check(AddFwdOp(alpha=alpha)(a, b), add(a, b, alpha=alpha), controls=True)


@pytest.mark.parametrize("alpha", [1, 3, 127])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap(dtype: torch.dtype, alpha: int) -> None:
    limits = torch.iinfo(dtype)
    a = on_device(torch.tensor([limits.max, limits.min, 5, 0, 1, limits.max - 1] * 20, dtype=dtype)).view(4, 30)
    b = on_device(torch.tensor([1, limits.max, limits.min, 0, limits.max, 2] * 20, dtype=dtype)).view(4, 30)
    op = AddFwdOp(alpha=alpha)
    for left, right in ((a, b), (a, b[:1]), (a[:, :1], b), (a.t(), b.t()), (a.t()[:, ::2], b.t()[:, ::2])):
        assert torch.equal(op(left, right), torch.add(left, right, alpha=alpha))


def test_booleans() -> None:
    b = on_device(torch.tensor([True, False]))
    for alpha in (0, 1):
        want = torch.add(b[:, None], b, alpha=alpha)
        assert torch.equal(AddFwdOp(alpha=alpha)(b[:, None], b), want)


@pytest.mark.parametrize("dtype", FLOATS)
def test_results_do_not_depend_on_the_number_of_threads(dtype: torch.dtype) -> None:
    a, b = values((300, 700), dtype, "a").cpu(), values((300, 700), dtype, "b").cpu()
    for left, right in ((a, b), (a, b[:1]), (a.t(), b.t()), (a.t(), b.view(700, 300))):
        one, two = (at_threads(count, lambda x=left, y=right: AddFwdOp(alpha=0.5)(x, y)) for count in (1, 2))
        assert torch.equal(bits(one), bits(two))


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32])
def test_few_kernels_serve_any_mix_of_shapes(dtype: torch.dtype) -> None:
    programs = set()
    base = torch.zeros(8, 8, 8, 8, dtype=dtype)
    views = [
        base,
        base.transpose(0, 3),
        base[..., ::2],
        base[..., :1],
        base[:1],
        base[:, :1],
        base[0, 0],
        base[0, 0, 0, 0],
    ]
    for a in views:
        for b in views:
            try:
                output = torch.empty(torch.broadcast_shapes(a.shape, b.shape), dtype=dtype)
            except RuntimeError:
                continue
            for alpha in (1, 2):
                call = BinaryCall(function="add", a=spec_of(a), b=spec_of(b), output=spec_of(output), scalars=(alpha,))
                programs.update(BinaryCpuKernel.programs(call, BinaryCpuKernel.default_config(call)).values())
    assert len(programs) <= 8
