"""The gradient of SiluAndMul against the float64 reference, and autograd through the forward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.ops.helpers import FLOATS, at_threads, bits, build, check, on_device, spec_of
from tileops.elementwise import SiluAndMulBwdOp, SiluAndMulFwdOp
from tileops.kernels.elementwise.silu_and_mul_bwd_call import SiluAndMulBwdCall
from tileops.kernels.elementwise.silu_and_mul_bwd_cpu import SiluAndMulBwdCpuKernel
from tileops.workloads import inputs
from tileops.workloads.gated_backward import silu_and_mul_bwd

pytestmark = pytest.mark.in_tree_kernels


def operands(rows: int, size: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    shapes = {"grad_out": (rows, size), "x": (rows, 2 * size)}
    grad, x = (
        on_device(inputs.draw(shape, dtype, inputs.generator("SiluAndMulBwdOp", name)))
        for name, shape in shapes.items()
    )
    return grad, x


@pytest.mark.parametrize("size", [1, 2, 7, 15, 16, 17, 63, 64, 65, 100, 3071, 3072, 3073, 7000])
@pytest.mark.parametrize("dtype", FLOATS)
def test_row_lengths(dtype: torch.dtype, size: int) -> None:
    grad, x = operands(3, size, dtype)
    check(SiluAndMulBwdOp()(grad, x), silu_and_mul_bwd(grad, x), controls=dtype is torch.float32 and size > 2)


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_layout(dtype: torch.dtype) -> None:
    grad, x = operands(19, 37, dtype)
    op, expected = SiluAndMulBwdOp(), silu_and_mul_bwd(grad, x)
    for name, view in inputs.layouts(grad):
        check(op(view, x), expected, context=f"grad_out {name}")
    for name, view in inputs.layouts(x):
        found = op(grad, view)
        check(found, expected, context=f"x {name}")
        assert found.is_contiguous()
    # What the backward passes of sum(), of a mean over rows and of a broadcast hand over.
    for view in (grad.sum().expand(19, 37), grad[:1].expand(19, 37), grad[:, :1].expand(19, 37)):
        check(op(view, x), silu_and_mul_bwd(view, x))


@pytest.mark.parametrize("shape", [(0, 8), (4, 0), (1, 1), (2, 1)])
def test_small_and_empty(shape: tuple[int, int]) -> None:
    grad, x = operands(*shape)
    found = SiluAndMulBwdOp()(grad, x)
    assert found.shape == x.shape
    check(found, silu_and_mul_bwd(grad, x))


def test_special_values_follow_torch() -> None:
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 88.8, -88.8, -100.0, 1e-40, 1e30, -1e30])
    gate, up = torch.meshgrid(special, torch.tensor([1.0, -1.0, 0.0, torch.inf, torch.nan]), indexing="ij")
    x = on_device(torch.stack((gate.flatten(), up.flatten()), dim=1))
    grad = torch.ones_like(x[:, :1])
    wide = x.double().requires_grad_()
    (expected,) = torch.autograd.grad((F.silu(wide[:, :1]) * wide[:, 1:]).sum(), wide)
    check(SiluAndMulBwdOp()(grad, x), expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_results_do_not_depend_on_the_number_of_threads(dtype: torch.dtype) -> None:
    op = SiluAndMulBwdOp()
    grad, x = (item.cpu() for item in operands(7, 7001, dtype))
    one, two = (at_threads(count, lambda: op(grad, x)) for count in (1, 2))
    assert torch.equal(bits(one), bits(two))
    assert torch.equal(bits(at_threads(2, lambda: op(grad, x.t().contiguous().t()))), bits(one))


@pytest.mark.parametrize("unroll", SiluAndMulBwdCpuKernel.tile_space.parameters["unroll"])
def test_every_point_of_the_tile_space(unroll: int) -> None:
    grad, x = (item.cpu() for item in operands(3, 1000))
    found = torch.empty_like(x)
    call = SiluAndMulBwdCall(spec_of(grad), spec_of(x), spec_of(found))
    build(SiluAndMulBwdCpuKernel, call, unroll=unroll)(grad, x, found)
    check(found, silu_and_mul_bwd(grad, x))


def test_the_contract_of_the_operator() -> None:
    op = SiluAndMulBwdOp()
    torch.library.opcheck(op._operator, (*operands(3, 8), op._call))


@pytest.mark.parametrize("dtype", FLOATS)
def test_autograd_follows_torch(dtype: torch.dtype) -> None:
    _, x = operands(6, 34, dtype)
    leaf, wide = x.requires_grad_(), x.detach().double().requires_grad_()
    factors = on_device(torch.linspace(-1, 1, 34, dtype=dtype))
    for reduce in (
        lambda y: y.sum(),
        lambda y: torch.cat([y, y], 1)[:, ::2].mul(factors.to(y.dtype)).sum(),
        lambda y: (y.t() @ y).mul(0.1).sum() if dtype is torch.float32 else y.sum(),
    ):
        (found,) = torch.autograd.grad(reduce(SiluAndMulFwdOp()(leaf)), leaf)
        gate, up = wide.chunk(2, dim=-1)
        (expected,) = torch.autograd.grad(reduce(F.silu(gate) * up), wide)
        check(found, expected)
