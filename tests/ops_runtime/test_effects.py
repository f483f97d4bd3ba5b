"""Calls that write: ``out``, mutated inputs, aliases, absent outputs; construction-time tensors; no inputs."""

from __future__ import annotations

import copy
import itertools
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from tests.ops_runtime.toys import entry
from tileops import backend
from tileops.backend import registry
from tileops.errors import BackendError, BackwardError, CheckError, OpNotAvailableError
from tileops.kernels.base import CallSpec, Kernel, KernelInterface, TensorSpec
from tileops.ops.base import Op
from tileops.ops.effects import check_written, possible_effects
from tileops.ops.facts import CallFacts

_numbers = itertools.count()

NORM_ENTRY = """
family: toys
status: implemented
signature:
  forall: {N: Dim, C: Dim, T: "DType[float32 | bfloat16]"}
  params:
    training: {type: bool, default: false}
  inputs:
    x: {dtype: T, shape: "[N, C]"}
    mean: {dtype: float32, shape: "[C]", optional: true, mutated: "training and present(mean)"}
  outputs:
    y: {dtype: T, shape: "[N, C]", buffer: out}
    saved: {dtype: float32, shape: "[C]", nullable: training}
workloads:
- {N: 2, C: 3, dtype_cases: [{T: float32}], label: tiny}
roofline: {flops: "N * C"}
"""

RELU_ENTRY = """
family: toys
status: implemented
signature:
  forall: {S: Shape, T: "DType[float32 | bfloat16]"}
  params:
    inplace: {type: bool, default: false}
  inputs:
    x: {dtype: T, shape: "[*S]", mutated: inplace}
  outputs:
    output: {dtype: T, shape: "[*S]", alias: x}
workloads:
- {S: [4], dtype_cases: [{T: float32}], label: tiny}
roofline: {flops: "prod(S)"}
"""

GATHER_ENTRY = """
family: toys
status: implemented
signature:
  forall: {R: Dim, C: Dim, M: Dim, T: "DType[float32 | bfloat16]"}
  params:
    table: {dtype: float32, shape: "[R, C]"}
    validate_inputs: {type: bool, default: false}
  inputs:
    index: {dtype: int64, shape: "[M]", device: cpu, values: "sample_indices(M, R)", requires: ["in_range(0, R)"]}
    x: {dtype: T, shape: "[M, C]"}
  outputs:
    output: {dtype: T, shape: "[M, C]"}
workloads:
- {R: 4, C: 3, M: 2, dtype_cases: [{T: float32}], label: tiny}
roofline: {flops: "M * C"}
"""

RAMP_ENTRY = """
family: toys
status: implemented
signature:
  params:
    n: {type: int}
    device: {type: "torch.device | None", default: null}
  outputs:
    output: {dtype: float32, shape: "[n]"}
workloads:
- {n: 4, label: tiny}
roofline: {flops: "n"}
"""


@dataclass(frozen=True)
class AnyCall(CallSpec):
    tensors_: tuple[TensorSpec | None, ...]
    params: tuple[Any, ...]


class AnyFwdInterface(KernelInterface):
    """``launch(*inputs, *held, *outputs)``."""

    call_spec = AnyCall
    tensors = ()


class AnyKernel(Kernel, AnyFwdInterface):
    devices = frozenset({"cpu"})

    @classmethod
    def programs(cls, call: AnyCall, config: Any) -> dict[str, Any]:
        return {}

    def bind(self, call: AnyCall) -> Any:
        return lambda *tensors: self.compute(call.params, *tensors)

    def compute(self, params: Any, *tensors: Any) -> None:
        raise NotImplementedError


class NormKernel(AnyKernel):
    def compute(self, params: Any, x: Any, mean: Any, y: Any, saved: Any) -> None:
        torch.mul(x.detach(), 2, out=y)
        if saved is not None:
            saved.copy_(x.detach().float().mean(0))
            if mean is not None:
                mean.copy_(saved)


class ReluKernel(AnyKernel):
    def compute(self, params: Any, x: Any, output: Any) -> None:
        torch.clamp(x.detach(), min=0, out=output)


class GatherKernel(AnyKernel):
    def compute(self, params: Any, index: Any, x: Any, table: Any, output: Any) -> None:
        torch.add(x.detach(), table[index % len(table)].to(x.dtype), out=output)


class RampKernel(AnyKernel):
    def compute(self, params: Any, output: Any) -> None:
        torch.arange(len(output), out=output, dtype=output.dtype)


def make(text: str, kernel: type[Kernel], init: Any) -> type[Op]:
    name = f"Wrote{next(_numbers)}FwdOp"

    def call_spec(self: Op, facts: CallFacts) -> AnyCall:
        names = (*self._input_names, *self._held, *self.entry.signature.outputs)
        return AnyCall(tuple(facts[item] for item in names), (), device=facts.device)

    namespace = {
        "entry": entry(name, text),
        "kernel_types": {"cpu": kernel},
        "interfaces": {"any": AnyFwdInterface},
        "__init__": init,
        "_call_spec": call_spec,
        "__module__": __name__,
        "__qualname__": name,
    }
    cls = type(name, (Op,), namespace)
    globals()[name] = cls  # where pickle looks for it
    return cls


def _norm_init(self: Op, training: bool = False, *, target: str | None = None) -> None:
    self.training = training
    Op.__init__(self, target=target)


def _relu_init(self: Op, inplace: bool = False, *, target: str | None = None) -> None:
    self.inplace = inplace
    Op.__init__(self, target=target)


def _gather_init(self: Op, table: Any, validate_inputs: bool = False, *, target: str | None = None) -> None:
    self.table = table
    self.validate_inputs = validate_inputs
    Op.__init__(self, target=target)


def _ramp_init(self: Op, n: int, device: Any = None, *, target: str | None = None) -> None:
    self.n = n
    self.device = device
    Op.__init__(self, target=target)


Norm: Any = make(NORM_ENTRY, NormKernel, _norm_init)
Relu: Any = make(RELU_ENTRY, ReluKernel, _relu_init)
Gather: Any = make(GATHER_ENTRY, GatherKernel, _gather_init)


@pytest.fixture
def acme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registry", registry._registry.copy())


def test_each_effect_branch_is_an_operator() -> None:
    stem = Norm.compile_op_names[0].split("_fwd")[0] + "_fwd"
    assert set(Norm.compile_op_names) == {
        stem + suffix
        for suffix in (
            "", "_out", "_without_saved", "_out_without_saved",
            "_writes_mean", "_writes_mean_out", "_writes_mean_without_saved", "_writes_mean_out_without_saved",
        )
    }  # fmt: skip
    schema = {str(operator._schema).split("(", 1)[1] for operator in Norm._operators.values()}
    assert "Tensor x, Tensor(a!)? mean, Tensor(b!)? out, str call) -> Tensor" in schema
    assert "Tensor x, Tensor? mean, Tensor? out, str call) -> (Tensor, Tensor)" in schema
    assert {len(effects.writes) for effects in possible_effects(Relu.entry)} == {0, 1}


def test_out_is_written_and_returned() -> None:
    op = Norm()
    x = torch.randn(2, 3)
    out = torch.empty(2, 3)
    y, saved = op(x, out=out)
    assert y is out
    assert saved is None
    assert torch.equal(out, x * 2)
    fresh, _ = op(x)
    assert fresh is not out
    assert torch.equal(fresh, out)


def test_a_mutated_input_is_written_under_its_condition() -> None:
    mean = torch.zeros(3)
    x = torch.randn(2, 3)
    before = mean._version
    y, saved = Norm(training=True)(x, mean)
    assert torch.equal(saved, x.mean(0))
    assert torch.equal(mean, saved)
    assert mean._version > before
    other = torch.zeros(3)
    y, saved = Norm()(x, other)
    assert saved is None
    assert not other.any()
    assert torch.equal(y, 2 * x)


def test_an_alias_is_the_input_object() -> None:
    x = torch.tensor([-1.0, 2.0])
    assert Relu(inplace=True)(x) is x
    assert x.tolist() == [0.0, 2.0]
    y = torch.tensor([[-1.0, 9.0], [2.0, 9.0]])
    assert Relu(inplace=True)(y[:, 0]).tolist() == [0.0, 2.0]
    assert y.tolist() == [[0.0, 9.0], [2.0, 9.0]]
    z = torch.tensor([-1.0])
    assert Relu()(z) is not z
    assert z.tolist() == [-1.0]


def test_values_of_another_sign_than_their_memory_are_written() -> None:
    memory = torch.tensor([-1.0, 2.0, -3.0])
    x = torch._neg_view(memory)
    before = x._version
    assert Relu(inplace=True)(x) is x
    assert memory.tolist() == [-1.0, 0.0, -3.0]
    assert x.tolist() == [1.0, 0.0, 3.0]
    assert x._version > before
    out = torch._neg_view(torch.zeros(2, 3))
    y, _ = Norm()(torch.ones(2, 3), out=out)
    assert y is out
    assert torch.equal(out, torch.full((2, 3), 2.0))
    with pytest.raises(CheckError, match="shares memory with x"):
        Norm()(memory.view(1, 3), out=torch._neg_view(memory.view(1, 3)))


def test_inference_tensors_are_written_in_inference_mode_only() -> None:
    with torch.inference_mode():
        x = torch.tensor([-1.0, 2.0])
        assert Relu(inplace=True)(x).tolist() == [0.0, 2.0]
        y = torch.tensor([-1.0, 2.0])
    for given in (y, y[:0], torch._neg_view(y)):
        with pytest.raises(CheckError, match=r"inference_mode\(\).*x.clone\(\)"):
            Relu(inplace=True)(given)
    assert y.tolist() == [-1.0, 2.0]
    assert Relu()(y).tolist() == [0.0, 2.0]


@pytest.mark.parametrize(
    ("out", "declaration", "words"),
    [
        (lambda x: torch.empty(2, 4), "outputs.y.buffer", r"\[2, 4\]"),
        (lambda x: torch.empty(2, 3, dtype=torch.bfloat16), "outputs.y.buffer", "bfloat16"),
        (lambda x: torch.empty(2, 3, device="meta"), "inputs.out", "meta"),
        (lambda x: torch.empty(3).expand(2, 3), "outputs.out", "one memory location"),
        (lambda x: x, "outputs.out", "shares memory with x"),
        (lambda x: x.flip(0).as_strided((2, 3), (3, 1)), None, ""),
        (lambda x: 3, "inputs.out", "int"),
    ],
)
def test_a_buffer_that_does_not_fit_is_named(out: Any, declaration: str | None, words: str) -> None:
    x = torch.ones(2, 3)
    if declaration is None:
        Norm()(x, out=out(x))
        return
    with pytest.raises(CheckError, match=words) as caught:
        Norm()(x, out=out(x))
    assert caught.value.declaration.startswith(declaration)


def test_overlap_is_what_shares_an_element() -> None:
    op = Norm()
    base = torch.zeros(10)
    x, out = base[0:6].view(2, 3), base[4:10].view(2, 3)
    with pytest.raises(CheckError, match="shares memory with x"):
        op(x, out=out)
    grid = torch.zeros(2, 6)
    op(grid[:, 0:3], out=grid[:, 3:6])  # side by side: their memory is interleaved, no element is shared
    op(grid[:, 0::2], out=grid[:, 1::2])
    with pytest.raises(CheckError, match="shares memory"):
        op(grid[:, 0:3], out=grid[:, 2:5])
    far = grid.as_strided((1, 3), (2**62, 2))  # the step of an axis of one element says nothing
    op(far, out=grid[:1, 1::2])
    with pytest.raises(CheckError, match="shares memory"):
        op(far, out=grid[:1, 0::2])
    nothing = torch.empty(1, 0).expand(3, 0)  # no element has two indices
    assert Relu(inplace=True)(nothing) is nothing


def _addresses(view: torch.Tensor) -> set[int]:
    rows, columns = (range(size) for size in view.shape)
    return {view.storage_offset() + i * view.stride(0) + j * view.stride(1) for i in rows for j in columns}


def test_overlap_agrees_with_sets_of_addresses() -> None:
    generator = np.random.default_rng(3)
    base = torch.zeros(64)
    effects = next(item for item in possible_effects(Norm.entry) if item.suffix == "_out")
    for _ in range(300):
        views = []
        for _ in range(2):
            sizes, steps = generator.integers(1, 4, 2), generator.integers(1, 7, 2)
            views.append(
                base.as_strided(tuple(map(int, sizes)), tuple(map(int, steps)), int(generator.integers(0, 20)))
            )
        x, out = views
        addresses = [_addresses(view) for view in views]
        try:
            check_written("toy", ("x", "mean", "out"), (x, None, out), effects)
        except CheckError:
            assert addresses[0] & addresses[1]
        else:
            assert not addresses[0] & addresses[1]


def test_nothing_runs_where_everything_written_is_empty() -> None:
    class Never(NormKernel):
        def compute(self, params: Any, *tensors: Any) -> None:
            raise AssertionError("an implementation ran")

    cls = make(NORM_ENTRY, Never, _norm_init)
    out = torch.empty(0, 3)
    y, saved = cls()(torch.empty(0, 3), out=out)
    assert y is out
    assert saved is None
    with pytest.raises(AssertionError, match="ran"):
        cls(training=True)(torch.empty(0, 3), torch.zeros(3))  # the mean holds elements
    x = torch.empty(0)
    assert Relu(inplace=True)(x) is x


def test_the_dispatcher_returns_the_same_objects() -> None:
    x = torch.randn(2, 3)
    mean, out = torch.zeros(3), torch.empty(2, 3)
    with torch.profiler.profile() as profile:
        y, saved = Norm(training=True)(x, mean, out=out)
    assert y is out
    assert torch.equal(mean, saved)
    assert any(event.key.endswith("_writes_mean_out") for event in profile.key_averages())


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("with_out", [False, True])
def test_opcheck_of_every_effect_branch(training: bool, with_out: bool) -> None:
    op = Norm(training)
    for mean in (None, torch.zeros(3)):
        out = torch.empty(2, 3) if with_out else None
        operator, _, _ = op._branches[True, mean is not None, with_out]
        torch.library.opcheck(operator, (torch.randn(2, 3), mean, out, op._call))


def test_compile_keeps_writes_and_identity() -> None:
    relu, norm = Relu(inplace=True), Norm(training=True)

    def step(x: torch.Tensor, mean: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.clone()
        relu(y)
        z, saved = norm(y, mean)
        return z, saved + 1

    x, mean = torch.randn(4, 3), torch.zeros(3)
    z, saved = torch.compile(step, fullgraph=True)(x, mean)
    torch.testing.assert_close(z, 2 * x.relu())
    torch.testing.assert_close(mean, x.relu().mean(0))
    torch.testing.assert_close(saved, mean + 1)


def test_gradients_of_calls_that_write() -> None:
    x = torch.randn(2, 3, requires_grad=True)
    y, _ = Norm(training=True)(x, torch.zeros(3))
    assert y.requires_grad
    with pytest.raises(BackwardError, match="no gradient formula"):
        y.sum().backward()
    with pytest.raises(BackwardError, match="writing a tensor that requires a gradient"):
        Relu(inplace=True)(x)
    with torch.no_grad():
        Relu(inplace=True)(x)
    y, _ = Norm()(x)
    with pytest.raises(BackwardError, match="no gradient formula"):
        y.sum().backward()


def test_gradients_of_calls_that_write_inside_transforms() -> None:
    x = torch.randn(2, 3)
    for op, rest in ((Norm(training=True), (torch.zeros(3),)), (Norm(), ())):
        with pytest.raises(BackwardError, match="no gradient formula"):
            torch.func.grad(lambda x, op=op, rest=rest: op(x, *rest)[0].sum())(x)
    with pytest.raises(BackwardError, match="writing a tensor that requires a gradient"):
        torch.func.grad(lambda x: Relu(inplace=True)(x.clone()).sum())(x)


def test_meta_tensors_are_returned_as_passed() -> None:
    out = torch.empty(2, 3, device="meta")
    y, saved = Norm(training=True)(torch.empty(2, 3, device="meta"), torch.empty(3, device="meta"), out=out)
    assert y is out
    assert saved.device.type == "meta"


def test_roofline_counts_writes() -> None:
    op = Norm(training=True)
    op(torch.ones(2, 3), torch.zeros(3))
    assert op.eval_roofline() == (6, 4 * (6 + 3 + 6 + 3 + 3))
    assert op.eval_roofline_read_bytes() == 4 * (6 + 3)


# Targets


def test_a_target_returns_what_it_was_given_to_write(acme: None) -> None:
    seen: list[Any] = []

    def build(x: Any, mean: Any, **params: Any) -> Any:
        def kernel(x: torch.Tensor, mean: Any, out: Any = None) -> Any:
            seen.append(out)
            y = torch.empty_like(x) if out is None else out
            return torch.mul(x, 2, out=y), None

        return kernel

    backend.register_kernel_builder(Norm.__name__, "acme", build)
    op = Norm(target="acme")
    op._cache_key = lambda *shapes: shapes
    x, out = torch.randn(2, 3), torch.empty(3, 2).t()
    assert op(x, out=out)[0] is out
    assert seen.pop() is out
    assert torch.equal(op(x)[0], 2 * x)
    assert seen.pop() is None


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (lambda x, mean, out: (out, torch.ones(3)), r"outputs\.saved: .* returned Tensor; .*return None"),
        (lambda x, mean, out: (out.resize_(7), None), r"outputs\.y: .* shape \(7,\); do not resize it"),
    ],
)
def test_what_a_target_may_not_do_with_absent_and_written_outputs(acme: None, kernel: Any, words: str) -> None:
    backend.register_kernel_builder(Norm.__name__, "acme", lambda *specs, **params: kernel)
    op = Norm(target="acme")
    op._cache_key = lambda *shapes: shapes
    with pytest.raises(BackendError, match=words):
        op(torch.ones(2, 3), out=torch.empty(2, 3))


def test_a_target_that_returns_another_tensor_is_an_error(acme: None) -> None:
    backend.register_kernel_builder(Relu.__name__, "acme", lambda *specs, **params: lambda x: x.clone())
    op = Relu(inplace=True, target="acme")
    op._cache_key = lambda *shapes: shapes
    with pytest.raises(BackendError, match=r"outputs.output: target 'acme' returned another tensor"):
        op(torch.ones(2))


# Construction-time tensors, tensors that stay on the CPU, contents


def test_construction_time_tensors_reach_the_kernel() -> None:
    table = torch.randn(4, 3)
    op = Gather(table)
    index, x = torch.tensor([3, 0]), torch.randn(2, 3)
    torch.testing.assert_close(op(index, x), x + table[index])
    table.zero_()  # the op reads the tensor that it was given
    torch.testing.assert_close(op(index, x), x)
    half = Gather(torch.ones(4, 3))
    assert torch.equal(half(index, x.bfloat16()), x.bfloat16() + 1)
    assert torch.equal(pickle.loads(pickle.dumps(half))(index, x), x + 1)
    assert torch.equal(copy.deepcopy(half)(index, x), x + 1)


def test_construction_time_tensors_are_arguments_of_the_operator() -> None:
    first, second = Gather(torch.ones(4, 3)), Gather(torch.zeros(4, 3))
    assert first._call == second._call
    index, x = torch.tensor([3, 0]), torch.randn(2, 3)
    compiled = torch.compile(lambda x: first(index, x) - second(index, x), fullgraph=True)
    torch.testing.assert_close(compiled(x), torch.ones(2, 3))
    operator = next(iter(Gather._operators.values()))
    torch.library.opcheck(operator, (index, x, torch.ones(4, 3), first._call))


def test_tensors_that_stay_on_the_cpu_do_not_choose_the_device() -> None:
    op = Gather(torch.empty(4, 3, device="meta"))
    assert op(torch.tensor([3, 0]), torch.empty(2, 3, device="meta")).device.type == "meta"
    with pytest.raises(CheckError, match="index is on meta, expected cpu"):
        op(torch.empty(2, dtype=torch.int64, device="meta"), torch.empty(2, 3, device="meta"))


def test_contents_are_read_only_where_asked() -> None:
    wrong, x = torch.tensor([7, 0]), torch.ones(2, 3)
    Gather(torch.ones(4, 3))(wrong, x)
    op = Gather(torch.ones(4, 3), validate_inputs=True)
    op(torch.tensor([3, 0]), x)
    with pytest.raises(CheckError, match=r"inputs.index.requires: 'in_range\(0, R\)' does not hold"):
        op(wrong, x)


# No call-time tensors


def test_an_op_without_tensors_takes_its_device_parameter() -> None:
    cls = make(RAMP_ENTRY, RampKernel, _ramp_init)
    assert cls(3)().tolist() == [0.0, 1.0, 2.0]
    assert cls(3, device=torch.device("meta"))().device.type == "meta"
    assert cls.compile_op_names == ()
    for wrong in ("nowhere", 1.5):
        with pytest.raises(CheckError, match=r"params\.device: expected a torch.device"):
            cls(3, device=wrong)
    missing = cls(3, device=f"cuda:{torch.cuda.device_count()}")
    with pytest.raises(OpNotAvailableError, match=r"params\.device: there is no cuda:"):
        missing()
    op = cls(4, device=torch.device("cpu"))
    op()
    assert op.eval_roofline() == (4, 16)


def test_an_op_without_tensors_in_graphs_and_under_modes() -> None:
    op = make(RAMP_ENTRY, RampKernel, _ramp_init)(3, device=torch.device("cpu"))
    assert torch.compile(lambda: op() + 1, fullgraph=True, backend="eager")().tolist() == [1.0, 2.0, 3.0]
    with FakeTensorMode():
        assert isinstance(op(), FakeTensor)
    equal = type(op)(3, device=torch.device("cpu"))  # the mode's call is that of this very op, not of an equal one
    with FlopCounterMode(display=False):
        equal()
    assert equal.eval_roofline() == (3, 12)
