"""SiluAndMul and Add on CUDA, run in the PTX interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptx.harness import ARCHS, DEVICE, DTYPES, Device, assert_close, facts_of, parsed, random
from tileops.kernels.elementwise.call_spec import BinaryCall, GatedCall
from tileops.kernels.elementwise.gated_cuda import GatedCudaKernel
from tileops.kernels.elementwise.pointwise_cuda import BinaryCudaKernel


def silu_and_mul(x: np.ndarray) -> np.ndarray:
    gate, up = np.split(x.astype(np.float64), 2, axis=1)
    return gate / (1 + np.exp(-gate)) * up


def run_silu(x: np.ndarray, dtype: str, arch: str, *, storage_offset: int = 0, max_grid: int | None = None):
    device = Device(arch, max_grid)
    source = device.tensor(x, dtype, storage_offset=storage_offset)
    output = device.empty((x.shape[0], x.shape[1] // 2), dtype)
    call = GatedCall(function="silu_and_mul", x=source.spec, output=output.spec, device=DEVICE[arch])
    program = device.run(GatedCudaKernel, call, source, output)
    assert_close(device.fetch(output), silu_and_mul(x), dtype)
    return program, device


def run_add(a: np.ndarray, b: np.ndarray, dtype: str, arch: str, *, alpha=1, offsets=(0, 0, 0), max_grid=None):
    device = Device(arch, max_grid)
    left = device.tensor(a, dtype, storage_offset=offsets[0])
    right = device.tensor(b, dtype, storage_offset=offsets[1])
    output = device.empty(np.broadcast_shapes(a.shape, b.shape), dtype, storage_offset=offsets[2])
    call = BinaryCall(
        function="add", a=left.spec, b=right.spec, output=output.spec, scalars=(alpha,), device=DEVICE[arch]
    )
    program = device.run(BinaryCudaKernel, call, left, right, output)
    expected = a.astype(np.float64) + alpha * b.astype(np.float64)
    assert_close(device.fetch(output), expected, dtype)
    return program, device


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 32), (3, 128), (5, 14), (2, 2), (7, 1040)])
def test_silu_and_mul(shape, dtype, arch):
    run_silu(random(shape, dtype), dtype, arch)


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_and_mul_at_every_storage_offset(dtype):
    for offset in range(16):
        program, _ = run_silu(random((3, 64), dtype), dtype, "sm_80", storage_offset=offset)
        itemsize = 4 if dtype == "float32" else 2
        assert dict(program.config)["group"] == (16 // itemsize if offset * itemsize % 16 == 0 else 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_and_mul_of_strided_inputs(dtype):
    run_silu(random((6, 256), dtype)[::2], dtype, "sm_80")
    run_silu(random((64, 12), dtype).T, dtype, "sm_90a")
    run_silu(random((4, 96), dtype)[:, ::3], dtype, "sm_80")
    run_silu(np.broadcast_to(random((1, 64), dtype), (5, 64)), dtype, "sm_90a")
    run_silu(np.broadcast_to(random((4, 1), dtype), (4, 32)), dtype, "sm_80")


def test_silu_and_mul_loops_when_the_grid_is_small():
    _, device = run_silu(random((40, 512), "bfloat16"), "bfloat16", "sm_90a", max_grid=2)
    assert device.machines[0].grid == 2


@pytest.mark.parametrize("arch", ARCHS)
def test_silu_special_values(arch):
    gate = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 88.5, -88.5, -104.0, 1e-40, -1e-40, 1e38, -1e38], np.float32)
    x = np.concatenate((gate, np.ones_like(gate)))[None]
    device = Device(arch)
    source, output = device.tensor(x, "float32"), device.empty((1, len(gate)), "float32")
    call = GatedCall(function="silu_and_mul", x=source.spec, output=output.spec, device=DEVICE[arch])
    device.run(GatedCudaKernel, call, source, output)
    with np.errstate(all="ignore"):
        expected = silu_and_mul(x).astype(np.float32)
    np.testing.assert_allclose(device.fetch(output), expected, rtol=1e-5, atol=1e-35)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("alpha", [1, -0.5])
def test_add_contiguous(dtype, arch, alpha):
    for shape in [(1,), (7,), (33, 5), (2, 8, 64), (513,)]:
        run_add(random(shape, dtype), random(shape, dtype, 1), dtype, arch, alpha=alpha)


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_at_every_storage_offset(dtype):
    a, b = random((4, 33), dtype), random((4, 33), dtype, 1)
    for offset in range(16):
        run_add(a, b, dtype, "sm_80", offsets=(offset, 0, 0))
        run_add(a, b, dtype, "sm_80", offsets=(3, offset, offset))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((8, 32), (32,)),
        ((8, 32), (8, 1)),
        ((8, 1), (1, 32)),
        ((8, 33), (33,)),
        ((2, 3, 4, 16), (3, 1, 1)),
        ((2, 3, 4, 5), (4, 1)),
        ((6, 16), ()),
        ((), ()),
        ((2, 1, 4, 1, 16), (1, 3, 1, 2, 16)),
        ((2, 1, 3, 1, 2, 1), (1, 2, 1, 2, 1, 3)),
    ],
)
def test_add_broadcast(a, b, dtype, arch):
    run_add(random(a, dtype), random(b, dtype, 1), dtype, arch, alpha=2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_of_strided_inputs(dtype):
    x, y = random((24, 48), dtype), random((24, 48), dtype, 1)
    run_add(x.T, y.T, dtype, "sm_80")
    run_add(x[::2], y[1::2], dtype, "sm_90a")
    run_add(x[:, ::2], y[:, 1::2], dtype, "sm_80")
    run_add(x, y.T[:24, :1], dtype, "sm_90a")
    run_add(
        x.reshape(2, 3, 4, 48).transpose(3, 1, 0, 2),
        y.reshape(2, 3, 4, 48).transpose(3, 1, 0, 2)[..., :1],
        dtype,
        "sm_80",
    )


def test_add_loops_when_the_grid_is_small():
    _, device = run_add(random((9, 1000), "float16"), random((9, 1000), "float16", 1), "float16", "sm_80", max_grid=3)
    assert device.machines[0].grid == 3


def test_empty_calls_launch_nothing():
    _, device = run_add(random((0, 8), "float32"), random((8,), "float32"), "float32", "sm_80")
    assert not device.machines
    _, device = run_silu(random((0, 8), "float32"), "float32", "sm_80")
    assert not device.machines


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_contiguous_calls_use_128_bit_accesses(dtype, arch):
    for program, _ in (
        run_add(random((64, 32), dtype), random((64, 32), dtype, 1), dtype, arch),
        run_add(random((8, 32), dtype), random((32,), dtype, 1), dtype, arch),
        run_silu(random((4, 64), dtype), dtype, arch),
    ):
        forms = parsed(program, arch).forms()
        assert "ld.global.nc.v4.b32" in forms
        assert "st.global.v4.b32" in forms


def test_a_call_with_too_many_axes_is_refused_with_the_reason():
    device = Device("sm_80")
    a = device.tensor(random((2, 1) * 9, "float32"), "float32")
    b = device.tensor(random((1, 2) * 9, "float32"), "float32")
    output = device.empty((2, 2) * 9, "float32")
    call = BinaryCall(function="add", a=a.spec, b=b.spec, output=output.spec, scalars=(1,), device=DEVICE["sm_80"])
    assert "more than 8 axes" in BinaryCudaKernel.refusal(call)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_spills(dtype, arch):
    shapes = [
        ((64,), (64,)),
        ((8, 32), (32,)),
        ((2, 3, 4, 16), (3, 1, 1)),
        ((8, 33), (33,)),
        ((2, 1, 3, 1, 2), (1, 2, 1, 2, 1)),
    ]
    for a, b in shapes:
        program, _ = run_add(random(a, dtype), random(b, dtype), dtype, arch)
        facts = facts_of(program, arch)
        assert facts["spill_bytes"] == facts["stack_bytes"] == 0
