"""Ops that are constructed inside ``torch.compile``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.ops_runtime.toys import ToyScaleFwdOp
from tileops.errors import CheckError
from tileops.norm import RMSNormFwdOp
from tileops.ops import graph_constants


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="eager", **options)


class Subclass(ToyScaleFwdOp):
    entry = ToyScaleFwdOp.entry

    def __init__(self, factor: float = 2.0, *, half: bool = False) -> None:
        super().__init__(factor / 2 if half else factor)


def test_the_graph_has_the_calls_alone() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return ToyScaleFwdOp(3.0)(x) + Subclass(3.0, half=True)(x) + ToyScaleFwdOp(factor=3.0)(x)

    x = torch.ones(4)
    run = compiled(program, fullgraph=True)
    assert run(x).tolist() == run(x).tolist() == program(x).tolist() == [7.5] * 4


def test_parameters_are_guarded() -> None:
    class Model(torch.nn.Module):
        factor = 2

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ToyScaleFwdOp(self.factor)(x)

    model = Model()
    run = compiled(model, fullgraph=True)
    assert run(torch.ones(1)).item() == 2.0
    model.factor = 5
    assert run(torch.ones(1)).item() == 5.0


def test_a_parameter_may_be_a_size_that_the_graph_leaves_open() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return ToyScaleFwdOp(x.shape[0])(x), RMSNormFwdOp(normalized_shape=x.shape[1:])(x.to("meta"))

    run = compiled(program, fullgraph=True, dynamic=True)
    for rows, columns in ((4, 3), (5, 2)):
        scaled, normalized = run(torch.ones(rows, columns))
        assert torch.equal(scaled, torch.full((rows, columns), float(rows)))
        assert normalized.shape == (rows, columns)


def test_an_op_may_leave_the_graph() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ToyScaleFwdOp]:
        op = ToyScaleFwdOp(3.0)
        return op(x), op

    y, op = compiled(program, fullgraph=True)(torch.ones(2))
    assert torch.equal(op(torch.ones(2)), y)
    assert op.eval_roofline() == (2, 16)


def test_what_cannot_be_constructed_breaks_the_graph() -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        return ToyScaleFwdOp(-1.0)(x)

    with pytest.raises(CheckError, match="factor > 0"):
        compiled(wrong)(torch.ones(1))
    with pytest.raises(torch._dynamo.exc.Unsupported, match="factor > 0"):
        compiled(wrong, fullgraph=True)(torch.ones(1))

    def from_a_tensor(x: torch.Tensor) -> torch.Tensor:
        return ToyScaleFwdOp(2.0, axes=x)(x)  # type: ignore[arg-type]

    with pytest.raises(CheckError, match=r"params\.axes"):
        compiled(from_a_tensor)(torch.ones(1))
    with pytest.raises(torch._dynamo.exc.Unsupported, match="outside of the compiled function"):
        compiled(from_a_tensor, fullgraph=True)(torch.ones(1))


def test_without_what_it_needs_of_torch_graphs_break_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_constants, "_recording", graph_constants._never)
    assert compiled(lambda x: Subclass(3.0)(x))(torch.ones(1)).item() == 3.0


def test_constructors_keep_their_signatures() -> None:
    assert list(inspect.signature(Subclass).parameters) == ["factor", "half"]
