"""Generated checks on symbolic sizes: they reach the outputs, mismatches are refused, unbacked ones pass."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    StatelessSymbolicContext,
)

from tests.manifest.calls import check
from tests.manifest.helpers import entry as parsed
from tests.manifest.helpers import simple
from tileops.errors import CheckError
from tileops.manifest import load_all
from tileops.manifest.workload import AbstractTensor, instantiate
from tileops.ops.dtypes import dtype_of, torch_parameters
from tileops.ops.signature_codegen import signature_for

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


#: What generated code may decide with; a comparison alone is handed on, whatever it is.
DECIDING = ("prim_", "lambda", " else ", "_member(")


# rule: 001 "The generated checks evaluate on SymInt"; "an op compiled with fullgraph=True contains none"
def test_no_entry_asks_for_the_truth_of_an_unbacked_size() -> None:
    """A call of every entry, with every size of every tensor unknown, passes its check. Equal checks run once, and only
    those that decide something.
    """
    seen: set[str] = set()
    for entry in load_all().values():
        call = instantiate(entry, 0)[0]
        held = {name: torch.empty(item.shape, dtype=dtype_of(item.dtype)) for name, item in call.held.items()}
        signature = signature_for(entry)
        construction = signature.construct(**torch_parameters(call.params), **held)
        source = signature.source(construction, [name in call.inputs for name in call.forward_order])
        if source.partition("\n")[2] in seen or not any(mark in source for mark in DECIDING):
            continue
        seen.add(source.partition("\n")[2])
        mode = FakeTensorMode(shape_env=ShapeEnv())
        tensors = [unbacked(mode, call.inputs[name]) if name in call.inputs else None for name in call.forward_order]
        try:
            signature.check_call(construction, tensors)
        except GuardOnDataDependentSymNode as error:
            pytest.fail(f"{entry.name}: {error}")


def unbacked(mode: FakeTensorMode, item: AbstractTensor) -> torch.Tensor:
    """A fake tensor of unknown sizes."""
    sizes = []
    for _ in item.shape:
        sizes.append(mode.shape_env.create_unbacked_symint())
        torch._check(sizes[-1] >= 0)
    with mode:
        return torch.empty(sizes, dtype=dtype_of(item.dtype))


# rule: 001 "The generated checks evaluate on SymInt"
def test_conditionals_and_members_over_unknown_sizes() -> None:
    text = """
    forall: {S: Shape, R: Shape, M: Dim, N: Dim}
    params: {limit: {type: int, default: 4}}
    inputs:
      x: {dtype: float32, shape: "[*S]"}
      y: {dtype: float32, shape: "[*R]"}
      z: {dtype: float32, shape: "[M, N]"}
    outputs: {o: {dtype: float32, shape: "[wide, *broadcast(S, R)]"}}
    let:
      wide: "max(M, N) if M > limit else min(M, N, 8)"
    shape_rules:
    - "M in (limit, 2 * limit) or N not in (3, 4)"
    - "S == R or (M, N) != S"
    - "all(n > 0 for n in S) and sum(n == 1 for n in S) < 2"
    - "(M > 2 if N > 3 else M > 1)"
    """
    toy = parsed(simple(text), "SymbolicFwdOp")
    assert not toy.problems
    signature = signature_for(toy)
    construction = signature.construct()
    mode = FakeTensorMode(shape_env=ShapeEnv())
    items = [AbstractTensor(name, shape, "float32") for name, shape in (("x", (1, 1)), ("y", (1, 1)), ("z", (1, 1)))]
    checked = signature.check_call(construction, [unbacked(mode, item) for item in items])
    assert len(checked.outputs[0].shape) == 3
    plain = signature.check_call(construction, [torch.empty(5, 7), torch.empty(5, 7), torch.empty(8, 6)])
    assert plain.outputs[0].shape == (8, 5, 7)
    assert isinstance(plain.outputs[0].shape[0], int)
