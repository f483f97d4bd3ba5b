"""The rotary position embeddings on CUDA, run in the PTX interpreter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.ptx.harness import (
    ARCHS,
    DEVICE,
    DTYPES,
    DTYPES_AND_ARCHS,
    NUMPY,
    Device,
    assert_close,
    facts_of,
    parsed,
    random,
)
from tileops.kernels.rope.call_spec import LongRoPECall, RoPECall, RoPEPositionIdsCall
from tileops.kernels.rope.rope_cuda import LongRoPECudaKernel, RoPECudaKernel, RoPEPositionIdsCudaKernel
from tileops.kernels.rope.scaling import llama31, long_rope, yarn
from tileops.workloads import rope

pytestmark = pytest.mark.xdist_group("ptx-rope")  # its tests share programs, which each process compiles
#: The PTX of the two differs in its header; the other one runs nightly.
ONE_ARCH = (ARCHS[0], pytest.param(ARCHS[1], marks=pytest.mark.nightly))


def turned(x: np.ndarray, angles: np.ndarray, layout: str) -> np.ndarray:
    """The leading elements of `x` ``[..., D]`` turned by `angles`, in float64: one for each pair, broadcast."""
    wide, rotary_dim = x.astype(np.float64), 2 * angles.shape[-1]
    if layout == "neox":
        first, second = slice(0, rotary_dim // 2), slice(rotary_dim // 2, rotary_dim)
    else:
        first, second = slice(0, rotary_dim, 2), slice(1, rotary_dim, 2)
    out = wide.copy()
    out[..., first] = wide[..., first] * np.cos(angles) - wide[..., second] * np.sin(angles)
    out[..., second] = wide[..., second] * np.cos(angles) + wide[..., first] * np.sin(angles)
    return out


def rotate(x: np.ndarray, positions: np.ndarray, rotary_dim: int, base: float, layout: str) -> np.ndarray:
    """`x` ``[..., D]`` turned by `positions`, which broadcast to its leading axes, in float64."""
    pair = np.arange(rotary_dim // 2)
    return turned(x, positions[..., None].astype(np.float64) * base ** (-2.0 * pair / max(rotary_dim, 1)), layout)


def run(x: np.ndarray, dtype: str, arch: str, *, layout="neox", base=10000.0, storage_offset=0, max_grid=None):
    device = Device(arch, max_grid)
    source = device.tensor(x, dtype, storage_offset=storage_offset)
    output = device.empty(x.shape, dtype)
    input_layout = "1d" if x.ndim == 2 else "2d"
    call = RoPECall(
        x=source.spec,
        output=output.spec,
        rope_layout=layout,
        input_layout=input_layout,
        base=base,
        device=DEVICE[arch],
    )
    program = device.run(RoPECudaKernel, call, source, output)
    positions = np.arange(x.shape[0]) if x.ndim == 2 else np.arange(x.shape[1])[:, None]
    assert_close(device.fetch(output), rotate(x, positions, x.shape[-1], base, layout), dtype)
    return program, device


def run_ids(
    x: np.ndarray,
    ids: np.ndarray,
    dtype: str,
    arch: str,
    *,
    rotary_dim: int | None = None,
    base=10000.0,
    storage_offset=0,
    max_grid=None,
):
    device = Device(arch, max_grid)
    source = device.tensor(x, dtype, storage_offset=storage_offset)
    positions = device.tensor(ids, str(ids.dtype), storage_offset=1)
    output = device.empty(x.shape, dtype)
    rotary_dim = x.shape[-1] if rotary_dim is None else rotary_dim
    call = RoPEPositionIdsCall(
        x=source.spec,
        position_ids=positions.spec,
        output=output.spec,
        rotary_dim=rotary_dim,
        base=base,
        max_position=1 << 31,
        device=DEVICE[arch],
    )
    program = device.run(RoPEPositionIdsCudaKernel, call, source, positions, output)
    assert_close(device.fetch(output), rotate(x, ids[:, None], rotary_dim, base, "neox"), dtype)
    return program, device


@pytest.mark.parametrize("arch", ONE_ARCH)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["neox", "interleaved"])
@pytest.mark.parametrize("shape", [(5, 64), (1, 2), (7, 6), (2, 9, 3, 64), (1, 4, 1, 10), (2, 3, 5, 128)])
def test_rope(shape, layout, dtype, arch):
    run(random(shape, dtype), dtype, arch, layout=layout)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["neox", "interleaved"])
def test_rope_at_every_storage_offset(layout, dtype):
    x = random((1, 5, 3, 64), dtype)
    for offset in range(16):
        run(x, dtype, "sm_80", layout=layout, storage_offset=offset)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["neox", "interleaved"])
def test_rope_of_strided_inputs(layout, dtype):
    qkv = random((2, 6, 9, 64), dtype)
    run(qkv[:, :, 2:5], dtype, "sm_80", layout=layout)
    run(qkv[:, ::2, ::3], dtype, "sm_90a", layout=layout)
    run(qkv.transpose(0, 2, 1, 3), dtype, "sm_80", layout=layout)
    run(qkv[..., ::2], dtype, "sm_90a", layout=layout)
    run(np.broadcast_to(qkv[:1], (3, 6, 9, 64)), dtype, "sm_80", layout=layout)
    run(qkv[0, :, 0].T, dtype, "sm_90a", layout=layout)


@pytest.mark.parametrize("arch", ONE_ARCH)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ids", ["int32", "int64"])
def test_position_ids(ids, dtype, arch):
    positions = np.array([0, 7, 3, 4095, 131071], NUMPY[ids])
    run_ids(random((5, 3, 64), dtype), positions, dtype, arch)
    run_ids(random((5, 1, 128), dtype), positions, dtype, arch, rotary_dim=64)
    run_ids(random((5, 2, 10), dtype), positions, dtype, arch, rotary_dim=6)
    run_ids(random((5, 2, 16), dtype), positions, dtype, arch, rotary_dim=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_position_ids_at_every_storage_offset(dtype):
    x, ids = random((3, 2, 64), dtype), np.array([5, 0, 9], np.int64)
    for offset in range(16):
        run_ids(x, ids, dtype, "sm_90a", storage_offset=offset)


@pytest.mark.parametrize("dtype", DTYPES)
def test_position_ids_of_strided_inputs(dtype):
    x, ids = random((8, 6, 96), dtype), np.arange(16, dtype=np.int32)
    run_ids(x[::2, 1:4, 16:80], ids[:4], dtype, "sm_80")
    run_ids(x.transpose(1, 0, 2), ids[::2][:6], dtype, "sm_90a")
    run_ids(x[..., ::3], np.broadcast_to(ids[3:4], (8,)), dtype, "sm_80")


@pytest.mark.parametrize("base", [1.0, 500.0, 1e6, 0.25])
def test_bases(base):
    run(random((40, 32), "float32"), "float32", "sm_80", base=base)


def test_the_millionth_position_is_as_exact_as_the_first():
    ids = np.array([0, 1, 1_000_000, 16_777_217, 2**31 - 1], np.int64)
    x = random((5, 2, 64), "float32")
    device = Device("sm_90a")
    source, positions, output = (
        device.tensor(x, "float32"),
        device.tensor(ids, "int64"),
        device.empty(x.shape, "float32"),
    )
    call = RoPEPositionIdsCall(
        x=source.spec,
        position_ids=positions.spec,
        output=output.spec,
        rotary_dim=64,
        base=10000.0,
        max_position=1 << 31,
        device=DEVICE["sm_90a"],
    )
    device.run(RoPEPositionIdsCudaKernel, call, source, positions, output)
    # The reference itself is good to 2**31 * 2**-53 radians at the last position.
    expected = rotate(x, ids[:, None], 64, 10000.0, "neox")
    np.testing.assert_allclose(device.fetch(output), expected, rtol=2e-6, atol=2e-6)


def test_a_quarter_turn_by_hand():
    # base 1 turns every pair by the position itself; near pi/2 * (1 + 4 n) radians x = (1, 0) becomes (0, 1).
    position = 710  # 710 = 226 pi + 6e-5
    x = np.array([[[1, 2, 3, 4, 5, 6]]], np.float32)
    device = Device("sm_80")
    source, ids = device.tensor(x, "float32"), device.tensor(np.array([position], np.int32), "int32")
    output = device.empty(x.shape, "float32")
    call = RoPEPositionIdsCall(
        x=source.spec, position_ids=ids.spec, output=output.spec, rotary_dim=4, base=1.0, max_position=1024,
        device=DEVICE["sm_80"],
    )  # fmt: skip
    device.run(RoPEPositionIdsCudaKernel, call, source, ids, output)
    np.testing.assert_allclose(device.fetch(output)[0, 0], [1, 2, 3, 4, 5, 6], atol=5e-4)


def test_loops_when_the_grid_is_small():
    _, device = run(random((2, 40, 5, 64), "bfloat16"), "bfloat16", "sm_80", max_grid=2)
    assert device.machines[0].grid == 2


def test_a_thread_takes_several_heads_when_there_is_much_work():
    x = random((1, 99, 7, 64), "float32")
    device = Device("sm_90a")
    source, output = device.tensor(x, "float32"), device.empty(x.shape, "float32")
    facts = replace(DEVICE["sm_90a"], sm_count=1)
    call = RoPECall(x=source.spec, output=output.spec, rope_layout="neox", input_layout="2d", base=1e4, device=facts)
    device.run(RoPECudaKernel, call, source, output)
    assert device.machines[0].grid < 99 * 7 * 8 // 128 // 3
    assert_close(device.fetch(output), rotate(x, np.arange(99)[:, None], 64, 1e4, "neox"), "float32")


def test_empty_calls_launch_nothing():
    for shape in ((0, 8), (2, 0, 3, 8), (0, 2, 3, 8), (1, 2, 0, 8)):
        _, device = run(random(shape, "float32"), "float32", "sm_80")
        assert not device.machines


@DTYPES_AND_ARCHS
@pytest.mark.parametrize("layout", ["neox", "interleaved"])
def test_contiguous_calls_use_128_bit_accesses_and_nothing_spills(layout, dtype, arch):
    program, _ = run(random((2, 3, 2, 64), dtype), dtype, arch, layout=layout)
    assert {"ld.global.nc.v4.b32", "st.global.v4.b32"} <= parsed(program, arch).forms()
    others = [run(random((2, 10), dtype), dtype, arch, layout=layout)[0]]
    for ids in (np.int32, np.int64):
        others.append(run_ids(random((2, 2, 64), dtype), np.zeros(2, ids), dtype, arch)[0])
        others.append(run_ids(random((2, 2, 10), dtype), np.zeros(2, ids), dtype, arch)[0])
    for each in (program, *others):
        facts = facts_of(each, arch)
        assert facts["spill_bytes"] == facts["stack_bytes"] == 0


def scaled(method: str, dim: int, factors: np.ndarray | None = None) -> tuple[Any, np.ndarray, float]:
    """Scaling of a method for head vectors of `dim`, and the frequencies and amplitude that its reference states."""
    if method == "llama31":
        reference = rope.llama31_frequencies(dim, 500000.0, 8.0, 1.0, 4.0, 64)
        return llama31(8.0, 1.0, 4.0, 64), reference.numpy(), 1.0
    if method == "yarn":
        reference = rope.yarn_frequencies(dim, 500000.0, 4.0, 64, 8.0, 1.0)
        return yarn(dim, 500000.0, 4.0, 64, 8.0, 1.0, 0.75), reference.numpy(), rope.yarn_amplitude(4.0, 0.75)
    held = None if factors is None else torch.from_numpy(factors.astype(np.float64))
    reference = rope.long_rope_frequencies(dim, 500000.0, held)
    return long_rope(32.0, 4096), reference.numpy(), rope.long_rope_amplitude(32.0, 4096)


def run_scaled(
    x: np.ndarray, dtype: str, arch: str, method: str, *, layout="neox", factors=None, factor_dtype="float32",
    storage_offset=0, max_grid=None,
):  # fmt: skip
    device = Device(arch, max_grid)
    source = device.tensor(x, dtype, storage_offset=storage_offset)
    output = device.empty(x.shape, dtype)
    held = None if factors is None else device.tensor(factors, factor_dtype, storage_offset=storage_offset)
    scaling, frequencies, amplitude = scaled(method, x.shape[-1], factors)
    facts = {
        "x": source.spec,
        "output": output.spec,
        "rope_layout": layout,
        "input_layout": "1d" if x.ndim == 2 else "2d",
        "base": 500000.0,
        "scaling": scaling,
        "device": DEVICE[arch],
    }
    if method == "long_rope":
        call = LongRoPECall(**facts, rescale_factors=None if held is None else held.spec)
        program = device.run(LongRoPECudaKernel, call, source, held, output)
    else:
        program = device.run(RoPECudaKernel, RoPECall(**facts), source, output)
    positions = np.arange(x.shape[0]) if x.ndim == 2 else np.arange(x.shape[1])[:, None]
    expected = amplitude * turned(x, positions[..., None] * frequencies, layout)
    assert_close(device.fetch(output), expected, dtype)
    return program


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["neox", "interleaved"])
@pytest.mark.parametrize("method", ["llama31", "yarn", "long_rope"])
def test_scaled_frequencies(method, layout, dtype):
    for arch, shape in (("sm_80", (2, 40, 3, 64)), ("sm_90a", (40, 10)), ("sm_80", (1, 3, 2, 2))):
        run_scaled(random(shape, dtype), dtype, arch, method, layout=layout)
    qkv = random((2, 6, 9, 64), dtype)
    run_scaled(qkv.transpose(0, 2, 1, 3)[:, 1:], dtype, "sm_90a", method, layout=layout, max_grid=2)
    run_scaled(qkv[..., ::2], dtype, "sm_80", method, layout=layout)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["neox", "interleaved"])
def test_rescale_factors_of_every_dtype(layout, dtype):
    for factor_dtype in DTYPES:
        for arch, shape in (("sm_80", (1, 9, 2, 64)), ("sm_90a", (9, 10))):
            factors = (1.0 + 7.0 * np.random.default_rng(1).random(shape[-1] // 2)).astype(NUMPY[factor_dtype])
            run_scaled(
                random(shape, dtype),
                dtype,
                arch,
                "long_rope",
                layout=layout,
                factors=factors,
                factor_dtype=factor_dtype,
            )


@pytest.mark.parametrize("dtype", DTYPES)
def test_scaled_frequencies_at_every_storage_offset(dtype):
    x, factors = random((2, 3, 1, 64), dtype), np.linspace(1.0, 9.0, 32, dtype=np.float32)
    for offset in range(16):
        run_scaled(x, dtype, "sm_80", "long_rope", factors=factors, storage_offset=offset)


@DTYPES_AND_ARCHS
@pytest.mark.parametrize("layout", ["neox", "interleaved"])
def test_scaled_kernels_use_128_bit_accesses_and_nothing_spills(layout, dtype, arch):
    program = run_scaled(random((1, 3, 2, 64), dtype), dtype, arch, "yarn", layout=layout)
    assert {"ld.global.nc.v4.b32", "st.global.v4.b32"} <= parsed(program, arch).forms()
    narrow = run_scaled(random((2, 10), dtype), dtype, arch, "long_rope", layout=layout)
    for each in (program, narrow):
        facts = facts_of(each, arch)
        assert facts["spill_bytes"] == facts["stack_bytes"] == 0
