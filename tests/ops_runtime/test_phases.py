"""The two phases of a call in their order, keyword-only inputs, autocast, composite ops."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

import pytest
import torch

from tests.ops_runtime.test_effects import NormKernel, make
from tests.ops_runtime.toys import ToyScaleFwdOp, entry, fresh_kernel, make_op
from tileops.errors import BackendError, CheckError
from tileops.ops.base import Op

PHASES_ENTRY = """
family: toys
status: implemented
signature:
  forall: {N: Dim, C: Dim, T: "DType[float32 | bfloat16]"}
  params:
    mode: {type: "'wide' | 'narrow'", default: wide}
    size: {type: int, default: 4}
  inputs:
    x: {dtype: T, shape: "Layout[mode, N, C]"}
    mean: {dtype: T, shape: "[C]", optional: true}
    late: {dtype: T, shape: "[C]", optional: true, kw_only: true}
  outputs:
    y: {dtype: T, shape: "Layout[mode, N, C]", buffer: out}
  types:
    Layout:
      params: {mode: "'wide' | 'narrow'", n: Dim, c: Dim}
      match: mode
      cases:
      - {when: wide, is: "[n, c]"}
      - {when: narrow, is: "[c]"}
  shape_rules:
  - "size > 0"
  - "mode == 'wide' or not present(mean)"
  - "C <= size"
workloads:
- {N: 2, C: 3, dtype_cases: [{T: float32}], label: tiny}
roofline: {flops: "C"}
"""


class PhasesKernel(NormKernel):
    runs: ClassVar[list[int]] = []

    def compute(self, params: Any, x: Any, mean: Any, late: Any, y: Any) -> None:
        self.runs.append(1)
        y.copy_(x if late is None else x + late)


def _init(self: Op, mode: str = "wide", size: int = 4, *, target: str | None = None) -> None:
    self.mode = mode
    self.size = size
    Op.__init__(self, target=target)


Phases: Any = make(PHASES_ENTRY, PhasesKernel, _init)
GOOD, WIDE = torch.ones(2, 3), torch.ones(2, 9)


def test_construction_checks_what_it_can() -> None:
    with pytest.raises(CheckError, match="mode"):
        Phases(mode="tall")
    with pytest.raises(CheckError, match=r"shape_rules\[0\]: 'size > 0'"):
        Phases(size=0)


@pytest.mark.parametrize(
    ("mode", "tensors", "declaration"),
    [
        # Each call is wrong in this phase and in every later one: the first is what is reported.
        ("narrow", {"x": None, "mean": GOOD[0], "out": GOOD}, "inputs.x"),  # presence
        ("narrow", {"x": WIDE, "mean": GOOD[0], "out": GOOD}, "shape_rules[1]"),  # domain restriction
        (
            "wide",
            {"x": torch.ones(9), "mean": GOOD[0], "out": GOOD},
            "inputs.x.shape",
        ),  # the branch
        ("wide", {"x": WIDE, "out": GOOD}, "shape_rules[2]"),  # the other refinements
        ("wide", {"x": GOOD, "out": torch.ones(2, 4)}, "outputs.y.buffer"),  # the buffer
        ("wide", {"x": GOOD, "out": GOOD}, "outputs.out"),  # and what writing needs
    ],
)
def test_call_checks_come_in_order(mode: str, tensors: dict[str, Any], declaration: str) -> None:
    PhasesKernel.runs.clear()
    with pytest.raises(CheckError) as caught:
        Phases(mode=mode)(**tensors)
    assert declaration in caught.value.declaration
    assert not PhasesKernel.runs


def test_keyword_only_inputs_follow_the_buffer() -> None:
    parameters = inspect.signature(Phases.forward).parameters
    assert list(parameters) == ["self", "x", "mean", "out", "late"]
    assert parameters["late"].kind is inspect.Parameter.KEYWORD_ONLY
    assert Phases(size=3)(GOOD, None, None, late=torch.ones(3)).tolist() == [[2.0] * 3] * 2
    with pytest.raises(TypeError):
        Phases()(GOOD, None, None, torch.ones(3))


def test_omitting_an_optional_input_is_passing_none() -> None:
    op = ToyScaleFwdOp()
    assert torch.equal(op(GOOD), op(GOOD, None))
    assert len(op._plans) == 1


def test_a_dtype_error_under_autocast_says_so() -> None:
    op = ToyScaleFwdOp()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert op(GOOD).dtype is torch.float32
        with pytest.raises(CheckError, match="autocast is on, and changes no dtype here"):
            op(GOOD, GOOD.bfloat16())
    with pytest.raises(CheckError) as caught:
        op(GOOD, GOOD.bfloat16())
    assert "autocast" not in str(caught.value)


# Composite ops

COMPOSITE_ENTRY = """
family: toys
status: implemented
signature:
  forall: {S: Shape, T: "DType[float32 | bfloat16]"}
  inputs:
    x: {dtype: T, shape: "[*S]"}
    bias: {dtype: T, shape: "[*S]", optional: true}
  outputs:
    output: {dtype: T, shape: "[*S]"}
composition:
  kind: composite
  stages:
  - {name: scale, op: ToyScaleFwdOp}
workloads:
- {S: [4], dtype_cases: [{T: float32}], label: tiny}
roofline: {flops: "2 * prod(S)"}
"""


def composite(result: Any = None) -> Any:
    stage = make_op(fresh_kernel())

    class ToyTwiceFwdOp(Op):
        entry = entry("ToyTwiceFwdOp", COMPOSITE_ENTRY)

        def __init__(self, *, target: str | None = None) -> None:
            super().__init__(target=target)
            self.scale = stage(2.0, target=target)

        def forward(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
            return self.scale(self.scale(x), bias) if result is None else result(x)

        def kernel_delegates(self) -> tuple[Op, ...]:
            return (self.scale,)

    return ToyTwiceFwdOp()


def test_a_composite_op_is_checked_and_runs_its_stages() -> None:
    op = composite()
    assert torch.equal(op(GOOD), GOOD * 4)
    assert torch.equal(op(GOOD, bias=GOOD), GOOD * 5)
    assert op.compile_op_names == ()
    assert op.eval_roofline() == (12, 72)
    assert list(op.iter_kernels()) == list(op.scale.iter_kernels()) != []
    with pytest.raises(CheckError, match=r"ToyTwiceFwdOp: inputs\.x"):
        op(GOOD.double())
    compiled = torch.compile(lambda x: op(x, x), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(GOOD), GOOD * 5)


@pytest.mark.parametrize(
    ("result", "words"), [(lambda x: x[:1], "shape"), (lambda x: x.double(), "float64"), (lambda x: x, "shares memory")]
)
def test_what_a_composition_returns_is_checked(result: Any, words: str) -> None:
    op = composite(result)
    for _ in range(2):
        with pytest.raises(BackendError, match=f"ToyTwiceFwdOp: outputs.output: the composition returned .*{words}"):
            op(GOOD)


def test_a_composite_op_checks_a_call_once_and_what_it_returns_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    results = iter([GOOD + 1, GOOD + 2, GOOD[:1], GOOD.clone(), torch.ones(7)])
    op = composite(lambda x: next(results))
    checked: list[Any] = []
    check = op._signature.check_call
    monkeypatch.setattr(op._signature, "check_call", lambda *call: checked.append(call) or check(*call))
    for want in (GOOD + 1, GOOD + 2):
        assert torch.equal(op(GOOD), want)
    with pytest.raises(BackendError, match="shape"):
        op(GOOD.clone())
    assert torch.equal(op(GOOD), GOOD)
    assert len(checked) == 1
    assert op(torch.ones(7)).shape == (7,)
    assert op.eval_roofline()[0] == 14
    assert len(checked) == 2
    for wrong in (GOOD.double(), GOOD.to_sparse(), torch.nested.nested_tensor([GOOD]), "x"):
        for _ in range(2):
            with pytest.raises(CheckError, match=r"ToyTwiceFwdOp: inputs\.x"):
                op(wrong)
