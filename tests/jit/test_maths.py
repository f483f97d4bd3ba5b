"""Accuracy and special values of the elementary functions, on every CPU target, against float64."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch

from tileops import jit
from tileops.jit import Program

_SPECIAL = torch.tensor(
    [
        *(0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1.1e-38, -1.1e-38, 3.4e38, -3.4e38),
        *(88.8, -88.8, -103.9, -104.1, 1.0, -1.0, 1e-20, -1e-20, 1e30, -1e30),
    ]
)


def _sigmoid(x):
    # torch's own float64 one is 0 below -709 / 2, and less exact before.
    z = torch.exp(-x.abs())
    return torch.where(x < 0, z, 1.0) / (1.0 + z)


def _gelu_tanh(x):
    # torch's formula cancels in the negative tail, even in float64.
    return x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def _gelu(x):
    return x * 0.5 * torch.special.erfc(-x / math.sqrt(2))


def _mish(x):
    z = torch.exp(-x.abs())
    return x * torch.where(x < 0, z * (2 + z) / (2 + 2 * z + z * z), (1 + 2 * z) / (1 + 2 * z + 2 * z * z))


def _selu(x):
    alpha, scale = 1.6732632423543772, 1.0507009873554805
    return scale * torch.where(x > 0, x, alpha * torch.expm1(x))


_MAX = 3.4e38
#: name -> (reference, lowest x, highest x, ulp): two at most, over the whole range of float32
_ACCURATE = {
    "exp": (torch.exp, -_MAX, _MAX, 1.1),
    "exp2": (torch.exp2, -_MAX, _MAX, 1.3),
    "exp_fast": (torch.exp, -87.3, 88.0, 1.1),
    "exp2_fast": (torch.exp2, -126.0, 127.0, 1.3),
    "expm1": (torch.expm1, -_MAX, _MAX, 1.7),
    "log": (torch.log, -_MAX, _MAX, 1.1),
    "log1p": (torch.log1p, -_MAX, _MAX, 1.5),
    "tanh": (torch.tanh, -_MAX, _MAX, 1.6),
    "erf": (torch.erf, -_MAX, _MAX, 1.6),
    "sigmoid": (_sigmoid, -_MAX, _MAX, 1.6),
    "silu": (lambda x: x * _sigmoid(x), -_MAX, _MAX, 1.7),
    "mish": (_mish, -_MAX, _MAX, 2.0),
    "selu": (_selu, -_MAX, _MAX, 2.0),
    "gelu": (_gelu, -_MAX, _MAX, 2.0),
    "gelu_tanh": (_gelu_tanh, -_MAX, _MAX, 2.0),
    "hardsigmoid": (lambda x: (x + 3).clamp(0, 6) / 6, -_MAX, _MAX, 1.2),
    "hardswish": (lambda x: x * (x + 3).clamp(0, 6) / 6, -_MAX, _MAX, 2.0),
    "rsqrt": (torch.rsqrt, -_MAX, _MAX, 1.6),
    "reciprocal": (torch.reciprocal, -_MAX, _MAX, 0.5),
    "sin": (torch.sin, -_MAX, _MAX, 1.6),
    "cos": (torch.cos, -_MAX, _MAX, 1.6),
}
#: name -> (reference, lowest x, highest x, relative error)
_LOW_PRECISION = {
    "exp_lp": (torch.exp, -87.0, 88.0, 1e-5),
    "exp_half": (torch.exp, -_MAX, _MAX, 2e-5),
    "exp2_lp": (torch.exp2, -125.9, 127.0, 9e-5),
    "tanh_lp": (torch.tanh, -_MAX, _MAX, 3e-5),
    "sigmoid_lp": (_sigmoid, -_MAX, _MAX, 2e-5),
    "silu_lp": (lambda x: x * _sigmoid(x), -_MAX, _MAX, 2e-5),
    "mish_lp": (_mish, -_MAX, _MAX, 2e-5),
    "sigmoid_bf16": (_sigmoid, -_MAX, _MAX, 7.5e-5),
    "silu_bf16": (lambda x: x * _sigmoid(x), -_MAX, _MAX, 7.5e-5),
    "mish_bf16": (_mish, -_MAX, _MAX, 7.5e-5),
    "gelu_tanh_bf16": (_gelu_tanh, -_MAX, _MAX, 7.5e-5),
    "gelu_lp": (_gelu, -_MAX, _MAX, 3e-5),
    "gelu_tanh_lp": (_gelu_tanh, -_MAX, _MAX, 3e-5),
}
_NAMES = (*_ACCURATE, *_LOW_PRECISION)


def _run(target: jit.CpuTarget, x: torch.Tensor) -> dict[str, torch.Tensor]:
    entry = jit.get_entry(Program.of("jit_test_bodies:maths", ["ptr", "ptr", "i64"], names=_NAMES), target)
    out = torch.full((len(_NAMES), x.numel()), 7.0)
    entry.launch(1, x.numel(), x.data_ptr(), out.data_ptr(), x.numel())
    return dict(zip(_NAMES, out, strict=True))


@functools.cache
def _inputs() -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    uniform = [torch.rand(20_000, generator=generator) * 2 * bound - bound for bound in (1.0, 6.0, 110.0, 1e4)]
    # Every exponent with random mantissas, and both ends of it.
    exponents = torch.arange(255, dtype=torch.int32).repeat_interleave(102)
    mantissas = torch.randint(0, 1 << 23, exponents.shape, generator=generator, dtype=torch.int32)
    mantissas[::102], mantissas[1::102] = 0, (1 << 23) - 1
    sizes = ((exponents << 23) | mantissas).view(torch.float32)
    return torch.cat([*uniform, sizes, -sizes])


@functools.cache
def _exact(name: str) -> torch.Tensor:
    """Float64 values of a function at all inputs."""
    return (_ACCURATE | _LOW_PRECISION)[name][0](_inputs().double())


@pytest.fixture
def results(target: jit.CpuTarget) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    x = _inputs()
    return x, _run(target, x)


def test_accuracy(results):
    x, found = results
    for name, (_, low, high, bound) in _ACCURATE.items():
        inside = (x >= low) & (x <= high)
        _assert_close(name, found[name][inside], _exact(name)[inside], bound, x[inside])


def _assert_close(name: str, found: torch.Tensor, exact: torch.Tensor, bound: float, *operands: torch.Tensor) -> None:
    """`found` within `bound` ulp of the float64 values `exact`; infinite, NaN and finite where these are.

    Rounding past the largest number counts as the next one.
    """
    want, got = exact.numpy(), found.double().numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = want.astype(np.float32)
        ulp = np.maximum(np.spacing(np.minimum(np.abs(rounded), np.float32(3.4e38))).astype(np.float64), 2.0**-149)
        limited, exact_limited = (np.clip(value, -(2.0**128), 2.0**128) for value in (got, want))
        error = np.where(np.isnan(want), np.where(np.isnan(got), 0.0, np.inf), np.abs(limited - exact_limited) / ulp)
    error = np.where(np.isnan(got) & ~np.isnan(want), np.inf, error)
    worst = error.argmax()
    at = [operand[worst].item() for operand in operands]
    assert error[worst] <= bound, f"{name}{tuple(at)}: {error[worst]:.2f} ulp, {got[worst]} for {want[worst]}"


def test_low_precision(results):
    x, found = results
    for name, (_, low, high, bound) in _LOW_PRECISION.items():
        inside = (x >= low) & (x <= high)
        exact = _exact(name)[inside]
        normal = (exact.abs() > 1e-37) & (exact.abs() < _MAX)
        error = ((found[name][inside].double() - exact) / exact)[normal].abs()
        assert error.max() <= bound, f"{name}: {error.max():.1e} at {x[inside][normal][error.argmax()]}"


def test_special_values(target):
    found = _run(target, _SPECIAL)
    references = {**_ACCURATE, **_LOW_PRECISION}
    for name in _NAMES:
        if name in ("exp2_lp", "exp2_fast", "exp_fast", "exp_lp"):
            continue  # restricted domains, tested below
        want = references[name][0](_SPECIAL.double()).float()
        got = found[name]
        np.testing.assert_array_equal(got.isnan(), want.isnan(), err_msg=name)
        np.testing.assert_array_equal(got.isinf(), want.isinf(), err_msg=name)
        low = name in _LOW_PRECISION
        torch.testing.assert_close(got, want, rtol=3e-4 if low else 1e-6, atol=3e-7, equal_nan=True, msg=name)


def test_angles_close_to_quarter_turns(target):
    """Where the reduced angle is small, all of its bits come from far inside 1 / (2 pi); the last is the hardest."""
    angles = [round(k * math.pi / 2, 0) for k in (1, 2, 3, 10**4)]
    angles += [103993.0, 1e5, 131072.0, 2.0**32, 16367173 * 2.0**72, 16367173 * 2.0**73]
    x = torch.tensor([*angles, *(-a for a in angles)])
    found = _run(target, x)
    for name, exact in (("sin", math.sin), ("cos", math.cos)):
        want = torch.tensor([exact(value) for value in x.tolist()], dtype=torch.float64)
        torch.testing.assert_close(found[name].double(), want, rtol=2.4e-7, atol=0.0)


def test_zeros_keep_their_sign(target):
    found = _run(target, torch.tensor([0.0, -0.0]))
    names = ("expm1", "log1p", "tanh", "tanh_lp", "erf", "silu", "silu_lp", "gelu", "gelu_lp", "gelu_tanh", "sin")
    for name in (*names, "mish", "mish_lp", "selu", "hardswish"):
        assert found[name].tolist() == [0.0, 0.0], name
        assert torch.signbit(found[name]).tolist() == [False, True], name


def test_softmax_exponentials_are_exactly_zero_at_minus_infinity(target):
    found = _run(target, torch.tensor([-math.inf, math.nan, -200.0]))
    for name in ("exp_fast", "exp_lp", "exp2_fast", "exp2_lp"):
        assert found[name][0] == 0.0
        assert found[name][1].isnan()
        assert found[name][2] == 0.0


def test_tails_do_not_grow(target):
    found = _run(target, torch.tensor([-3.4e38, -1e30, -1000.0, -89.0, -40.0, -13.0]))
    for name in ("silu", "silu_lp", "mish", "mish_lp", "gelu", "gelu_lp", "gelu_tanh", "gelu_tanh_lp"):
        assert found[name][:4].abs().max() < 1e-35, name
        assert found[name][4].abs() < 4e-16, name
        assert (found[name] <= 0).all(), name


_OF_TWO = ("power", "power_lp", "remainder", "floor_divide", "softplus", "elu", "round_decimals")


def _run_two(target: jit.CpuTarget, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    program = Program.of("jit_test_bodies:maths_of_two", ["ptr", "ptr", "ptr", "i64"], names=_OF_TWO)
    out = torch.full((len(_OF_TWO), x.numel()), 7.0)
    jit.get_entry(program, target).launch(1, x.numel(), x.data_ptr(), y.data_ptr(), out.data_ptr(), x.numel())
    return dict(zip(_OF_TWO, out, strict=True))


@functools.cache
def _pairs() -> tuple[torch.Tensor, torch.Tensor]:
    """Every pair of special values, random bits, and quotients and powers of every size."""
    special = [0.0, 1.0, 2.0, 3.0, 0.5, 1.5, 1e-45, 1.17549435e-38, 3.4028235e38, 16777215.0, 16777216.0, 8388609.0]
    special += [1e10, 0.99999994, 1.0000001, 1e-30, 149.0, 150.0, math.inf, math.nan]
    pairs = torch.cartesian_prod(*[torch.tensor([*special, *(-value for value in special)])] * 2)
    rng = np.random.default_rng(3)
    bits = torch.from_numpy(rng.integers(0, 1 << 32, (2, 30_000), dtype=np.uint32).view(np.float32))
    normal = torch.from_numpy(rng.standard_normal((2, 30_000)).astype(np.float32)) * torch.tensor([[10.0], [1.0]])
    whole = torch.from_numpy(rng.integers(-50, 50, (2, 10_000)).astype(np.float32)) / torch.tensor([[4.0], [2.0]])
    # Powers over the whole range of results, of numbers of any size and of numbers close to 1.
    near_one = 1.0 + rng.standard_normal(15_000) * 10.0 ** rng.uniform(-7, -0.5, 15_000)
    base = np.concatenate([bits[0, :15_000].nan_to_num(1.5, 1.5, 1.5).abs().numpy(), np.abs(near_one)])
    base = np.where(base == 0, 1.5, base).astype(np.float32)
    logarithm = np.log2(base.astype(np.float64))
    exponent = rng.uniform(-152, 130, base.size) / np.where(logarithm == 0, 1.0, logarithm)
    powers = torch.from_numpy(np.stack([base, exponent.astype(np.float32)]))
    x, y = torch.cat([pairs.T, bits, normal, whole, powers], 1)
    return x.contiguous(), y.contiguous()


@pytest.fixture
def results_of_two(target: jit.CpuTarget) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    x, y = _pairs()
    return x, y, _run_two(target, x, y)


def _same(found: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Where two tensors are bitwise equal, or both NaN."""
    return (found.view(torch.int32) == want.view(torch.int32)) | (found.isnan() & want.isnan())


def test_powers(results_of_two):
    x, y, found = results_of_two
    exact = torch.pow(x.double(), y.double())
    _assert_close("power", found["power"], exact, 1.5, x, y)
    plain = (exact == 0) | exact.isinf() | exact.isnan()
    assert _same(found["power"][plain], exact.float()[plain]).all()
    usual = (exact.abs() > 1.2e-38) & (exact.abs() < 3.3e38)
    error = (found["power_lp"].double() - exact)[usual].abs() / exact[usual].abs()
    assert error.max() < 3e-5
    assert _same(found["power_lp"][plain], exact.float()[plain]).all()


def test_division(results_of_two):
    """Bitwise torch's results, except where torch gives NaN for quotients beyond float32."""
    x, y, found = results_of_two
    ratio = x.double() / y.double()
    beyond = (ratio.abs() > _MAX) & ratio.isfinite()
    want = torch.where(beyond, torch.remainder(x.double(), y.double()).float(), torch.remainder(x, y))
    different = ~_same(found["remainder"], want)
    assert not different.any(), (x[different][:4], y[different][:4], found["remainder"][different][:4])
    different = ~_same(found["floor_divide"], torch.floor_divide(x, y))
    assert not different.any(), (x[different][:4], y[different][:4], found["floor_divide"][different][:4])


def test_activations_with_parameters(target):
    x = _inputs()[::2].contiguous()
    for value in (1.0, 0.1, 3.7, -2.0, 100.0):
        y = torch.full_like(x, value)
        found = _run_two(target, x, y)
        scaled, beta = x.double() * y.double(), y.double()
        exact = scaled.clamp(min=0) / beta + torch.log1p(torch.exp(-scaled.abs())) / beta
        _assert_close("softplus", found["softplus"], torch.where(x * y > 20.0, x.double(), exact), 2.0, x, y)
        exact = torch.where(x > 0, x.double(), beta * torch.expm1(x.double()))
        _assert_close("elu", found["elu"], exact, 2.0, x, y)


def test_rounding_to_decimals(target):
    x = torch.cat([_inputs()[::4], _SPECIAL])
    for decimals in (0, 2, -2, 7, -7, 38, -38, 39, -39, 70):
        found = _run_two(target, x, torch.full_like(x, decimals))["round_decimals"]
        different = ~_same(found, torch.round(x, decimals=decimals))
        assert not different.any(), (decimals, x[different][:4], found[different][:4])
