"""The scalar functions of the elementwise operators, one for each, by subject.

A function is ordinary Python over the vocabulary of `tileops.jit.lang`. It is run once, on tracer values, to emit
the code of a kernel: on vectors on the CPU, on scalars on a GPU. It is called as ``function(*tensors, *scalars,
**options)``: the tensor operands of the manifest entry in forward order, its numeric parameters (both None where
absent), and by keyword its other parameters, which are known when the kernel is compiled.

Operands of the float dtypes come as float32, integers in their own width (arithmetic wraps), uint8 as int16, and
bool as masks. The result is rounded once to the dtype of the output.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def _all() -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    for item in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{item.name}")
        for name, function in vars(module).items():
            if callable(function) and getattr(function, "__module__", "") == module.__name__ and name[0] != "_":
                found[name] = function
    return found


def find(name: str) -> Callable[..., Any]:
    """The scalar function of that name.

    Raises:
        KeyError: there is none.
    """
    functions = _all()
    if name not in functions:
        raise KeyError(f"no scalar function {name!r} in {__name__}; define it in the module of its subject")
    return functions[name]
