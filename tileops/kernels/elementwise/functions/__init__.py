"""The scalar functions of the elementwise operators, one for each, by subject.

A function is ordinary Python over the vocabulary of `tileops.jit.lang`. It is run once, on tracer values, to emit
the code of a kernel: on vectors on the CPU, on scalars on a GPU. It is called as ``function(*tensors, *scalars,
**options)``: the tensor operands of the manifest entry in forward order, its numeric parameters (both None where
absent), and by keyword its other parameters, which are known when the kernel is compiled.

Operands of the float dtypes come as float32, integers in their own width (arithmetic wraps), uint8 as int16, and
bool as masks. The result is rounded once to the dtype of the output. Where that is bfloat16 or float16, a function
may have a cheaper form, beside it under another name:

* ``silu_lp``, computed in float32 to a relative error of 3e-5, a fiftieth of float16's last place;
* ``silu_bf16``, for bfloat16 alone, to a relative error of 7e-5;
* ``neg_bits``, on the stored bits as 16-bit integers, for what moves values or changes their sign (CPU only);
* ``dropout_in_fours``, for four vectors of neighbours side by side, of a function that gets the number of its element:
  it gets one vector of quarters of these numbers, each for four elements (CPU only);
* ``div_f16``, where all operands are float16 too, whose numbers and quotients are all normal in float32 (CPU only).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
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


#: Formats whose results may come from the cheaper forms.
HALVES = frozenset({"bf16", "f16"})


def find(name: str, output: str = "f32", inputs: Sequence[str | None] = ()) -> Callable[..., Any]:
    """The scalar function of that name.

    Args:
        name: as a call names it.
        output: storage format of the result, which may allow a cheaper form.
        inputs: those of the operands, where a form for float16 alone may be chosen.

    Raises:
        KeyError: there is none.
    """
    functions = _all()
    if name not in functions:
        raise KeyError(f"no scalar function {name!r} in {__name__}; define it in the module of its subject")
    if output == "f16" and set(inputs) == {"f16"} and f"{name}_f16" in functions:
        return functions[f"{name}_f16"]
    if output == "bf16" and f"{name}_bf16" in functions:
        return functions[f"{name}_bf16"]
    return functions.get(f"{name}_lp", functions[name]) if output in HALVES else functions[name]


def on_bits(name: str, output: str) -> Callable[..., Any] | None:
    """The form of a function that works on stored bits, if it has one for this format of the result."""
    return _all().get(f"{name}_bits") if output in HALVES else None


def in_fours(name: str) -> Callable[..., Any] | None:
    """The form of a function for four vectors whose elements share a number by fours, if it has one."""
    return _all().get(f"{name}_in_fours")
