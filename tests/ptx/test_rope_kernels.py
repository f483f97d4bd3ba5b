"""Both rotary position embeddings on CUDA, run in the PTX interpreter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.ptx.harness import ARCHS, DEVICE, DTYPES, NUMPY, Device, assert_close, facts_of, parsed, random
from tileops.kernels.rope.call_spec import RoPECall, RoPEPositionIdsCall
from tileops.kernels.rope.rope_cuda import RoPECudaKernel, RoPEPositionIdsCudaKernel


def rotate(x: np.ndarray, positions: np.ndarray, rotary_dim: int, base: float, layout: str) -> np.ndarray:
    """`x` ``[..., D]`` turned by `positions`, which broadcast to its leading axes, in float64."""
    wide = x.astype(np.float64)
    pair = np.arange(rotary_dim // 2)
    angles = positions[..., None].astype(np.float64) * base ** (-2.0 * pair / max(rotary_dim, 1))
    if layout == "neox":
        first, second = slice(0, rotary_dim // 2), slice(rotary_dim // 2, rotary_dim)
    else:
        first, second = slice(0, rotary_dim, 2), slice(1, rotary_dim, 2)
    out = wide.copy()
    out[..., first] = wide[..., first] * np.cos(angles) - wide[..., second] * np.sin(angles)
    out[..., second] = wide[..., second] * np.cos(angles) + wide[..., first] * np.sin(angles)
    return out


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


@pytest.mark.parametrize("arch", ARCHS)
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


@pytest.mark.parametrize("arch", ARCHS)
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


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", DTYPES)
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
