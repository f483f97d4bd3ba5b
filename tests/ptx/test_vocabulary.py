"""The words that CPU kernels are written in, on CUDA scalars: same names, same special values, float64
accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.ptx.harness import ARCHS, ptx_of
from tests.ptx.ptxsim import GlobalMemory, launch
from tileops.jit.program import Program

_erf = np.vectorize(math.erf)
_erfc = np.vectorize(math.erfc)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def mish(x: np.ndarray) -> np.ndarray:
    return x * np.tanh(np.logaddexp(0.0, x))


#: word -> (float64 reference, largest input in size, relative tolerance)
WORDS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float, float]] = {
    "exp": (np.exp, 100.0, 3e-7),
    "exp_fast": (np.exp, 86.0, 3e-7),
    "exp_lp": (np.exp, 86.0, 2e-5),
    "exp2": (np.exp2, 140.0, 3e-7),
    "exp2_fast": (np.exp2, 120.0, 3e-7),
    "expm1": (np.expm1, 80.0, 5e-7),
    "log": (np.log, 1e30, 3e-7),
    "log1p": (np.log1p, 1e30, 3e-7),
    "tanh": (np.tanh, 12.0, 5e-7),
    "sigmoid": (sigmoid, 80.0, 2.4e-7),
    "silu": (lambda x: x * sigmoid(x), 80.0, 2.4e-7),
    "mish": (mish, 30.0, 2.4e-7),
    "selu": (lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)), 80.0, 2.4e-7),
    "hardsigmoid": (lambda x: np.clip(x + 3, 0, 6) / 6, 9.0, 2.4e-7),
    "hardswish": (lambda x: x * (np.clip(x + 3, 0, 6) / 6), 9.0, 2.4e-7),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1e30, 2.4e-7),
    "reciprocal": (lambda x: 1 / x, 1e30, 1e-7),
    "erf": (_erf, 5.0, 5e-7),
    "gelu": (lambda x: x * 0.5 * _erfc(-x / math.sqrt(2)), 14.0, 3e-7),
    "gelu_tanh": (
        lambda x: x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
        10.0,
        3e-7,
    ),
    "tanh_lp": (np.tanh, 12.0, 3e-5),
    "sigmoid_lp": (sigmoid, 80.0, 3e-5),
    "silu_lp": (lambda x: x * sigmoid(x), 80.0, 3e-5),
    "mish_lp": (mish, 30.0, 3e-5),
    "gelu_lp": (lambda x: x * 0.5 * _erfc(-x / math.sqrt(2)), 4.0, 3e-5),
    "sin": (np.sin, 1e30, 3e-7),
    "cos": (np.cos, 1e30, 3e-7),
    "sqrt": (np.sqrt, 1e30, 1e-7),
    "rsqrt_exact": (lambda x: 1 / np.sqrt(x), 1e30, 2e-7),
    "floor": (np.floor, 1e4, 0.0),
    "ceil": (np.ceil, 1e4, 0.0),
    "trunc": (np.trunc, 1e4, 0.0),
    "sign": (np.sign, 1e4, 0.0),
    "rint": (np.rint, 1e4, 0.0),
    "abs_": (np.abs, 1e4, 0.0),
}
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], np.float32)


def run(program: Program, arch: str, *operands: np.ndarray) -> np.ndarray:
    count = len(operands[0])
    memory = GlobalMemory()
    args = [memory.place(operand) for operand in operands]
    output = memory.place(np.zeros(count, np.float32), writable=True)
    grid = -(-count // program.block)
    launch(ptx_of(program, arch), memory, grid, program.block, [*args, output, count])
    return memory.fetch(output, (count,), (4,), np.dtype(np.float32))


def unary(word: str) -> Program:
    return Program.of("tests.cuda.bodies:unary", ["ptr", "ptr", "i64"], device="cuda", block=128, word=word)


@pytest.mark.parametrize(
    ("word", "arch"),
    [
        # Each word on one architecture, on the other in the nightly tests.
        pytest.param(word, arch, marks=[] if number % 2 == place else [pytest.mark.nightly])
        for number, word in enumerate(WORDS)
        for place, arch in enumerate(ARCHS)
    ],
)
def test_accuracy(word: str, arch: str) -> None:
    reference, limit, tolerance = WORDS[word]
    rng = np.random.default_rng(3)
    small = rng.standard_normal(500)
    x = np.concatenate((rng.uniform(-limit, limit, 500), small[np.abs(small) < limit], [1e-5, -1e-5, 0.3])).astype(
        np.float32
    )
    if word in ("log", "log1p", "sqrt", "rsqrt", "rsqrt_exact"):
        x = np.abs(x)
    got = run(unary(word), arch, x).astype(np.float64)
    with np.errstate(over="ignore"):
        expected = reference(x.astype(np.float64))
        expected = np.where(np.isinf(expected.astype(np.float32)), np.inf, expected)
    # A zero of the function has no relative accuracy: absolute 1e-7 there, subnormals by their spacing.
    floor = 1e-7 if word in ("sin", "cos", "log") else 1e-44
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=floor)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("exp", [1, 1, np.inf, 0, np.nan]),
        ("exp_fast", [1, 1, None, 0, np.nan]),
        ("exp2_fast", [1, 1, None, 0, np.nan]),
        ("expm1", [0, -0.0, np.inf, -1, np.nan]),
        ("log", [-np.inf, -np.inf, np.inf, np.nan, np.nan]),
        ("log1p", [0, -0.0, np.inf, np.nan, np.nan]),
        ("rsqrt", [np.inf, -np.inf, 0, np.nan, np.nan]),
        ("mish", [0, -0.0, np.inf, np.nan, np.nan]),
        ("tanh", [0, None, 1, -1, np.nan]),
        ("sigmoid", [0.5, 0.5, 1, 0, np.nan]),
        ("erf", [0, -0.0, 1, -1, np.nan]),
        ("sqrt", [0, -0.0, np.inf, np.nan, np.nan]),
        ("floor", [0, -0.0, np.inf, -np.inf, np.nan]),
        ("ceil", [0, -0.0, np.inf, -np.inf, np.nan]),
        ("trunc", [0, -0.0, np.inf, -np.inf, np.nan]),
        ("sign", [0, 0, 1, -1, 0]),
    ],
)
def test_special_values(word: str, expected: list[float | None]) -> None:
    got = run(unary(word), "sm_90a", SPECIAL)
    for x, value, want in zip(SPECIAL, got, expected, strict=True):
        if want is not None:
            np.testing.assert_array_equal(value, np.float32(want), err_msg=f"{word}({x})")
            assert np.isnan(want) or np.signbit(value) == np.signbit(want)


@pytest.mark.parametrize("arch", ARCHS)
def test_operators_selections_and_bits(arch: str) -> None:
    rng = np.random.default_rng(4)
    x, y = rng.standard_normal((2, 512)).astype(np.float32)
    y[::7] = 0
    program = Program.of("tests.cuda.bodies:mixed", ["ptr", "ptr", "ptr", "i64"], device="cuda", block=64)
    got = run(program, arch, x, y)
    larger = np.maximum(x, y) - np.minimum(x, -y)
    halves = (x.view(np.int32) >> 23).astype(np.float32) * np.float32(0.5) + np.copysign(np.float32(1), x)
    expected = np.where((x < y) & (y != 0), larger, halves) / (1 + np.abs(y))
    np.testing.assert_allclose(got, expected, rtol=3e-7)


@pytest.mark.parametrize("word", ["power", "remainder", "floor_divide"])
def test_words_of_two_operands(word: str) -> None:
    special = [0.0, 1.0, 2.0, 3.0, 0.5, 1e-45, 3.4028235e38, 16777215.0, 8388609.0, 1e10, 0.99999994, np.inf, np.nan]
    x, y = np.array(np.meshgrid(*[[*special, *(-value for value in special)]] * 2), np.float32).reshape(2, -1)
    rng = np.random.default_rng(6)
    bits = rng.integers(0, 1 << 32, (2, 500), dtype=np.uint32).view(np.float32)
    x, y = (
        np.concatenate((a, b, rng.standard_normal(500).astype(np.float32) * 8))
        for a, b in zip((x, y), bits, strict=True)
    )
    program = Program.of("tests.cuda.bodies:binary", ["ptr", "ptr", "ptr", "i64"], device="cuda", block=128, word=word)
    got = run(program, "sm_90a", x, y)
    wide = torch.from_numpy(x).double(), torch.from_numpy(y).double()
    if word == "power":
        expected = torch.pow(*wide)
        np.testing.assert_allclose(got, expected.float(), rtol=2.4e-7, atol=1e-44)
        return
    # In float64, where torch does not take a quotient beyond float32 for NaN.
    beyond = ((wide[0] / wide[1]).abs() > 3.4e38) & (wide[0] / wide[1]).isfinite() & (word == "remainder")
    function = getattr(torch, word)
    expected = torch.where(beyond, function(*wide).float(), function(*(operand.float() for operand in wide)))
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(np.signbit(got)[~np.isnan(got)], torch.signbit(expected)[~expected.isnan()])
