"""Ops as torch operators: compile, export, transforms, autograd, profiler, and the guards of the eager
path.
"""

from __future__ import annotations

import json

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.utils._python_dispatch import TorchDispatchMode

from tests import processes
from tests.ops_runtime.toys import ToyScaleFwdOp, fresh_kernel, make_op
from tests.store.helpers import environment
from tileops.errors import BackwardError, CheckError
from tileops.ops import dispatch
from tileops.ops.base import Op

OPERATOR = torch.ops.tileops.toy_scale_fwd.default


class Names(TorchDispatchMode):
    """Notes the operators that pass through the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.fixture
def count_plans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Counts the calls that took the dispatcher."""
    taken: list[str] = []
    original = Op._dispatched

    def dispatched(self: Op, tensors: tuple) -> object:
        taken.append(type(self).__name__)
        return original(self, tensors)

    monkeypatch.setattr(Op, "_dispatched", dispatched)
    return taken


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        ("RMSNormFwdOp", "rms_norm_fwd"),
        ("GQADenseFwdOp", "gqa_dense_fwd"),
        ("RoPENeoxPositionIdsFwdOp", "rope_neox_position_ids_fwd"),
        ("SiluAndMulFwdOp", "silu_and_mul_fwd"),
        ("SSDDecodeFwdOp", "ssd_decode_fwd"),
        ("FP8LightningIndexerFwdOp", "fp8_lightning_indexer_fwd"),
        ("MaxPool2dFwdOp", "max_pool2d_fwd"),
        ("YaRNRoPEFwdOp", "yarn_rope_fwd"),
    ],
)
def test_operator_names(cls: str, name: str) -> None:
    assert dispatch.operator_name(cls) == name


def test_schema() -> None:
    assert str(OPERATOR._schema) == "tileops::toy_scale_fwd(Tensor x, Tensor? bias, str call) -> Tensor"
    assert ToyScaleFwdOp.compile_op_names == ("toy_scale_fwd",)


@pytest.mark.parametrize(
    "params",
    [
        {"a": 1, "b": 0.1, "c": None, "d": True, "e": "x", "f": (1, (2,)), "g": [1, (2.5, None)]},
        {"a": float("inf"), "b": -float("inf"), "c": torch.bfloat16, "d": 1e300, "e": ()},
    ],
)
def test_construction_travels_as_text(params: dict) -> None:
    text = dispatch.encode(params, "acme")
    assert dispatch.decode(text) == (params, "acme")
    assert dispatch.encode(dict(reversed(params.items())), "acme") == text


def test_nan_travels_and_objects_do_not() -> None:
    (params, _) = dispatch.decode(dispatch.encode({"a": float("nan")}, None))
    assert params["a"] != params["a"]
    with pytest.raises(TypeError, match="cannot travel"):
        dispatch.encode({"a": object()}, None)


def test_a_graph_node_runs_on_the_living_op_or_on_a_rebuilt_one() -> None:
    kernel = fresh_kernel()
    cls = make_op(kernel)
    op = cls(3.0)
    call = op._call
    assert dispatch.find(cls, call) is op
    del op
    rebuilt = dispatch.find(cls, call)
    assert rebuilt.factor == 3.0
    assert dispatch.find(cls, call) is rebuilt
    x = torch.ones(2)
    assert cls._operator(x, None, call).tolist() == [3.0, 3.0]


def test_a_dispatched_call_belongs_to_the_op_that_was_called() -> None:
    first, second = ToyScaleFwdOp(5.0), ToyScaleFwdOp(5.0)
    with Names():
        first(torch.ones(3))
    assert first.dtype is torch.float32
    assert second.dtype is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", [lambda x: x, lambda x: x.t(), lambda x: x[:, ::2], lambda x: x[:1].expand(3, 4)])
def test_opcheck(dtype: torch.dtype, layout) -> None:
    call = ToyScaleFwdOp(3.0)._call
    x = layout(torch.randn(3, 4, dtype=dtype))
    torch.library.opcheck(OPERATOR, (x, None, call))
    torch.library.opcheck(OPERATOR, (x, x.clone(), call))


def test_opcheck_with_gradients_stops_at_the_backward() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(OPERATOR, (x, None, ToyScaleFwdOp()._call), test_utils=checks)


def test_dynamic_shapes_compile_once() -> None:
    op = ToyScaleFwdOp(3.0)
    frames = CompileCounter()
    compiled = torch.compile(lambda x: op(x + 1, x), fullgraph=True, dynamic=True, backend=frames)
    for rows in (2, 3, 5, 8):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), (x + 1) * 3 + x)
    assert frames.frame_count == 1


def test_compile_in_a_module_with_parameters() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = torch.nn.Parameter(torch.randn(4))
            self.scale = ToyScaleFwdOp(3.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.scale(x, self.bias.expand_as(x).contiguous()).relu()

    layer = Layer()
    x = torch.randn(2, 4)
    expected = layer(x)
    y = torch.compile(layer, fullgraph=True)(x)
    torch.testing.assert_close(y, expected)
    with pytest.raises(BackwardError, match="ToyScaleFwdOp: backward"):
        y.sum().backward()


def test_a_wrong_call_under_compile_says_why() -> None:
    op = ToyScaleFwdOp()
    with pytest.raises(Exception, match="float64"):
        torch.compile(lambda x: op(x), fullgraph=True)(torch.ones(2, dtype=torch.float64))


def test_export_round_trip(tmp_path) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ToyScaleFwdOp(3.0)(x, x)

    rows = torch.export.Dim("rows", min=2, max=64)
    program = torch.export.export(Model(), (torch.randn(4, 3),), dynamic_shapes=({0: rows},))
    path = tmp_path / "model.pt2"
    torch.export.save(program, path)
    x = torch.randn(9, 3)
    torch.testing.assert_close(torch.export.load(path).module()(x), 4 * x)
    call = next(node.args[-1] for node in program.graph.nodes if node.op == "call_function")
    assert json.loads(call)["params"]["factor"] == 3.0


@pytest.mark.in_tree_kernels
def test_an_exported_program_runs_in_a_process_that_never_made_the_op(tmp_path) -> None:
    from tileops.elementwise import AlibiFwdOp, ReluFwdOp
    from tileops.norm import RMSNormFwdOp

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 64), requires_grad=False)
            self.norm = RMSNormFwdOp((64,), eps=1e-6)
            self.relu = ReluFwdOp(inplace=True)
            self.alibi = AlibiFwdOp(2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.relu(self.norm(x, self.weight) * 2) + self.alibi().sum()

    model, x = Model(), torch.linspace(-1, 1, 192).view(3, 64)
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(model, (x,)), path)
    code = (
        "import sys, torch, tileops.elementwise\n"
        "assert not hasattr(torch.ops.tileops, 'no_such_operator')\n"
        "x = torch.linspace(-1, 1, 192).view(3, 64)\n"
        "torch.save(torch.export.load(sys.argv[1]).module()(x), sys.argv[2])"
    )
    result = tmp_path / "result.pt"
    done = processes.run("-c", code, path, result, env=environment())
    assert done.returncode == 0, done.stderr
    assert torch.equal(torch.load(result), model(x))


def test_threads_that_ask_for_a_class_at_once_get_one() -> None:
    code = (
        "import sys, threading, torch\n"
        "from tileops import elementwise\n"
        "sys.setswitchinterval(1e-6)\n"
        "found = []\n"
        "threads = [threading.Thread(target=lambda: found.append(elementwise.TanhFwdOp)) for _ in range(4)]\n"
        "[thread.start() for thread in threads], [thread.join() for thread in threads]\n"
        "assert found == [elementwise.TanhFwdOp] * 4, found"
    )
    done = processes.run("-c", code, env=environment())
    assert done.returncode == 0, done.stderr


def test_no_gradient_formula_is_an_error_at_backward_only() -> None:
    op = ToyScaleFwdOp()
    x = torch.randn(3, requires_grad=True)
    bias = torch.nn.Parameter(torch.randn(3))
    for y in (op(x), op(x.detach(), bias), op(x.to(torch.bfloat16))):
        assert y.requires_grad
        with pytest.raises(BackwardError, match=r"ToyScaleFwdOp: .*no gradient formula"):
            y.sum().backward()
    with torch.no_grad():
        assert not op(x).requires_grad
    assert not op(x.detach()).requires_grad


def test_an_unused_result_does_not_stop_the_backward_of_the_rest() -> None:
    x = torch.randn(3, requires_grad=True)
    ToyScaleFwdOp()(x)
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2.0] * 3


def test_vmap_takes_the_dispatcher() -> None:
    op = ToyScaleFwdOp(3.0)
    x = torch.randn(5, 2, 4)
    torch.testing.assert_close(torch.func.vmap(op)(x), x * 3)


def test_func_grad_says_that_there_is_no_formula() -> None:
    op = ToyScaleFwdOp()
    with pytest.raises(BackwardError, match="ToyScaleFwdOp"):
        torch.func.grad(lambda x: op(x).sum())(torch.randn(3))


def test_func_jvp_says_that_there_is_no_formula() -> None:
    op = ToyScaleFwdOp()
    with pytest.raises(BackwardError, match="ToyScaleFwdOp"):
        torch.func.jvp(op, (torch.randn(3),), (torch.randn(3),))


def test_jit_trace_records_the_operator() -> None:
    op = ToyScaleFwdOp(3.0)
    traced = torch.jit.trace(lambda x: op(x), torch.randn(3), check_trace=False)
    assert "tileops::toy_scale_fwd" in str(traced.graph)
    assert traced(torch.ones(3)).tolist() == [3.0] * 3


def test_make_fx_records_the_operator() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(ToyScaleFwdOp(3.0))(torch.randn(3)).graph
    assert any(node.target is OPERATOR for node in graph.nodes)


def test_fake_tensors_need_no_kernel() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    kernel = fresh_kernel()
    op = make_op(kernel)()
    with FakeTensorMode():
        assert op(torch.ones(3, 2).t()).shape == (2, 3)
    assert not kernel.builds


def test_subclasses_are_asked() -> None:
    class Marked(torch.Tensor):
        pass

    y = ToyScaleFwdOp(3.0)(torch.ones(2).as_subclass(Marked))
    assert y.tolist() == [3.0, 3.0]


def test_plain_calls_skip_the_dispatcher(count_plans: list[str]) -> None:
    op = ToyScaleFwdOp()
    x = torch.ones(3)
    op(x)
    op(torch.nn.Parameter(x).detach(), bias=x)
    with torch.no_grad():
        op(torch.nn.Parameter(x))
    with torch.inference_mode():
        op(x)
    assert count_plans == []


@pytest.mark.parametrize(
    "mode",
    ["dispatch mode", "fake mode", "autocast", "profiler", "gradient", "neg bit", "vmap", "tracing", "dual"],
)
@pytest.mark.parametrize("bias", [False, True])
def test_what_has_to_be_seen_takes_the_dispatcher(mode: str, bias: bool, count_plans: list[str]) -> None:
    scale = ToyScaleFwdOp()
    other = torch.ones(3)

    def op(x: torch.Tensor) -> torch.Tensor:
        return scale(x, other.to(x.dtype)) if bias else scale(x)

    x = torch.ones(3)
    op(x)
    op(x)
    assert not count_plans  # the plan is known by now: it must be left all the same
    if mode == "dispatch mode":
        with Names() as names:
            op(x)
        assert "tileops::toy_scale_fwd" in names.seen
    elif mode == "autocast":
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert op(x).dtype is torch.float32
            with pytest.raises(CheckError, match="float64"):
                op(x.double())
    elif mode == "profiler":
        with torch.profiler.profile() as profile:
            op(x)
        assert "tileops::toy_scale_fwd" in {event.key for event in profile.key_averages()}
    elif mode == "fake mode":
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode(allow_non_fake_inputs=True):
            op(x)
    elif mode == "vmap":
        torch.func.vmap(lambda t: op(x) + t)(torch.ones(2, 3))
    elif mode == "tracing":
        assert "toy_scale_fwd" in str(torch.jit.trace(lambda t: op(x) + t, x, check_trace=False).graph)
    elif mode == "dual":
        with torch.autograd.forward_ad.dual_level():
            op(x)
            with pytest.raises(BackwardError, match="forward-mode"):
                op(torch.autograd.forward_ad.make_dual(x, torch.ones(3)))
    elif mode == "gradient":
        op(x.requires_grad_())
    else:
        op(torch._neg_view(x))
    assert count_plans
