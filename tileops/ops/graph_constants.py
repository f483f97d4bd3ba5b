"""Ops that are constructed inside ``torch.compile``: the graph has their calls, not their construction.

The compiler can neither follow a constructor that takes locks nor keep what it returns. But it can call a function
while it records, and read an attribute of an object that it knows. Between the two, what was constructed is such an
attribute.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable
from typing import Any, Self, cast

import torch

from tileops.ops._torch_guards import mark_constant, never_outermost


class _Constants:
    """What was constructed, by name."""


_constants = _Constants()
_names: dict[tuple[Callable[..., Any], str], str] = {}
_numbers = itertools.count()


def _construct(make: Callable[..., Any], *args: Any, **params: Any) -> str:
    """The name of what is constructed, or why it cannot be."""
    try:
        made = make(*args, **params)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    name = _names.setdefault((make, repr(made)), f"constant{next(_numbers)}")  # one for equal ones
    vars(_constants).setdefault(name, made)
    return name


def _number(value: Any) -> Any:
    """A parameter. A size that the graph leaves open becomes a number, and the graph is for that number alone."""
    if isinstance(value, int) and not isinstance(value, bool):
        return operator.index(value)
    if isinstance(value, tuple | list):
        return tuple(_number(item) for item in value)
    return value


def _constant(make: Callable[..., Any], *args: Any, **params: Any) -> Any:
    """``make(*args, **params)``, called while a graph is recorded. What cannot be constructed then breaks the graph, so
    that it is constructed when the program runs or, where the graph must be whole, the compiler says why.
    """
    if any(isinstance(value, torch.Tensor) for value in (*args, *params.values())):
        torch._dynamo.graph_break(
            f"{make.__name__} is constructed from a tensor, which has no value while a graph is recorded; construct it "
            f"outside of the compiled function"
        )
    args = tuple(_number(value) for value in args)
    params = {key: _number(value) for key, value in params.items()}
    name = _construct(make, *args, **params)
    if not name.isidentifier():
        torch._dynamo.graph_break(name)
    return getattr(_constants, name)


def _unless_complete(init: Callable[..., None]) -> Callable[..., None]:
    """A constructor that does nothing to what `Constructible.__new__` has taken from a graph."""

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **params: Any) -> None:
        if not (_recording() and hasattr(self, "_sealed")):
            init(self, *args, **params)

    return __init__


class Constructible:
    """Base of classes that may be constructed inside ``torch.compile``. An instance that is complete has an attribute
    `_sealed`.
    """

    def __new__(cls, *args: Any, **params: Any) -> Self:
        return cast("Self", _constant(cls, *args, **params)) if _recording() else object.__new__(cls)

    def __init_subclass__(cls, **options: Any) -> None:
        if "__init__" in cls.__dict__:
            cls.__init__ = _unless_complete(cls.__init__)  # type: ignore[method-assign]
        super().__init_subclass__(**options)


def _never() -> bool:
    return False


# Both are entered while a graph is recorded, or run as they are.
_told = [never_outermost(function) for function in (Constructible.__new__, _unless_complete(object.__init__))]
_recording = torch.compiler.is_dynamo_compiling if all(_told) else _never
mark_constant(_construct)
