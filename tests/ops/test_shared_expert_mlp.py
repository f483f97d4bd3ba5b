"""The MLP of a shared expert, the first composite op: its results, and that everything reaches its stages."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ops.helpers import FLOATS, check, on_device
from tileops import settings
from tileops.autotune.report import KernelReport, Report
from tileops.elementwise import SiluAndMulFwdOp
from tileops.errors import CheckError
from tileops.gemm import GemmFwdOp, pack
from tileops.kernels.base import DeviceFacts
from tileops.kernels.gemm.paths import packed_layouts
from tileops.moe import SharedExpertMLPFwdOp
from tileops.ops.planned import PlannedCall, planned_calls
from tileops.workloads import inputs
from tileops.workloads.moe import shared_expert_mlp
from tileops.workloads.numerics import compare, tolerance

pytestmark = pytest.mark.in_tree_kernels

Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def operands(tokens: int, hidden: int, inner: int, dtype: torch.dtype = torch.float32) -> Operands:
    """Scaled such that intermediate and final results are of size one."""
    shapes = {"hidden_states": (tokens, hidden), "w_gate_up": (2 * inner, hidden), "w_down": (hidden, inner)}
    x, up, down = (
        on_device(inputs.draw(shape, torch.float32, inputs.generator("SharedExpertMLPFwdOp", name)))
        for name, shape in shapes.items()
    )
    return x.to(dtype), (up / max(hidden, 1) ** 0.5).to(dtype), (down / max(inner, 1) ** 0.5).to(dtype)


def staged(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """The reference with what a stage hands to the next rounded."""
    h = (x.double() @ up.double().t()).to(x.dtype).double()
    gate, value = h.chunk(2, dim=-1)
    y = (gate * torch.sigmoid(gate) * value).to(x.dtype).double()
    return y @ down.double().t()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("sizes", [(1, 64, 48), (5, 33, 17), (70, 64, 96)])
def test_against_the_reference(dtype: torch.dtype, sizes: tuple[int, int, int]) -> None:
    tensors = operands(*sizes, dtype)
    y = SharedExpertMLPFwdOp()(*tensors)
    check(y, staged(*tensors))
    mismatch = compare(y, shared_expert_mlp(*tensors), atol=2 * tolerance(dtype))
    assert mismatch is None, str(mismatch)


@pytest.mark.parametrize("sizes", [(0, 8, 4), (3, 8, 0), (3, 0, 4)])
def test_empty_sizes(sizes: tuple[int, int, int]) -> None:
    tensors = operands(*sizes)
    y = SharedExpertMLPFwdOp()(*tensors)
    assert y.shape == (sizes[0], sizes[1])
    check(y, shared_expert_mlp(*tensors))


def test_what_the_entry_declares_is_checked() -> None:
    x, up, down = operands(3, 8, 4)
    op = SharedExpertMLPFwdOp()
    for tensors, where in (
        ((x, up, down.t()), "w_down"),
        ((x, up[:-1], down), "w_gate_up"),
        ((x.double(), up, down), "hidden_states"),
        ((x, up, down.t().contiguous().t()), "w_down"),
    ):
        with pytest.raises(CheckError, match=f"SharedExpertMLPFwdOp: inputs.*{where}"):
            op(*tensors)


def test_stages_are_held_by_name_and_made_once() -> None:
    op = SharedExpertMLPFwdOp()
    held = op.held_delegates
    assert list(held) == ["gate_up", "activation", "down"]
    assert [type(item) for (item,) in held.values()] == [GemmFwdOp, SiluAndMulFwdOp, GemmFwdOp]
    assert op.kernel_delegates() == tuple(item for (item,) in held.values())
    assert op.delegate_for("down") is held["down"][0]
    other = op.delegate_for("down", trans_b=False)
    assert repr(other) == "GemmFwdOp(trans_a=False, trans_b=False)"
    assert op.held_delegates["down"] == (*held["down"], other)
    with pytest.raises(KeyError, match="no stage is called 'up'; delegate_types has gate_up, activation, down"):
        op.delegate_for("up")


def test_kernels_and_cost_are_those_of_the_stages() -> None:
    op, tensors = SharedExpertMLPFwdOp(), operands(5, 32, 16)
    assert not list(op.iter_kernels())
    op(*tensors)
    assert len(list(op.iter_kernels())) == 3
    assert op.eval_roofline()[0] == 6 * 5 * 16 * 32 + 6 * 5 * 16
    assert op.compile_op_names == ()
    calls = list(planned_calls(SharedExpertMLPFwdOp, DeviceFacts()))
    assert all(isinstance(call, PlannedCall) for call in calls)
    assert [call.site for call in calls[:3] if isinstance(call, PlannedCall)] == ["gemm", "gated", "gemm"]
    packed = [
        call
        for call in planned_calls(SharedExpertMLPFwdOp, DeviceFacts(), packed=True)
        if isinstance(call, PlannedCall) and call.packed
    ]
    products = [call.call.a.dtype for call in calls if isinstance(call, PlannedCall) and call.site == "gemm"]
    assert len(packed) == sum(len(packed_layouts(dtype)) for dtype in products)


def test_packed_weights() -> None:
    tensors = operands(4, 64, 32)
    op = SharedExpertMLPFwdOp()
    plain = op(*tensors)
    packs = [pack(weight) for weight in tensors[1:]]
    check(op(*tensors), plain.double())
    del packs


class Wrapped(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.op = SharedExpertMLPFwdOp()

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.op(*tensors)


def test_compiled_and_exported() -> None:
    tensors = operands(5, 32, 16)
    expected = shared_expert_mlp(*tensors)
    torch._dynamo.reset()
    fresh = SharedExpertMLPFwdOp()
    compiled = torch.compile(lambda *given: fresh(*given), fullgraph=True, backend="aot_eager")
    check(compiled(*tensors), expected)
    dynamic = ({0: torch.export.Dim("tokens", min=2)}, None, None)
    program = torch.export.export(Wrapped(), tensors, dynamic_shapes=(dynamic,))
    names = [node.target.name() for node in program.graph.nodes if hasattr(node.target, "name")]
    assert [name for name in names if name.startswith("tileops::")] == [
        "tileops::gemm_fwd",
        "tileops::silu_and_mul_fwd",
        "tileops::gemm_fwd",
    ]
    check(program.module()(*tensors), expected)
    longer = operands(9, 32, 16)
    check(program.module()(*longer), shared_expert_mlp(*longer))


def test_copies() -> None:
    tensors = operands(5, 32, 16)
    op = SharedExpertMLPFwdOp()
    op.request_tune()
    for other in (pickle.loads(pickle.dumps(op)), copy.deepcopy(op)):
        assert [item.tune for item in (other, *other.kernel_delegates())] == [True] * 4
    assert op.delegate_for("gate_up", trans_a=True).tune
    other = pickle.loads(pickle.dumps(SharedExpertMLPFwdOp()))
    check(other(*tensors), shared_expert_mlp(*tensors))


def test_gradients_flow_through_the_stages() -> None:
    tensors = operands(5, 32, 16)
    leaves = [item.clone().requires_grad_() for item in tensors]
    doubles = [item.double().requires_grad_() for item in tensors]
    found = torch.autograd.grad(SharedExpertMLPFwdOp()(*leaves).sin().sum(), leaves)
    expected = torch.autograd.grad(shared_expert_mlp(*doubles).sin().sum(), doubles)
    for ours, theirs in zip(found, expected, strict=True):
        check(ours, theirs)


def test_tuning_reaches_the_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def tune(kernel: Any, call: Any, *, op: str, **options: Any) -> Report:
        asked.append((op, kernel.__name__))
        best = kernel.default_config(call)
        return Report((KernelReport(kernel.__name__, op, "", best, best, 1e-6, 1e-6, (), 1, 0.1, persisted=False),))

    monkeypatch.setattr("tileops.autotune.session.tune", tune)
    gemm, gated = ("GemmFwdOp", "GemmCpuKernel"), ("SiluAndMulFwdOp", "GatedCpuKernel")
    tensors = operands(4, 32, 16)
    op = SharedExpertMLPFwdOp()
    with settings.scope(cache_dir=str(tmp_path)):
        assert len(op.autotune(*tensors).kernels) == 3
        assert asked == [gemm, gated, gemm]
        assert [item.tune for item in (op, *op.kernel_delegates())] == [True] * 4
        check(op(*tensors), shared_expert_mlp(*tensors))
        asked.clear()
        calls = [
            call.call for call in planned_calls(SharedExpertMLPFwdOp, DeviceFacts()) if isinstance(call, PlannedCall)
        ]
        SharedExpertMLPFwdOp().autotune(calls=calls[:2])  # each goes to the first stage that takes it
        assert asked == [gemm, gated]
