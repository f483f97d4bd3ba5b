"""Costs of a checked call: inline formulas or a function of `tileops.perf.formulas`, and the traffic that a
signature implies.

By default every present tensor is moved once: a read for an input, a write for an output, both for a mutated
input, only the write where it is `write_only`. An output that stands for an input or for ``out`` shares its
storage and counts once.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any

from tileops.errors import ManifestError
from tileops.manifest.branch import Branch
from tileops.manifest.dtypes import DTYPES
from tileops.manifest.entry import Roofline
from tileops.manifest.expr import evaluate

TensorFacts = tuple[tuple[int, ...], str]


class CallView:
    """What a roofline function may read of one checked call.

    Args:
        branch: the branch that the call is on.
        indices: parameters, solved indices and lets by name; dtypes by name.
        tensors: ``name -> (shape, dtype name)`` of every tensor that was passed, held or returned.
        metadata: contents of metadata tensors, where they are known.
        stages: completed calls of a composite op's sub-ops, by stage name.
    """

    def __init__(
        self,
        branch: Branch,
        indices: Mapping[str, Any],
        tensors: Mapping[str, TensorFacts],
        metadata: Mapping[str, Any] | None = None,
        stages: Mapping[str, Any] | None = None,
    ) -> None:
        self._branch = branch
        self._metadata = metadata or {}
        self.tensors = dict(tensors)
        self.stages = dict(stages or {})
        self.indices = dict(indices)
        for name, expr in branch.lets.items():
            if name not in self.indices and branch.reads([expr]) <= self.indices.keys():
                self._define(name)

    def _define(self, name: str) -> None:
        expr = self._branch.lets[name]
        for inner in expr.names:
            if inner in self._branch.lets and inner not in self.indices:
                self._define(inner)
        self.indices[name] = evaluate(expr, self.indices)

    def present(self, name: str) -> bool:
        """Whether a tensor was passed, held or returned, or a parameter given; ``present("out")``: whether
        ``out`` was passed.
        """
        return self._branch.present(name)

    def bytes(self, name: str) -> int:
        """Bytes of a tensor; 0 for an absent one."""
        if name not in self.tensors:
            return 0
        shape, dtype = self.tensors[name]
        return math.prod(shape) * DTYPES[dtype].bits // 8

    def metadata_values(self, name: str) -> Any:
        """Contents of a metadata tensor as a NumPy array.

        Raises:
            ManifestError: the call kept no values, as on meta tensors.
        """
        if name not in self._metadata:
            raise ManifestError(
                f"the contents of {name!r} are not known, as on meta tensors; call the op on a real tensor first"
            )
        return self._metadata[name]


def output_facts(branch: Branch, indices: Mapping[str, Any]) -> dict[str, TensorFacts]:
    """``name -> (shape, dtype name)`` of the outputs of a call with these indices (lets included)."""
    found = {}
    for name, tensor in branch.outputs.items():
        shape: list[int] = []
        for item in tensor.items:
            value = evaluate(item.expr, indices)
            if isinstance(value, list | tuple):
                shape.extend(value)
            else:
                shape.append(value)
        found[name] = (tuple(shape), evaluate(tensor.dtype, indices))
    return found


def traffic(view: CallView, branch: Branch) -> tuple[int, int]:
    """``(bytes read, bytes written)`` that the signature implies."""
    read = written = 0
    for name, tensor in branch.inputs.items():
        size = view.bytes(name)
        if name in branch.written:
            written += size
            read += 0 if tensor.decl.write_only else size
        else:
            read += size
    for name in branch.held:
        read += view.bytes(name)
    for name, tensor in branch.outputs.items():
        if tensor.decl.alias is None or tensor.decl.alias not in branch.written:
            written += view.bytes(name)
    return read, written


def evaluate_roofline(roofline: Roofline, view: CallView, branch: Branch) -> tuple[int, int]:
    """``(flops, bytes)`` of a call.

    Raises:
        ManifestError: a formula has no value for it; the message names the field.
    """
    if roofline.func is not None:
        flops, moved = formula_function(roofline.func)(view)
        return int(flops), int(moved)
    if roofline.flops is None:
        raise ManifestError("roofline.flops: the entry has no formula")
    flops = _value(roofline.flops, view, branch)
    moved = sum(traffic(view, branch)) if roofline.bytes is None else _value(roofline.bytes, view, branch)
    return int(flops), int(moved)


def _value(formula: Any, view: CallView, branch: Branch) -> Any:
    return evaluate(branch.folded(formula), view.indices, view.present, view.bytes)


def formula_function(path: str) -> Callable[[CallView], tuple[int, int]]:
    """The function at a dotted path of `tileops.perf.formulas`.

    Raises:
        ManifestError: there is none.
    """
    module, _, name = path.rpartition(".")
    function = getattr(importlib.import_module(module), name, None)
    if not callable(function):
        raise ManifestError(f"roofline.func: there is no function {path}")
    return function
