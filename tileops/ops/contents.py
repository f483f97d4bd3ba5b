"""``validate_inputs``: holding the contents of metadata tensors to the entry's ``requires`` at run time.

Contents are the caller's obligation. An op whose entry has the parameter ``validate_inputs`` checks them when it
is true: it reads the tensors on the CPU before the implementation runs, which waits for the device.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tileops.errors import CheckError
from tileops.manifest.expr import fold
from tileops.manifest.expr.syntax import call_name
from tileops.manifest.primitives import PREDICATES, DomainError
from tileops.manifest.workload import call_arguments


def validates(construction: Any) -> bool:
    """Whether an op was constructed to check the contents of its metadata tensors."""
    return construction.values.get("validate_inputs") is True


def validated(
    op: str, names: Sequence[str], construction: Any, checked: Any, run: Callable[..., Any]
) -> Callable[..., Any]:
    """`run` with the contents of its tensors checked first, for an op that `validates`."""
    inputs = checked.branch.inputs
    constrained = [name for name in names if name in inputs and inputs[name].decl.requires]
    if not constrained:
        return run
    metadata = [name for name in names if name in inputs and inputs[name].decl.values is not None]

    def validate(*tensors: torch.Tensor | None) -> Any:
        passed = dict(zip(names, tensors, strict=True))
        contents = {name: _read(op, name, passed[name]) for name in {*metadata, *constrained}}
        for name in constrained:
            _check(op, checked, name, contents)
        return run(*tensors)

    return validate


def _read(op: str, name: str, tensor: torch.Tensor | None) -> Any:
    if tensor is None:
        return None
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        raise CheckError(
            op,
            "params.validate_inputs",
            f"reading {name} waits for the device, which cannot be captured in a CUDA graph; construct the op with "
            f"validate_inputs=False",
        )
    return tensor.detach().cpu().numpy()


def _check(op: str, checked: Any, name: str, contents: dict[str, Any]) -> None:
    scope = {**checked.indices, **{other: value for other, value in contents.items() if value is not None}}
    for predicate in checked.branch.inputs[name].decl.requires:
        call = fold(predicate, checked.branch.facts)
        assert isinstance(call.node, ast.Call)
        positional, keywords = call_arguments(call, scope)
        try:
            holds = PREDICATES[call_name(call.node) or ""].function(contents[name], *positional, **keywords)
        except DomainError as error:
            raise CheckError(op, f"inputs.{name}.requires", f"in {predicate.source!r}: {error}") from None
        if not holds:
            raise CheckError(
                op,
                f"inputs.{name}.requires",
                f"{predicate.source!r} does not hold for the contents of {name}; pass contents for which it does",
            )
