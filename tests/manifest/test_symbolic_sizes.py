"""Generated checks on symbolic sizes: they reach the outputs, mismatches are refused, unbacked ones pass."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from tests.manifest.calls import check
from tileops.errors import CheckError

Q, KV = (1, 5, 4, 8), (1, 7, 2, 8)


@pytest.fixture
def symbolic() -> FakeTensorMode:
    return FakeTensorMode(shape_env=ShapeEnv())


_serial = itertools.count()


def dynamic(mode: FakeTensorMode, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A fake tensor whose sizes are symbols with these hints."""
    context = StatelessSymbolicContext([DimDynamic.DYNAMIC] * len(shape))
    source = ConstantSource(f"t{next(_serial)}")
    return mode.from_tensor(torch.empty(shape, dtype=dtype), source=source, symbolic_context=context)


def test_symbolic_sizes_flow_to_the_outputs(symbolic: FakeTensorMode) -> None:
    checked = check("GemmFwdOp", dynamic(symbolic, 4, 6), dynamic(symbolic, 10, 6))
    assert all(isinstance(size, torch.SymInt) for size in checked.outputs[0].shape)
    silu = check("SiluAndMulFwdOp", dynamic(symbolic, 4, 6))
    assert isinstance(silu.outputs[0].shape[1], torch.SymInt)
    norm = check("RMSNormFwdOp", dynamic(symbolic, 4, 8), dynamic(symbolic, 8), normalized_shape=(8,))
    assert len(norm.outputs[0].shape) == 2
    attention = [dynamic(symbolic, *Q), dynamic(symbolic, *KV), dynamic(symbolic, *KV), *[None] * 5]
    assert len(check("GQADenseFwdOp", *attention).outputs[0].shape) == 4
    added = check("AddFwdOp", dynamic(symbolic, 4, 6), dynamic(symbolic, 4, 6))
    assert [size.node.hint for size in added.outputs[0].shape] == [4, 6]
    check("RoPEFwdOp", dynamic(symbolic, 2, 5, 3, 8))
    check(
        "RoPENeoxPositionIdsFwdOp",
        dynamic(symbolic, 5, 3, 8),
        dynamic(symbolic, 5, dtype=torch.int64),
        max_position=9,
    )


def test_symbolic_mismatches_are_refused(symbolic: FakeTensorMode) -> None:
    with pytest.raises(CheckError, match=r"inputs.b.shape"):
        check("GemmFwdOp", dynamic(symbolic, 4, 6), dynamic(symbolic, 10, 7))
    with pytest.raises(CheckError, match=r"D % 2 == 0"):
        check("RoPEFwdOp", dynamic(symbolic, 2, 5, 3, 7))


def test_unbacked_sizes_need_no_truth_value(symbolic: FakeTensorMode) -> None:
    """Sizes that depend on data (as of `nonzero`) pass the checks as assertions of the graph."""
    rows = symbolic.shape_env.create_unbacked_symint()
    torch._check(rows >= 0)
    with symbolic:
        a, b, wide, weight = torch.empty(rows, 6), torch.empty(10, 6), torch.empty(rows, 8), torch.empty(8)
    checked = check("GemmFwdOp", a, b)
    assert checked.outputs[0].shape[1] == 10
    check("SiluAndMulFwdOp", wide)
    check("RMSNormFwdOp", wide, weight, normalized_shape=(8,))
    heads = symbolic.shape_env.create_unbacked_symint()
    torch._check(heads >= 0)
    with symbolic:
        q, kv = torch.empty(1, rows, 6, 8), torch.empty(1, rows, heads, 8)
    check("GQADenseFwdOp", q, kv, kv, *[None] * 5)
