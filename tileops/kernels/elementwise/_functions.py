"""The scalar functions of the elementwise operators, one for each.

Every function is ordinary Python over the vocabulary of `tileops.jit.lang`. It is run once, on tracer values,
to emit the code of a kernel: on vectors on the CPU, on scalars on a GPU. Arguments are the tensor operands in
float32, then the scalar parameters.
"""

from __future__ import annotations

from typing import Any

from tileops.jit import lang


def add(a: Any, b: Any) -> Any:
    return a + b


def scaled_add(a: Any, b: Any, alpha: Any) -> Any:
    return lang.fma(alpha, b, a)


def silu_and_mul(gate: Any, up: Any) -> Any:
    return lang.silu(gate) * up
