"""Arithmetic that also takes symbolic sizes, as torch traces them: no truth value of one is ever asked for.

On Python numbers these are the built-in functions. A symbolic condition becomes an assertion of the traced graph or
a symbolic choice; only then is torch, whose numbers these are, looked up.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from functools import reduce
from typing import Any

from tileops.manifest.primitives.registry import DomainError

_PLAIN = (int, float)


def _torch() -> Any:
    """torch: loaded wherever a symbolic number exists, and needed by nothing else here."""
    return sys.modules["torch"]


def is_plain(value: Any) -> bool:
    """Whether a value is a Python number, not a symbolic one."""
    return isinstance(value, _PLAIN)


def is_symbolic(value: Any) -> bool:
    """Whether a value is a symbolic size or condition of torch."""
    return type(value).__name__ in ("SymInt", "SymFloat", "SymBool")


def require(condition: Any, message: str) -> None:
    """Raises `DomainError` unless `condition` holds; a symbolic one is asserted.

    Raises:
        DomainError: with `message`.
    """
    if is_plain(condition):
        if not condition:
            raise DomainError(message)
        return
    torch = _torch()
    try:
        torch._check(condition, lambda: message)
    except RuntimeError:
        raise DomainError(message) from None


def choose(condition: Any, when: Any, unless: Any) -> Any:
    """``when if condition else unless``, both numbers."""
    if is_plain(condition):
        return when if condition else unless
    torch = _torch()
    return torch.sym_ite(condition, when, unless)


def largest(values: Iterable[Any]) -> Any:
    """The maximum of some numbers."""
    items = list(values)
    if not any(map(is_symbolic, items)):
        return max(items)
    torch = _torch()
    return reduce(torch.sym_max, items)


def smallest(values: Iterable[Any]) -> Any:
    """The minimum of some numbers."""
    items = list(values)
    if not any(map(is_symbolic, items)):
        return min(items)
    torch = _torch()
    return reduce(torch.sym_min, items)


def total(values: Iterable[Any]) -> Any:
    """The sum of some numbers or conditions; a condition that holds counts 1."""
    return sum(_count(value) if is_symbolic(value) else value for value in values)


def _count(value: Any) -> Any:
    torch = _torch()
    return torch.sym_ite(value, 1, 0) if isinstance(value, torch.SymBool) else value


def conjunction(conditions: Iterable[Any]) -> Any:
    """Whether all hold: False as soon as one is plainly false, symbolic where that is not known."""
    found: Any = True
    for condition in conditions:
        if is_plain(condition):
            if not condition:
                return False
        else:
            found = condition if found is True else found & condition
    return found


def square_root(value: Any) -> Any:
    """The integer square root. A symbolic value is fixed to its hint, since the result sizes a tensor; without one the
    result stays symbolic.
    """
    if not is_plain(value):
        torch, shapes = _torch(), sys.modules["torch.fx.experimental.symbolic_shapes"]
        if shapes.has_free_unbacked_symbols(value):
            return torch.sym_int(torch.sym_sqrt(value))
    return math.isqrt(int(value))
