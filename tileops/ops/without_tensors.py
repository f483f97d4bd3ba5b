"""Operators without call-time tensors, as graphs and dispatch modes see them.

Such a class has no torch operator of its own, for there is no tensor that torch could dispatch on. One operator stands
for all of them where a compiler records a call or a mode looks on: it is given the name of the class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tileops.ops import dispatch, lookup

if TYPE_CHECKING:
    from tileops.ops.base import Op

_library = torch.library.Library("tileops", "FRAGMENT")
_classes: dict[str, type[Op]] = {}


def register(cls: type[Op]) -> None:
    """Lets the operator run a class, which has neither call-time nor construction-time tensors."""
    _classes[cls.__name__] = cls


def _class(op: str) -> type[Op]:
    found: type[Op] = _classes.get(op) or lookup.class_named(op)
    return found


def _results(made: Any) -> list[torch.Tensor]:
    return list(made) if isinstance(made, tuple) else [made]


def _run(op: str, call: str) -> list[torch.Tensor]:
    return _results(dispatch.find(_class(op), call)._eager())


def _fake(op: str, call: str) -> list[torch.Tensor]:
    return _results(dispatch.find(_class(op), call)._fake(()))


lookup.define(_library, "without_tensors(str op, str call) -> Tensor[]")
# The key of operators that have no tensor to tell the backend.
_library.impl("without_tensors", _run, "BackendSelect")
torch.library.register_fake("tileops::without_tensors", _fake, lib=_library)
operator = torch.ops.tileops.without_tensors.default


def dispatched(op: Op) -> list[torch.Tensor]:
    """A call of this very object through torch's dispatcher."""
    before = dispatch.calling.op
    dispatch.calling.op = op
    try:
        results: list[torch.Tensor] = operator(type(op).__name__, op._call)
        return results
    finally:
        dispatch.calling.op = before
