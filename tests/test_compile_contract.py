"""Every implemented op passes a cold fullgraph compile, with fixed and with varying shapes."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from tests.compile_contract import COLD_COMPILES, ColdCompile, pointwise_calls
from tileops import manifest
from tileops.ops import without_tensors
from tileops.ops.base import Op
from tileops.testing import calls
from tileops.workloads import workload
from tileops.workloads.device import run_device

pytestmark = pytest.mark.in_tree_kernels


def build(case: ColdCompile) -> Op:
    family = manifest.load_entry(case.op).family
    return getattr(importlib.import_module(f"tileops.{family}"), case.op)(**case.params)


def reference(op: Op, tensors: tuple) -> torch.Tensor:
    result = workload(type(op).__name__).reference(*tensors, **op._construction.params)
    return first(result).float()


def first(result: torch.Tensor | tuple) -> torch.Tensor:
    """The result, or the first of several."""
    return result[0] if isinstance(result, tuple) else result


def test_every_op_is_registered() -> None:
    expected = {name for name, entry in manifest.load_all().items() if entry.implemented and not entry.composition}
    registered = [case.op for case in COLD_COMPILES]
    assert {*registered, *(call.op for call in pointwise_calls())} == expected
    assert len(set(registered)) == len(registered)


@pytest.mark.parametrize("case", COLD_COMPILES, ids=lambda case: case.op)
def test_cold_fullgraph_compile(case: ColdCompile) -> None:
    torch._dynamo.reset()
    op = build(case)
    tensors = case.tensors(run_device())
    assert bool(op.compile_op_names) == bool(tensors)
    compiled = torch.compile(lambda *args: first(op(*args)) * 2, fullgraph=True)
    torch.testing.assert_close(compiled(*tensors), reference(op, tensors) * 2, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("part", range(3))
def test_cold_fullgraph_compile_of_pointwise_operators(part: int) -> None:
    """A third of them in one graph; a call of each is its first."""
    torch._dynamo.reset()
    items = [calls.example(call, run_device()) for call in pointwise_calls()[part::3]]
    ops = [item.op for item in items]

    def every(tensors: list[tuple]) -> list[torch.Tensor]:
        return [op(*given) * 2 for op, given in zip(ops, tensors, strict=True)]

    results = torch.compile(every, fullgraph=True)([item.tensors for item in items])
    for item, result in zip(items, results, strict=True):
        wanted = (item.expected()[0] * 2).to(result.dtype)
        torch.testing.assert_close(result, wanted, rtol=1e-5, atol=1e-5, equal_nan=True, msg=item.call.op)


@pytest.mark.parametrize("case", [case for case in COLD_COMPILES if case.dynamic is not None], ids=lambda case: case.op)
def test_shapes_may_vary_without_another_compile(case: ColdCompile) -> None:
    torch._dynamo.reset()
    op = build(case)
    varying, *others = case.tensors(run_device())
    frames = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda *args: op(*args), fullgraph=True, backend=frames)
    for size in (6, 5, 4, 3):
        x = varying.narrow(case.dynamic, 0, size).contiguous()
        if size == 6:
            torch._dynamo.mark_dynamic(x, case.dynamic)
        torch.testing.assert_close(compiled(x, *others), reference(op, (x, *others)), rtol=1e-5, atol=1e-5)
    assert frames.frame_count == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", COLD_COMPILES, ids=lambda case: case.op)
def test_opcheck(case: ColdCompile, dtype: torch.dtype) -> None:
    op = build(case)
    tensors = [t.to(dtype) if t.is_floating_point() else t for t in case.tensors(run_device())]
    strided = [torch.stack([t, t], -1)[..., 0] if t.is_floating_point() else t for t in tensors]
    for given in (tensors, strided):
        if not given:
            torch.library.opcheck(without_tensors.operator, (case.op, op._call))
            continue
        passed = (*given, *[None] * (len(op._slots) - len(given)))
        operator = op._operator or op._branches[tuple(tensor is not None for tensor in passed)][0]
        torch.library.opcheck(operator, (*passed, *op._held.values(), op._call))
