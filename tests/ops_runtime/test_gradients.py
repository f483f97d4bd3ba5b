"""Gradient formulas: wired through torch's autograd, compiled, differentiated twice, with any layout of gradients."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, hessian, jacrev, jvp, vjp, vmap

from tests.ops_runtime.toys import fresh_kernel, make_op
from tileops.elementwise import AddFwdOp, SiluAndMulFwdOp
from tileops.errors import BackwardError
from tileops.gemm import GemmFwdOp
from tileops.norm import RMSNormFwdOp
from tileops.ops.gradients import Backward, Gradient

pytestmark = pytest.mark.in_tree_kernels


def _scaled(back: Backward) -> dict[str, Any]:
    (grad,) = back.grads
    seen.append(back)
    return {"x": grad * back.op.factor, "bias": grad if back.needed["bias"] else None}


seen: list[Backward] = []


def test_a_class_names_its_formula() -> None:
    cls = make_op(fresh_kernel(), gradient=Gradient(_scaled, saves=("x", "output", "bias")))
    x = torch.randn(3, requires_grad=True)
    y = cls(3.0)(x)
    y.backward(torch.ones(1).expand(3))
    assert x.grad is not None
    assert x.grad.tolist() == [3.0] * 3
    back = seen.pop()
    assert torch.equal(back.saved["x"], x)
    assert torch.equal(back.saved["output"], y)
    assert back.saved["bias"] is None
    assert back.shapes == {"x": (3,), "bias": None}
    assert (back.needed["x"], back.needed["bias"]) == (True, False)
    bias = torch.nn.Parameter(torch.zeros(3))
    cls(2.0)(x.detach(), bias).sum().backward()
    assert bias.grad is not None
    assert bias.grad.tolist() == [1.0] * 3
    torch.library.opcheck(cls._operator, (x, bias, cls(2.0)._call))


def test_no_gradient_is_tracked_where_none_is_needed() -> None:
    cls = make_op(fresh_kernel(), gradient=Gradient(_scaled))
    x = torch.randn(3, requires_grad=True)
    with torch.no_grad():
        assert not cls()(x).requires_grad
    assert not cls()(x.detach()).requires_grad


def _operands(trans_a: bool, trans_b: bool, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    a = torch.randn(*((5, 3) if trans_a else (3, 5)), dtype=dtype, requires_grad=True)
    b = torch.randn(*((4, 5) if trans_b else (5, 4)), dtype=dtype, requires_grad=True)
    return a, b


def _product(a: torch.Tensor, b: torch.Tensor, trans_a: bool, trans_b: bool) -> torch.Tensor:
    return (a.t() if trans_a else a) @ (b.t() if trans_b else b)


@pytest.mark.parametrize(("trans_a", "trans_b"), list(itertools.product((False, True), repeat=2)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gemm(trans_a: bool, trans_b: bool, dtype: torch.dtype) -> None:
    op = GemmFwdOp(trans_a, trans_b)
    a, b = _operands(trans_a, trans_b, dtype)
    weight = torch.randn(3, 4, dtype=dtype)
    for reduce in (torch.sum, lambda d: (d * weight).sum(), lambda d: torch.cat([d, d], 1)[:, ::2].sum()):
        found = torch.autograd.grad(reduce(op(a, b)), (a, b))
        expected = torch.autograd.grad(reduce(_product(a, b, trans_a, trans_b)), (a, b))
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1.6e-2, atol=1.6e-2) if dtype is torch.bfloat16 else (
                torch.testing.assert_close(ours, theirs)
            )


def test_gemm_twice_and_with_retained_graph() -> None:
    op = GemmFwdOp()
    # Small integers: every sum is exact in either order.
    a, b = (torch.randint(-2, 3, shape).float().requires_grad_() for shape in ((3, 5), (4, 5)))
    results = []
    for product in (op(a, b), _product(a, b, False, True)):
        (grad,) = torch.autograd.grad(product.square().sum(), a, create_graph=True)
        (second,) = torch.autograd.grad(grad.square().sum(), b, retain_graph=True)
        (again,) = torch.autograd.grad(grad.square().sum(), b)
        results.append((grad, second))
        assert torch.equal(second, again)
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


def test_only_the_gradients_that_are_wanted_are_computed() -> None:
    op, (a, b) = GemmFwdOp(), _operands(False, True, torch.float32)
    op(a, b.detach()).sum().backward()
    assert a.grad is not None
    assert b.grad is None


@pytest.mark.parametrize(
    ("left", "right"), [((4, 5), (4, 5)), ((4, 1), (5,)), ((), (2, 3)), ((1, 3), (2, 1, 3)), ((0, 3), (1, 3))]
)
@pytest.mark.parametrize("alpha", [1, -2.5])
def test_add(left: tuple[int, ...], right: tuple[int, ...], alpha: float) -> None:
    a, b = torch.randn(left, requires_grad=True), torch.randn(right, requires_grad=True)
    weight = torch.randn(torch.broadcast_shapes(left, right))
    op = AddFwdOp(alpha=alpha)
    found = torch.autograd.grad((op(a, b) * weight).sum(), (a, b))
    expected = torch.autograd.grad((torch.add(a, b, alpha=alpha) * weight).sum(), (a, b))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs)


def test_a_compiled_training_step() -> None:
    gemm, add = GemmFwdOp(), AddFwdOp(alpha=2)
    weight = torch.nn.Parameter(torch.randn(4, 5))
    bias = torch.nn.Parameter(torch.randn(4))
    x = torch.randn(3, 5)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return add(gemm(x, weight), bias).square().sum()

    expected = torch.autograd.grad(torch.add(x @ weight.t(), bias, alpha=2).square().sum(), (weight, bias))
    for function in (loss, torch.compile(loss, fullgraph=True)):
        for ours, theirs in zip(torch.autograd.grad(function(x), (weight, bias)), expected, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_inference_tensors_need_no_gradient() -> None:
    with torch.inference_mode():
        a = torch.randn(2, 3)
        assert not GemmFwdOp()(a, torch.randn(4, 3)).requires_grad


# torch.func

BATCHED = pytest.mark.filterwarnings("ignore:There is a performance drop")


class Model(torch.nn.Module):
    """A block with every operator that has a formula, ours or PyTorch's."""

    def __init__(self, ours: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.ours = ours
        self.norm = torch.nn.Parameter(torch.randn(8, generator=generator))
        self.up = torch.nn.Parameter(torch.randn(12, 8, generator=generator))
        self.down = torch.nn.Parameter(torch.randn(8, 6, generator=generator))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.ours:
            y = RMSNormFwdOp((8,), eps=1e-5)(x, self.norm)
            return AddFwdOp(alpha=0.5)(x, GemmFwdOp()(SiluAndMulFwdOp()(GemmFwdOp()(y, self.up)), self.down))
        y = F.rms_norm(x, (8,), self.norm, 1e-5)
        gate, up = F.linear(y, self.up).chunk(2, dim=-1)
        return x + 0.5 * F.linear(F.silu(gate) * up, self.down)


def _both(function: Any) -> None:
    """The same of both models."""
    results = [function(Model(ours)) for ours in (True, False)]
    for ours, theirs in zip(*map(torch.utils._pytree.tree_leaves, results), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


X = torch.linspace(-2, 2, 24).reshape(3, 8)


def _loss(model: Model, parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return functional_call(model, parameters, (x,)).sin().sum()


def test_grad_and_functional_call() -> None:
    _both(lambda model: grad(_loss, (1, 2))(model, dict(model.named_parameters()), X))
    _both(lambda model: vjp(model, X)[1](torch.ones(1).expand(3, 8)))


@BATCHED
def test_vmap_and_gradients_of_each_sample() -> None:
    _both(lambda model: vmap(model)(torch.stack([X, X + 1])))
    _both(lambda model: vmap(grad(lambda p, x: _loss(model, p, x[None])), (None, 0))(dict(model.named_parameters()), X))
    _both(lambda model: jacrev(model)(X))


def test_gradients_of_gradients_inside_transforms() -> None:
    a, b = torch.randn(3, 5), torch.randn(4, 5)

    def penalty(product: Any) -> Any:
        return grad(lambda a: grad(lambda b: product(a, b).square().sum())(b).square().sum())(a)

    torch.testing.assert_close(penalty(GemmFwdOp()), penalty(lambda a, b: a @ b.t()), rtol=1e-4, atol=1e-4)
    with pytest.raises(BackwardError, match="RMSNormBwdOp: backward: the operator has no gradient formula"):
        grad(lambda x: grad(lambda x: RMSNormFwdOp((8,))(x).sin().sum())(x).square().sum())(X)


def test_a_transform_below_autograd() -> None:
    b = torch.randn(4, 8, requires_grad=True)
    found = [
        torch.autograd.grad(grad(lambda x, product=product: product(x, b).square().sum())(X).sum(), b)[0]
        for product in (GemmFwdOp(), lambda x, b: x @ b.t())
    ]
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@pytest.mark.nightly
def test_grad_inside_a_compiled_function_is_refused_as_of_every_custom_operator() -> None:
    """A limit of PyTorch: once its own operators pass here, so should ours."""

    @torch.library.custom_op("tileops_tests::square", mutates_args=())
    def square(x: torch.Tensor) -> torch.Tensor:
        return x * x

    square.register_fake(torch.empty_like)
    square.register_autograd(
        lambda ctx, grad: 2 * grad * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    for op in (square, AddFwdOp()):
        arguments = (X, X)[: 1 if op is square else 2]
        step = torch.compile(lambda *given, op=op: grad(lambda *given: op(*given).sum())(*given), backend="eager")
        with pytest.raises(RuntimeError, match="setup_context"):
            step(*arguments)


def test_transforms_of_an_op_without_a_formula() -> None:
    op, x = make_op(fresh_kernel())(), torch.randn(3)
    with pytest.raises(BackwardError, match=f"{type(op).__name__}: backward: the operator has no gradient formula"):
        grad(lambda x: op(x).sum())(x)
    with pytest.raises(BackwardError, match="forward-mode"):
        jvp(op, (x,), (x,))
    with pytest.raises(BackwardError, match="forward-mode"):  # backwards, and forwards through that
        hessian(lambda x: op(x).sum())(x)
    # Where nothing is asked of it, an op is a function like any other.
    assert torch.equal(grad(lambda y: (op(x) * y).sum())(x), op(x))
    with torch.no_grad():
        assert torch.equal(grad(lambda y: (op(y).detach() * y).sum())(x), op(x))


@BATCHED
def test_vmap_of_an_op_without_a_formula() -> None:
    op, x = make_op(fresh_kernel())(), torch.randn(2, 3)
    assert torch.equal(vmap(op)(x), op(x))
    assert torch.equal(vmap(op, in_dims=1, out_dims=1)(x), op(x))
