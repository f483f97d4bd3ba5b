"""RMSNorm against the float64 reference: sizes around every branch, layouts, special values, threads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.ops.helpers import FLOATS, at_threads, bits, build, check, on_device, spec_of
from tileops.kernels.norm.call_spec import RMSNormCall
from tileops.kernels.norm.rms_norm_cpu import RMSNormCpuKernel
from tileops.norm import RMSNormFwdOp
from tileops.workloads import inputs, norm, numerics

pytestmark = pytest.mark.in_tree_kernels


def values(shape: tuple[int, ...], dtype: torch.dtype, name: str = "x") -> torch.Tensor:
    return on_device(inputs.draw(shape, dtype, inputs.generator("RMSNormFwdOp", name)))


# Below, at and above one vector and one unrolled step of every instruction set, and beyond the first-level
# cache.
@pytest.mark.parametrize("size", [1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 576, 4096, 4099])
@pytest.mark.parametrize("dtype", FLOATS)
def test_row_lengths(dtype: torch.dtype, size: int) -> None:
    x, weight = values((5, size), dtype), values((size,), dtype, "weight")
    y = RMSNormFwdOp((size,), eps=1e-5)(x, weight)
    check(y, norm.rms_norm(x, weight, normalized_shape=(size,), eps=1e-5), controls=size > 1)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("eps", [None, 0.0, 1e-6, 1.0])
def test_eps_and_missing_weight_follow_torch(dtype: torch.dtype, eps: float | None) -> None:
    x = values((4, 100), dtype) * 1e-2
    y = RMSNormFwdOp((100,), eps=eps)(x)
    check(y, norm.rms_norm(x, normalized_shape=(100,), eps=eps))
    check(y, F.rms_norm(x, (100,), eps=eps).double())


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_layout_of_input_and_weight(dtype: torch.dtype) -> None:
    x, weight = values((3, 4, 37), dtype), values((37,), dtype, "weight")
    op = RMSNormFwdOp((37,), eps=1e-5)
    want = norm.rms_norm(x, weight, normalized_shape=(37,), eps=1e-5)
    for name, view in inputs.layouts(x):
        for weight_name, weight_view in inputs.layouts(weight):
            y = op(view, weight_view)
            check(y, want, context=f"x {name}, weight {weight_name}")
            assert y.is_contiguous()


def test_expanded_operands() -> None:
    x, weight = values((6, 33), torch.float32), values((33,), torch.float32, "weight")
    op = RMSNormFwdOp((33,), eps=1e-5)
    for view in (x[:1].expand(6, 33), x[:, :1].expand(6, 33)):
        check(op(view, weight), norm.rms_norm(view, weight, normalized_shape=(33,), eps=1e-5))
    constant = weight[:1].expand(33)
    check(op(x, constant), norm.rms_norm(x, constant, normalized_shape=(33,), eps=1e-5))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("offset", range(16))
def test_storage_offsets(dtype: torch.dtype, offset: int) -> None:
    x, weight = values((3, 70), dtype), values((70,), dtype, "weight")
    y = RMSNormFwdOp((70,), eps=1e-5)(inputs.at_offset(x, offset), inputs.at_offset(weight, 15 - offset))
    check(y, norm.rms_norm(x, weight, normalized_shape=(70,), eps=1e-5))


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0,), (2, 0)])
def test_batch_shapes(shape: tuple[int, ...]) -> None:
    x, weight = values((*shape, 4, 5), torch.float32), values((4, 5), torch.float32, "weight")
    y = RMSNormFwdOp((4, 5), eps=1e-5)(x, weight)
    assert y.shape == x.shape
    check(y, norm.rms_norm(x, weight, normalized_shape=(4, 5), eps=1e-5))


def test_a_row_of_a_packed_projection_is_read_in_place() -> None:
    qkv = values((7, 960), torch.bfloat16)
    heads = qkv[:, :576].view(7, 9, 64)
    weight = values((64,), torch.bfloat16, "weight")
    check(
        RMSNormFwdOp((64,), eps=1e-6)(heads, weight),
        norm.rms_norm(heads, weight, normalized_shape=(64,), eps=1e-6),
        controls=True,
    )


def test_large_float16_values_do_not_overflow() -> None:
    x = on_device(torch.full((2, 64), 300.0, dtype=torch.float16))
    assert torch.equal(RMSNormFwdOp((64,), eps=1e-5)(x), torch.ones_like(x))


def test_the_weight_is_applied_before_the_only_rounding() -> None:
    x, weight = values((64, 256), torch.bfloat16), values((256,), torch.bfloat16, "weight")
    y = RMSNormFwdOp((256,), eps=1e-5)(x, weight)
    error = numerics.ulp_error(y, norm.rms_norm(x, weight, normalized_shape=(256,), eps=1e-5))
    assert float(error.max()) < 0.51


def test_special_values_follow_torch() -> None:
    rows = torch.ones(6, 40)
    rows[0] = 0.0
    rows[1, 3] = torch.nan
    rows[2, 39] = torch.inf
    rows[3, 0] = -torch.inf
    rows[4] = -0.0
    rows[5] = 1e30
    for eps in (0.0, 1e-5):
        y, torch_y = RMSNormFwdOp((40,), eps=eps)(rows), F.rms_norm(rows, (40,), eps=eps)
        assert torch.equal(bits(y.nan_to_num(nan=7.0)), bits(torch_y.nan_to_num(nan=7.0)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_results_do_not_depend_on_the_number_of_threads(dtype: torch.dtype) -> None:
    x, weight = values((301, 1031), dtype).cpu(), values((1031,), dtype, "weight").cpu()
    op = RMSNormFwdOp((1031,), eps=1e-5)
    one, two = (at_threads(count, lambda: op(x, weight)) for count in (1, 2))
    assert torch.equal(bits(one), bits(two))
    strided = x.t().contiguous().t()
    assert torch.equal(bits(at_threads(2, lambda: op(strided, weight))), bits(one))


@pytest.mark.parametrize("unroll", RMSNormCpuKernel.tile_space.parameters["unroll"])
def test_every_point_of_the_tile_space(unroll: int) -> None:
    x, weight = values((4, 1000), torch.float32).cpu(), values((1000,), torch.float32, "weight").cpu()
    output = torch.empty_like(x)
    call = RMSNormCall(spec_of(x), spec_of(weight), spec_of(output), 1, 1e-5)
    build(RMSNormCpuKernel, call, unroll=unroll)(x, weight, output)
    check(output, norm.rms_norm(x, weight, normalized_shape=(1000,), eps=1e-5))


def test_shapes_and_strides_are_not_compiled_in() -> None:
    config = {"unroll": 4}
    seen = set()
    for rows, size in ((1, 64), (5, 4096), (3, 4097), (2048, 1)):
        x = torch.empty(rows, size + 3, device="cpu")[:, :size]
        call = RMSNormCall(spec_of(x), None, spec_of(torch.empty(rows, size)), 1, 1e-5)
        seen.add(tuple(RMSNormCpuKernel.programs(call, config).values()))
    assert len(seen) <= 2
