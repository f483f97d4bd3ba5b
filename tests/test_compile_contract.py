"""Every implemented op with call-time tensors passes a cold fullgraph compile, with fixed and with varying
shapes.
"""

from __future__ import annotations

import importlib

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from tests.compile_contract import COLD_COMPILES, ColdCompile
from tileops import manifest
from tileops.ops.base import Op
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


def test_every_op_with_a_boundary_is_registered() -> None:
    expected = [name for name, entry in manifest.load_all().items() if entry.implemented and entry.has_boundary]
    assert sorted(case.op for case in COLD_COMPILES) == sorted(expected)


@pytest.mark.parametrize("case", COLD_COMPILES, ids=lambda case: case.op)
def test_cold_fullgraph_compile(case: ColdCompile) -> None:
    torch._dynamo.reset()
    op = build(case)
    assert op.compile_op_names
    tensors = case.tensors(run_device())
    compiled = torch.compile(lambda *args: first(op(*args)) * 2, fullgraph=True)
    torch.testing.assert_close(compiled(*tensors), reference(op, tensors) * 2, rtol=1e-5, atol=1e-5)


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
        passed = (*given, *[None] * (len(op._slots) - len(given)))
        operator = op._operator or op._branches[tuple(tensor is not None for tensor in passed)][0]
        torch.library.opcheck(operator, (*passed, *op._held.values(), op._call))
