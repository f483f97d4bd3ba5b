"""Small calls of any operator, made from its manifest rows: the table behind `test_calls`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from tileops import backend, manifest
from tileops.backend import registry
from tileops.errors import CheckError, ManifestError
from tileops.manifest import kinds as k
from tileops.manifest.entry import Entry
from tileops.manifest.workload import Call, cases
from tileops.ops.base import Op
from tileops.ops.dtypes import torch_parameters
from tileops.workloads import inputs, workload
from tileops.workloads.numerics import compare, tolerance

#: What an index or a size in a parameter is shrunk to: the first of these that still makes a call.
_SMALL = (5, 6, 8, 16, 32, 64)

Tensors = tuple[torch.Tensor | None, ...]


@dataclass(frozen=True)
class Example:
    """One call of one operator, ready to make.

    Attributes:
        op: an instance.
        call: the abstract call.
        tensors: in forward order, None where absent.
    """

    op: Op
    call: Call
    tensors: Tensors

    def expected(self, tensors: Tensors | None = None) -> tuple[torch.Tensor, ...]:
        """What the reference says, for these tensors or for others of the same kind. To be asked before the operator
        is called: it may write them.
        """
        params = {**self.op._construction.params}
        result = workload(self.call.op).reference(*(self.tensors if tensors is None else tensors), **params)
        return result if isinstance(result, tuple) else (result,)


def served(entry: Entry, target: str | None) -> bool:
    """Whether `target` serves an operator; the built-in one serves those that are implemented."""
    if not entry.implemented or entry.composition:
        return False
    if target in (None, backend.BUILTIN):
        return True
    return registry.builder_of(entry.name, target or "") is not None


def operators(target: str | None = None) -> list[str]:
    """Names of the operators that `target` serves."""
    return [name for name, entry in sorted(manifest.load_all(strict=False).items()) if served(entry, target)]


def op_class(name: str) -> type[Op]:
    """The class of an implemented operator."""
    family = manifest.load_entry(name).family
    return getattr(importlib.import_module(f"tileops.{family}"), name)


def _with_row(entry: Entry, row: Mapping[str, Any]) -> list[Call]:
    """The calls of a row, or none where it makes none."""
    try:
        return cases(replace(entry, workloads=(dict(row),)))
    except (ManifestError, CheckError, ValueError):
        return []


def _smaller(value: Any) -> Iterator[Any]:
    """Smaller values of an index or parameter, smallest first."""
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        yield from (size for size in _SMALL if size < value)
    elif isinstance(value, list) and value and all(isinstance(item, int) for item in value):
        for size in _SMALL:
            smaller = [min(item, size) for item in value]
            if smaller != value:
                yield smaller


def _jointly_small(entry: Entry, row: dict[str, Any]) -> dict[str, Any]:
    """The row with every size cut at one bound, for sizes that have to agree."""
    for bound in _SMALL:
        cut = {key: _cut(value, bound) for key, value in row.items()}
        if cut != row and _with_row(entry, cut):
            return cut
    return row


def _cut(value: Any, bound: int) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return min(value, bound)
    return [_cut(item, bound) for item in value] if isinstance(value, list) else value


@cache
def small_rows(name: str) -> tuple[dict[str, Any], ...]:
    """Rows of an operator with everything as small as its declarations allow: one for each set of keys, so that
    each optional tensor is passed in one and absent in another.
    """
    entry = manifest.load_entry(name)
    found: dict[Any, dict[str, Any]] = {}
    for raw in entry.workloads:
        row = _jointly_small(entry, dict(raw))
        for key in [key for key in row if key not in ("some", "dtype_cases", "label")]:
            for value in _smaller(row[key]):
                if _with_row(entry, {**row, key: value}):
                    row[key] = value
                    break
        flags = {key: value for key, value in row.items() if isinstance(value, str | bool) and key != "label"}
        found.setdefault((tuple(sorted(row.get("some", ()))), repr(sorted(flags.items()))), row)
    return tuple(found.values())


def small_calls(name: str) -> list[Call]:
    """The small calls of an operator, in every dtype."""
    entry = manifest.load_entry(name)
    return [call for row in small_rows(name) for call in _with_row(entry, row)]


def one_of_each(name: str) -> list[Call]:
    """A small call for each set of flags and optional tensors, in one dtype."""
    entry = manifest.load_entry(name)
    return [_with_row(entry, row)[0] for row in small_rows(name)]


def odd_calls(name: str) -> list[Call]:
    """Calls with an empty or a one-element axis, and with no axis at all, where the operator has such calls."""
    entry = manifest.load_entry(name)
    found = []
    for row in small_rows(name)[:2]:
        for key, kind in entry.signature.indices.items():
            if key not in row:
                continue
            values: list[Any] = [0, 1] if isinstance(kind, k.Dim) else []
            if isinstance(kind, k.Shape):
                values = [[], [0], [1, 1, 1], [2, 0, 3]]
            for value in values:
                found += _with_row(entry, {**row, key: value})[:1]
    return found


def example(call: Call, device: torch.device, target: str | None = None) -> Example:
    """An operator and its tensors for a call."""
    cls = op_class(call.op)
    made = inputs.materialize(call, device)
    params = torch_parameters(call.values)
    if not call.inputs and "device" in params:
        params["device"] = device  # nothing else says where the results are
    op = cls(**params, **{name: made[name] for name in call.held}, target=target)
    given: dict[str, Any] = {name: made.get(name) for name in cls._input_names}
    adapt = workload(call.op).gen_inputs
    if adapt is not None:
        given.update(adapt(given, {**op._construction.params}))
    return Example(op, call, tuple(given.values()))


def verify(result: Any, expected: tuple[torch.Tensor, ...], where: str) -> None:
    """Compares what an op returned with its reference, each output by the tolerance of its dtype.

    Raises:
        AssertionError: they differ; the message says where and by how much.
    """
    results = result if isinstance(result, tuple) else (result,)
    assert len(results) == len(expected), where
    for number, (actual, wanted) in enumerate(zip(results, expected, strict=True)):
        assert (actual is None) == (wanted is None), f"{where}: output {number}"
        if actual is None:
            continue
        assert actual.shape == wanted.shape, f"{where}: output {number}"
        found = compare(actual.cpu(), wanted.cpu(), atol=_atol(actual, wanted))
        assert found is None, f"{where}: output {number}: {found} (tolerance {tolerance(actual.dtype)})"


def _atol(actual: torch.Tensor, wanted: torch.Tensor) -> float:
    """Of sums of large terms: relative to the typical size of the results, as cancellation leaves it."""
    finite = wanted[wanted.isfinite()] if wanted.is_floating_point() else wanted.new_empty(0)
    size = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    return tolerance(actual.dtype) * max(1.0, size)


def check(item: Example, where: str, tensors: Tensors | None = None) -> None:
    """Calls the operator, with these tensors or its own, and compares with the reference.

    Raises:
        AssertionError: they differ; the message says where and by how much.
        DispatchError: the target declines the call.
        OpNotAvailableError: it has no such operator.
    """
    given = item.tensors if tensors is None else tensors
    wanted = item.expected(given)
    verify(item.op(*given), wanted, where)


def relayouts(item: Example) -> Iterator[tuple[str, Tensors]]:
    """The same call, which has been made before, with one tensor after the other in another memory layout."""
    written = item.op._thread.plan.record.checked.written
    for place, (name, tensor) in enumerate(zip(item.op._input_names, item.tensors, strict=True)):
        if tensor is None or name not in item.call.entry.signature.inputs:
            continue
        decl = item.call.entry.signature.inputs[name]
        if decl.contiguous or decl.values is not None:
            continue
        for layout, view in _layouts(tensor, written=name in written):
            yield f"{name} {layout}", (*item.tensors[:place], view, *item.tensors[place + 1 :])


def _layouts(tensor: torch.Tensor, *, written: bool) -> Iterator[tuple[str, torch.Tensor]]:
    yield from inputs.layouts(tensor)
    for offset in (3, 15):
        yield f"offset {offset}", inputs.at_offset(tensor, offset)
    for axis in range(0 if written else min(tensor.ndim, 2)):
        yield f"expanded along {axis}", inputs.expanded(tensor, axis)
    if tensor.ndim == 4:
        yield "channels last", tensor.to(memory_format=torch.channels_last)


def by_dtype(name: str) -> dict[Any, Call]:
    """One small call for each assignment of dtypes."""
    found: dict[Any, Call] = {}
    for call in small_calls(name):
        found.setdefault(tuple(item.dtype for item in call.inputs.values()), call)
    return found
