"""The gradients of RMSNorm against the float64 reference: sizes, layouts, special values, threads, autograd."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.ops.helpers import FLOATS, at_threads, bits, build, check, on_device, spec_of
from tileops.kernels.norm.call_spec import RMSNormBwdCall
from tileops.kernels.norm.rms_norm_bwd_cpu import RMSNormBwdCpuKernel, chunk_height
from tileops.norm import RMSNormBwdOp, RMSNormFwdOp
from tileops.workloads import inputs
from tileops.workloads.norm import rms_norm_bwd
from tileops.workloads.numerics import compare, tolerance

pytestmark = pytest.mark.in_tree_kernels


def values(shape: tuple[int, ...], dtype: torch.dtype, name: str = "x") -> torch.Tensor:
    return on_device(inputs.draw(shape, dtype, inputs.generator("RMSNormBwdOp", name)))


def operands(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return values(shape, dtype, "grad_out"), values(shape, dtype), values(shape[-1:], dtype, "weight")


def verify(
    found: tuple[torch.Tensor, torch.Tensor | None],
    expected: tuple[torch.Tensor, torch.Tensor | None],
    context: str = "",
) -> None:
    """Both gradients; that of the weight, a sum over rows, relative to its size."""
    check(found[0], expected[0], context=context)
    assert (found[1] is None) == (expected[1] is None)
    if found[1] is not None and expected[1] is not None:
        size = max(1.0, float(expected[1].square().mean().sqrt()))
        mismatch = compare(found[1], expected[1], atol=tolerance(found[1].dtype) * size)
        assert mismatch is None, f"{context}: {mismatch}"


# Below, at and above one vector and one unrolled step of every instruction set.
@pytest.mark.parametrize("size", [1, 3, 4, 15, 16, 17, 63, 64, 65, 129, 576, 4099])
@pytest.mark.parametrize("dtype", FLOATS)
def test_row_lengths(dtype: torch.dtype, size: int) -> None:
    grad, x, weight = operands(5, size, dtype=dtype)
    expected = rms_norm_bwd(grad, x, weight, normalized_shape=(size,), eps=1e-5)
    found = RMSNormBwdOp((size,), eps=1e-5)(grad, x, weight)
    verify(found, expected)
    check(found[0], expected[0], controls=size > 1)


# One chunk and several, whole and ragged, and chunks of the largest height.
@pytest.mark.parametrize("rows", [1, 63, 64, 65, 129, 16384, 20000])
def test_row_counts(rows: int) -> None:
    grad, x, weight = operands(rows, 24)
    found = RMSNormBwdOp((24,), eps=1e-5)(grad, x, weight)
    verify(found, rms_norm_bwd(grad, x, weight, normalized_shape=(24,), eps=1e-5))


def test_the_height_of_chunks() -> None:
    assert [chunk_height(rows) for rows in (0, 1, 64, 65, 16384, 16385, 10**6)] == [1, 1, 1, 2, 256, 256, 256]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("eps", [None, 0.0, 1.0])
def test_eps_and_missing_weight_follow_torch(dtype: torch.dtype, eps: float | None) -> None:
    grad, x, _ = operands(4, 100, dtype=dtype)
    grad_x, grad_weight = RMSNormBwdOp((100,), eps=eps)(grad, x)
    assert grad_weight is None
    wide = x.double().requires_grad_()
    floor = torch.finfo(torch.float32).eps if eps is None else eps
    (expected,) = torch.autograd.grad(F.rms_norm(wide, (100,), eps=floor), wide, grad.double())
    check(grad_x, expected)
    check(grad_x, rms_norm_bwd(grad, x, normalized_shape=(100,), eps=eps)[0])


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_layout(dtype: torch.dtype) -> None:
    grad, x, weight = operands(3, 4, 37, dtype=dtype)
    op = RMSNormBwdOp((37,), eps=1e-5)
    expected = rms_norm_bwd(grad, x, weight, normalized_shape=(37,), eps=1e-5)
    for place, tensor in enumerate((grad, x, weight)):
        for name, view in inputs.layouts(tensor):
            tensors = [grad, x, weight]
            tensors[place] = view
            found = op(*tensors)
            verify(found, expected, f"{('grad_out', 'x', 'weight')[place]} {name}")
            assert all(item is not None and item.is_contiguous() for item in found)
    # What the backward passes of sum(), of a mean over rows and of a broadcast hand over.
    for view in (grad.sum().expand(3, 4, 37), grad[:1].expand(3, 4, 37), grad[..., :1].expand(3, 4, 37)):
        verify(op(view, x, weight), rms_norm_bwd(view, x, weight, normalized_shape=(37,), eps=1e-5))


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (0,), (2, 0)])
def test_batch_shapes(shape: tuple[int, ...]) -> None:
    grad, x = values((*shape, 4, 5), torch.float32, "grad_out"), values((*shape, 4, 5), torch.float32)
    weight = values((4, 5), torch.float32, "weight")
    found = RMSNormBwdOp((4, 5), eps=1e-5)(grad, x, weight)
    assert [item.shape for item in found if item is not None] == [x.shape, weight.shape]
    verify(found, rms_norm_bwd(grad, x, weight, normalized_shape=(4, 5), eps=1e-5))


def test_a_row_without_elements() -> None:
    empty = values((3, 0), torch.float32)
    found = RMSNormBwdOp((0,))(empty, empty, empty[0])
    assert [tuple(item.shape) for item in found if item is not None] == [(3, 0), (0,)]


def test_extreme_values() -> None:
    grad, x, weight = operands(6, 40)
    x[0] = 1e-20  # the cube of 1 / rms would leave float32
    x[1] *= 1e15
    for eps in (0.0, 1e-5):
        found = RMSNormBwdOp((40,), eps=eps)(grad, x, weight)
        expected = rms_norm_bwd(grad, x, weight, normalized_shape=(40,), eps=eps)
        size = expected[0].abs().amax(1, keepdim=True).clamp_min(1e-300)
        check((found[0].double() / size).float(), expected[0] / size)
    half = on_device(torch.full((2, 64), 300.0, dtype=torch.float16))
    assert not RMSNormBwdOp((64,), eps=0.0)(torch.ones_like(half), half)[0].abs().gt(1e-5).any()


def test_a_nan_stays_in_its_row_and_column() -> None:
    grad, x, weight = operands(4, 40)
    grad[2, 7] = torch.nan
    grad_x, grad_weight = RMSNormBwdOp((40,), eps=1e-5)(grad, x, weight)
    assert grad_x.isnan().all(1).tolist() == [False, False, True, False]
    assert not grad_x[[0, 1, 3]].isnan().any()
    assert grad_weight is not None
    assert grad_weight.isnan().nonzero().flatten().tolist() == [7]


@pytest.mark.parametrize("dtype", FLOATS)
def test_results_do_not_depend_on_the_number_of_threads(dtype: torch.dtype) -> None:
    grad, x, weight = (item.cpu() for item in operands(301, 1031, dtype=dtype))
    op = RMSNormBwdOp((1031,), eps=1e-5)

    def both(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([item.flatten() for item in op(grad, x, weight) if item is not None])

    one, two = (at_threads(count, lambda: both(x)) for count in (1, 2))
    assert torch.equal(bits(one), bits(two))
    assert torch.equal(bits(at_threads(2, lambda: both(x.t().contiguous().t()))), bits(one))


@pytest.mark.parametrize("unroll", RMSNormBwdCpuKernel.tile_space.parameters["unroll"])
def test_every_point_of_the_tile_space(unroll: int) -> None:
    grad, x, weight = (item.cpu() for item in operands(4, 1000))
    grad_x, grad_weight = torch.empty_like(x), torch.empty_like(weight)
    call = RMSNormBwdCall(
        spec_of(grad), spec_of(x), spec_of(weight), spec_of(grad_x), spec_of(grad_weight), normalized_ndim=1, eps=1e-5
    )
    build(RMSNormBwdCpuKernel, call, unroll=unroll)(grad, x, weight, grad_x, grad_weight)
    verify((grad_x, grad_weight), rms_norm_bwd(grad, x, weight, normalized_shape=(1000,), eps=1e-5))


def test_the_contract_of_both_operators() -> None:
    grad, x, weight = operands(3, 16)
    op = RMSNormBwdOp((16,), eps=1e-5)
    assert set(op.compile_op_names) == {"rms_norm_bwd", "rms_norm_bwd_without_grad_weight"}
    for factors in (weight, None):
        operator = op._branches[True, True, factors is not None][0]
        torch.library.opcheck(operator, (grad, x, factors, op._call))


def _loss(y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.cat([y, y], 1)[:, ::2].mul(weight).sum() + y.sum()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("weighted", [True, False])
def test_autograd_follows_torch(dtype: torch.dtype, weighted: bool) -> None:
    _, x, weight = operands(6, 34, dtype=dtype)
    leaves = [item.requires_grad_() for item in (x, weight)[: 1 + weighted]]
    doubles = [item.detach().double().requires_grad_() for item in leaves]
    op = RMSNormFwdOp((34,), eps=1e-5)
    for reduce in (torch.sum, lambda y: _loss(y, torch.linspace(-1, 1, 34, dtype=y.dtype, device=y.device))):
        found = torch.autograd.grad(reduce(op(*leaves)), leaves)
        second = doubles[1] if weighted else None
        expected = torch.autograd.grad(reduce(F.rms_norm(doubles[0], (34,), second, 1e-5)), doubles)
        for ours, theirs in zip(found, expected, strict=True):
            size = max(1.0, float(theirs.square().mean().sqrt()))
            mismatch = compare(ours, theirs, atol=tolerance(dtype) * size)
            assert mismatch is None, str(mismatch)
