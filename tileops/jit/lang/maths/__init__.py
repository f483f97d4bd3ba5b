"""Elementary functions in float32, written over the vocabulary (no call of any mathematical library).

Accurate to 2 ulp over the whole range, or over the one that the docstring names, with the special values of PyTorch.
The ``*_lp`` versions, for results that are rounded to bfloat16 or float16, have a relative error of 3e-5 or less
(`exp2_lp`, for softmax: 8e-5), which leaves bfloat16 within 0.51 ulp and float16 within 0.53; the ``*_bf16`` versions
one of 7.5e-5, which leaves bfloat16 within 0.52.
"""

from __future__ import annotations

from tileops.jit.lang.maths.division import floor_divide, remainder, round_decimals
from tileops.jit.lang.maths.exponential import (
    ROUND,
    elu,
    exp,
    exp2,
    exp2_fast,
    exp2_lp,
    exp_fast,
    exp_half,
    exp_lp,
    expm1,
    polynomial,
    selu,
)
from tileops.jit.lang.maths.gauss import erf, gelu, gelu_lp, gelu_tanh, gelu_tanh_bf16, gelu_tanh_lp
from tileops.jit.lang.maths.logarithm import log, log1p
from tileops.jit.lang.maths.power import power, power_lp, quotient_f16, reciprocal, rsqrt
from tileops.jit.lang.maths.sigmoid import (
    hardsigmoid,
    hardswish,
    mish,
    mish_bf16,
    mish_lp,
    sigmoid,
    sigmoid_bf16,
    sigmoid_lp,
    silu,
    silu_bf16,
    silu_lp,
    softplus,
    tanh,
    tanh_lp,
)
from tileops.jit.lang.words import Word


def low_precision(function: Word) -> Word:
    """The ``*_lp`` version of a word of this package, or the word itself where there is none."""
    return globals().get(f"{function.__name__}_lp", function)


__all__ = [
    "ROUND", "elu", "erf", "exp", "exp2", "exp2_fast", "exp2_lp", "exp_fast", "exp_half", "exp_lp", "expm1",
    "floor_divide", "gelu", "gelu_lp", "gelu_tanh", "gelu_tanh_bf16", "gelu_tanh_lp", "hardsigmoid", "hardswish",
    "log", "log1p", "low_precision", "mish", "mish_bf16", "mish_lp", "polynomial", "power", "power_lp", "quotient_f16",
    "reciprocal", "remainder", "round_decimals", "rsqrt", "selu", "sigmoid", "sigmoid_bf16", "sigmoid_lp", "silu",
    "silu_bf16", "silu_lp", "softplus", "tanh", "tanh_lp",
]  # fmt: skip
