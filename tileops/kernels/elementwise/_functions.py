"""The scalar functions of the elementwise operators, one for each.

Every function is ordinary Python over the vocabulary of `tileops.jit.lang`. It is run once, on tracer values,
to emit the code of a kernel: on vectors on the CPU, on scalars on a GPU. Arguments are the tensor operands,
then the scalar parameters; in float32, or in the width of an integer dtype.
"""

from __future__ import annotations

from typing import Any

from tileops.jit import lang


def add(a: Any, b: Any) -> Any:
    return a + b


def scaled_add(a: Any, b: Any, alpha: Any) -> Any:
    return lang.fma(alpha, b, a)


def integer_scaled_add(a: Any, b: Any, alpha: Any) -> Any:
    return a + alpha * b


def logical_or(a: Any, b: Any) -> Any:
    return a | b


def scaled_logical_or(a: Any, b: Any, alpha: Any) -> Any:
    return a | (b & alpha)


def silu_and_mul(gate: Any, up: Any) -> Any:
    return lang.silu(gate) * up


def silu_and_mul_lp(gate: Any, up: Any) -> Any:
    return lang.silu_lp(gate) * up
