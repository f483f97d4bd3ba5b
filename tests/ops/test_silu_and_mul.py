"""SiluAndMul against the float64 reference."""

from __future__ import annotations

import pytest
import torch

from tests.ops.helpers import FLOATS, at_threads, bits, check, on_device
from tileops.elementwise import SiluAndMulFwdOp
from tileops.workloads import inputs, numerics
from tileops.workloads.elementwise import silu_and_mul

pytestmark = pytest.mark.in_tree_kernels


def values(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return on_device(inputs.draw(shape, dtype, inputs.generator("SiluAndMulFwdOp", "x")))


@pytest.mark.parametrize("size", [1, 2, 7, 15, 16, 17, 63, 64, 65, 100, 1536, 3071, 3072, 3073, 7000])
@pytest.mark.parametrize("dtype", FLOATS)
def test_row_lengths(dtype: torch.dtype, size: int) -> None:
    x = values((3, 2 * size), dtype)
    check(SiluAndMulFwdOp()(x), silu_and_mul(x), controls=size > 2)


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_layout(dtype: torch.dtype) -> None:
    x = values((19, 74), dtype)
    op, want = SiluAndMulFwdOp(), silu_and_mul(x)
    for name, view in inputs.layouts(x):
        y = op(view)
        check(y, want, context=name)
        assert y.is_contiguous()
    check(op(x[:1].expand(19, 74)), silu_and_mul(x[:1].expand(19, 74)))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("offset", range(16))
def test_storage_offsets(dtype: torch.dtype, offset: int) -> None:
    x = values((2, 150), dtype)
    check(SiluAndMulFwdOp()(inputs.at_offset(x, offset)), silu_and_mul(x))


@pytest.mark.parametrize("shape", [(0, 8), (4, 0), (1, 2)])
def test_small_and_empty(shape: tuple[int, int]) -> None:
    x = values(shape, torch.float32)
    y = SiluAndMulFwdOp()(x)
    assert y.shape == (shape[0], shape[1] // 2)
    check(y, silu_and_mul(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_half_precision_gate_is_rounded_once(dtype: torch.dtype) -> None:
    gate = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    gate = gate[gate.isfinite()]
    x = on_device(torch.stack((gate, torch.ones_like(gate)), dim=1))
    error = numerics.ulp_error(SiluAndMulFwdOp()(x), silu_and_mul(x))
    assert float(error.max()) <= (0.52 if dtype == torch.bfloat16 else 0.6)


def test_special_values() -> None:
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 88.8, -88.8, -100.0, 1e-40, 3e38, -3e38])
    gate, up = torch.meshgrid(special, torch.tensor([1.0, -1.0, 0.0, torch.inf, torch.nan]), indexing="ij")
    x = on_device(torch.stack((gate.flatten(), up.flatten()), dim=1))
    check(SiluAndMulFwdOp()(x), silu_and_mul(x))
    zeros = SiluAndMulFwdOp()(on_device(torch.tensor([[0.0, 1.0], [-0.0, 1.0]])))
    assert zeros.signbit().tolist() == [[False], [True]]


@pytest.mark.parametrize("dtype", FLOATS)
def test_results_do_not_depend_on_the_number_of_threads(dtype: torch.dtype) -> None:
    op = SiluAndMulFwdOp()
    for shape in ((1, 60000), (77, 2222)):
        x = values(shape, dtype).cpu()
        one, two = (at_threads(count, lambda x=x: op(x)) for count in (1, 2))
        assert torch.equal(bits(one), bits(two))
