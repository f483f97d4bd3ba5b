"""Each operator through the layouts, sizes, dtypes and programs that callers use. A new one joins by existing."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from tileops import backend
from tileops.errors import BackwardError, CheckError, DispatchError, OpNotAvailableError, TileOpsError
from tileops.manifest.workload import Call
from tileops.testing import calls
from tileops.testing.calls import Example


def _examples(found: list[Call], device: torch.device, target: str) -> Iterator[Example]:
    """Those of the calls that the target takes; a target may decline a call, with a reason."""
    ran = False
    for call in found:
        item = calls.example(call, device, target)
        try:
            item.op(*item.tensors)
        except (DispatchError, OpNotAvailableError):
            continue
        ran = True
        yield item
    assert ran, "the target declines every call"


def _first(name: str, device: torch.device, target: str) -> Example:
    return next(_examples(calls.small_calls(name), device, target))


def test_dtypes_and_presence(name: str, target: str, device: torch.device, thorough: bool) -> None:
    found = calls.small_calls(name) if thorough else calls.one_of_each(name)
    for item in _examples(found, device, target):
        calls.check(item, item.call.case_id)


def test_layouts(name: str, target: str, device: torch.device) -> None:
    for item in _examples(list(calls.by_dtype(name).values())[:2], device, target):
        for where, tensors in calls.relayouts(item):
            calls.check(item, f"{item.call.case_id}, {where}", tensors)


def test_odd_sizes(name: str, target: str, device: torch.device) -> None:
    for call in calls.odd_calls(name):
        item = calls.example(call, device, target)
        shapes = [list(tensor.shape) for tensor in item.tensors if tensor is not None]
        with contextlib.suppress(DispatchError, OpNotAvailableError):
            calls.check(item, f"shapes {shapes}")


def test_results_are_fresh_and_inputs_unchanged(name: str, target: str, device: torch.device) -> None:
    item = _first(name, device, target)
    before = [None if tensor is None else tensor.clone() for tensor in item.tensors]
    results = [item.op(*item.tensors) for _ in range(2)]
    flat = [tensor for result in results for tensor in (result if isinstance(result, tuple) else (result,))]
    kept = [tensor for tensor in flat if tensor is not None]
    storages = {tensor.untyped_storage().data_ptr() for tensor in kept if tensor.numel()}
    assert len(storages) == sum(1 for tensor in kept if tensor.numel())
    written = item.op._thread.plan.record.checked.written
    for slot, tensor, was in zip(item.op._input_names, item.tensors, before, strict=True):
        if tensor is not None and was is not None and slot not in written:
            assert torch.equal(tensor.isnan(), was.isnan())
            assert torch.equal(tensor.nan_to_num(), was.nan_to_num())


def test_meta_tensors(name: str, target: str, device: torch.device) -> None:
    for call in calls.by_dtype(name).values():
        item = calls.example(call, torch.device("meta"), target)
        result = item.op(*item.tensors)
        first = result[0] if isinstance(result, tuple) else result
        assert first.device.type == "meta"
        assert tuple(first.shape) == next(iter(call.outputs.values())).shape


def test_wrong_calls_name_the_declaration(name: str, target: str, device: torch.device) -> None:
    item = _first(name, device, target)
    for place, tensor in enumerate(item.tensors):
        if tensor is None:
            continue
        wrong: dict[str, Any] = {
            "a number": 3,
            "complex numbers": torch.zeros(tensor.shape, dtype=torch.complex32, device=tensor.device),
        }
        if len([other for other in item.tensors if other is not None]) > 1:
            wrong["another device"] = tensor.to("meta")
        for what, value in wrong.items():
            tensors = (*item.tensors[:place], value, *item.tensors[place + 1 :])
            with pytest.raises(CheckError) as caught:
                item.op(*tensors)
            assert name in str(caught.value), what
        # Another rank, which an operator that broadcasts may take.
        with contextlib.suppress(TileOpsError):
            item.op(*item.tensors[:place], tensor.reshape(*tensor.shape, 1, 1), *item.tensors[place + 1 :])


def test_copies(name: str, target: str, device: torch.device) -> None:
    item = _first(name, device, target)
    expected = item.expected()
    for other in (copy.deepcopy(item.op), pickle.loads(pickle.dumps(item.op))):
        assert repr(other) == repr(item.op)
        calls.verify(other(*item.tensors), expected, "a copy")


def test_gradients_or_a_clear_error(name: str, target: str, device: torch.device) -> None:
    item = _first(name, device, target)
    tensors = tuple(
        tensor.clone().requires_grad_() if tensor is not None and tensor.is_floating_point() else tensor
        for tensor in item.tensors
    )
    leaves = [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]
    with torch.no_grad():
        item.op(*tensors)
    try:
        result = item.op(*tensors)
    except BackwardError:
        assert item.op._branches  # it writes one of them
        return
    first = result[0] if isinstance(result, tuple) else result
    if not leaves or not first.is_floating_point():
        return
    assert first.requires_grad
    if item.op.gradient is None and not item.op.delegate_types:
        with pytest.raises(BackwardError, match=name):
            first.sum().backward()
        return
    try:
        first.sum().backward()
    except OpNotAvailableError:  # the target leaves out an operator that the formula calls
        assert target != backend.BUILTIN
        return
    ours = [leaf.grad for leaf in leaves if leaf.grad is not None]
    doubles = tuple(
        tensor.detach().double().requires_grad_() if tensor is not None and tensor.requires_grad else tensor
        for tensor in tensors
    )
    item.expected(doubles)[0].sum().backward()
    wanted = [tensor.grad for tensor in doubles if tensor is not None and tensor.grad is not None]
    calls.verify(tuple(ours), tuple(wanted), "gradients")


def test_a_cold_compile_and_the_contract_of_the_operator(name: str, target: str, device: torch.device) -> None:
    torch._dynamo.reset()
    item = _first(name, device, target)
    fresh = calls.example(item.call, device, target)
    compiled = torch.compile(lambda *args: fresh.op(*args), fullgraph=True, backend="aot_eager")
    expected = item.expected()
    calls.verify(compiled(*item.tensors), expected, "compiled")
    if not item.call.entry.has_boundary:
        return  # without tensors it is no torch operator of its own
    operator = item.op._operator or item.op._branches[tuple(tensor is not None for tensor in item.tensors)][0]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(operator, (*item.tensors, *item.op._held.values(), item.op._call), test_utils=checks)


def test_sizes_may_vary_under_a_compiler(name: str, target: str, device: torch.device) -> None:
    """Two calls that differ in one size: a graph with symbolic sizes serves both."""
    torch._dynamo.reset()
    item = _first(name, device, target)
    if not item.tensors:
        return  # its sizes are parameters
    other = _another_size(item.call)
    assert other is not None, f"no row of {name} makes a call of another size"
    second = calls.example(other, device, target)
    frames = CompileCounterWithBackend("eager")
    compiled = torch.compile(lambda *args: item.op(*args), fullgraph=True, dynamic=True, backend=frames)
    for example in (item, second):
        calls.verify(compiled(*example.tensors), example.expected(), "dynamic")
    assert frames.frame_count <= 2


def _another_size(call: Call) -> Call | None:
    """The same construction with another size of one index, or with all axes longer where shapes have to agree."""
    entry = call.entry
    row = next(row for row in calls.small_rows(call.op) if row.get("label") == call.label)
    sizes = {key: value for key, value in row.items() if key in entry.signature.indices}
    longer = {key: _longer(value) for key, value in sizes.items()}
    for change in (*({key: value} for key, value in longer.items()), longer):
        found = calls._with_row(entry, {**row, **change}) if change != {key: sizes[key] for key in change} else []
        if found and found[0].values == call.values:
            return found[0]
    return None


def _longer(value: Any) -> Any:
    """A size that is another one under a compiler, too: it takes 0 and 1 for constants."""
    if isinstance(value, list):
        return [_longer(item) for item in value]
    return value + 2 if isinstance(value, int) and value > 2 else value


def test_export(name: str, target: str, device: torch.device) -> None:
    item = _first(name, device, target)

    class Model(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor | None) -> Any:
            return item.op(*tensors)

    program = torch.export.export(Model(), item.tensors)
    calls.verify(program.module()(*item.tensors), item.expected(), "exported")
