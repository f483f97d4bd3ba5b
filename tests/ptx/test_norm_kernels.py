"""RMSNorm on CUDA, run in the PTX interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptx.harness import ARCHS, DEVICE, DTYPES, DTYPES_AND_ARCHS, Device, assert_close, facts_of, parsed, random
from tileops.kernels.norm.call_spec import RMSNormCall
from tileops.kernels.norm.rms_norm_cuda import RMSNormCudaKernel

pytestmark = pytest.mark.xdist_group("ptx-norm")  # its tests share programs, which each process compiles
EPS = 1e-6


def rms_norm(x: np.ndarray, weight: np.ndarray | None, ndim: int, eps: float = EPS) -> np.ndarray:
    wide = x.astype(np.float64)
    axes = tuple(range(-ndim, 0))
    y = wide / np.sqrt(np.mean(wide**2, axis=axes, keepdims=True) + eps)
    return y if weight is None else y * weight.astype(np.float64)


def run(
    x: np.ndarray,
    weight: np.ndarray | None,
    dtype: str,
    arch: str,
    *,
    ndim: int = 1,
    offsets=(0, 0, 0),
    max_grid: int | None = None,
    **config,
):
    device = Device(arch, max_grid)
    source = device.tensor(x, dtype, storage_offset=offsets[0])
    factors = None if weight is None else device.tensor(weight, dtype, storage_offset=offsets[1])
    output = device.empty(x.shape, dtype, storage_offset=offsets[2])
    call = RMSNormCall(
        x=source.spec,
        weight=factors and factors.spec,
        output=output.spec,
        normalized_ndim=ndim,
        eps=EPS,
        device=DEVICE[arch],
    )
    program = device.run(RMSNormCudaKernel, call, source, factors, output, **config)
    assert_close(device.fetch(output), rms_norm(x, weight, ndim), dtype)
    return program, device


@DTYPES_AND_ARCHS
@pytest.mark.parametrize(
    ("rows", "size", "form"),
    [
        (1, 64, "held_rows"),
        (9, 576, "held_rows"),
        (3, 2048, "held_rows"),
        (2, 4096, "held_rows"),
        (2, 40960, "streamed_rows"),
        (5, 1, "streamed_rows"),
        (4, 33, "streamed_rows"),
        (3, 1030, "streamed_rows"),
    ],
)
def test_rms_norm(rows, size, form, dtype, arch):
    program, _ = run(random((rows, size), dtype), random((size,), dtype, 1), dtype, arch)
    assert program.name == form


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [128, 1030])
def test_without_weight(size, dtype):
    run(random((3, size), dtype), None, dtype, "sm_80")


@pytest.mark.parametrize("dtype", DTYPES)
def test_at_every_storage_offset(dtype):
    x, weight = random((3, 64), dtype), random((64,), dtype, 1)
    for offset in range(16):
        run(x, weight, dtype, "sm_80", offsets=(offset, 0, 0))
        run(x, weight, dtype, "sm_80", offsets=(8, offset, offset))


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_inputs(dtype):
    wide, weight = random((12, 128), dtype), random((64,), dtype, 1)
    run(wide[:, 64:], weight, dtype, "sm_80")
    run(wide[::3, :64], weight, dtype, "sm_90a")
    run(wide[:, ::2], weight, dtype, "sm_80")
    run(wide.T, weight[:12], dtype, "sm_90a")
    run(wide[:, :64], random((128,), dtype, 2)[::2], dtype, "sm_80")
    run(np.broadcast_to(wide[:1], (5, 128)), random((128,), dtype, 2), dtype, "sm_90a")
    run(np.broadcast_to(wide[:, :1], (12, 64)), weight, dtype, "sm_80")
    run(wide.reshape(3, 4, 128).transpose(1, 0, 2), random((128,), dtype, 2), dtype, "sm_80")


@pytest.mark.parametrize("dtype", DTYPES)
def test_several_normalized_axes(dtype):
    x, weight = random((2, 3, 4, 8), dtype), random((4, 8), dtype, 1)
    run(x, weight, dtype, "sm_80", ndim=2)
    run(x, np.broadcast_to(weight[:, :1], (4, 8)), dtype, "sm_90a", ndim=2)
    run(x.transpose(0, 1, 3, 2), weight.reshape(8, 4), dtype, "sm_80", ndim=2)
    run(x, random((2, 3, 4, 8), dtype, 3), dtype, "sm_90a", ndim=4)


@pytest.mark.parametrize("arch", [pytest.param("sm_80", marks=pytest.mark.nightly), "sm_90a"])
@pytest.mark.parametrize("block", [128, 256, 512, 1024])
def test_every_block_of_the_tile_space(block, arch):
    """On one architecture; on the other in the nightly tests."""
    for size in (256, 1000, 4096, 8192):
        run(random((3, size), "bfloat16"), random((size,), "bfloat16", 1), "bfloat16", arch, block=block)


@pytest.mark.parametrize("size", [256, 4096, 20480, 33])
def test_loops_when_the_grid_is_small(size):
    _, device = run(random((23, size), "float16"), random((size,), "float16", 1), "float16", "sm_90a", max_grid=2)
    assert device.machines[0].grid == 2


def test_half_precision_squares_do_not_overflow():
    x = np.full((2, 64), 300, np.float16)
    run(x, None, "float16", "sm_80")


def test_a_nan_stays_in_its_row():
    x = random((4, 256), "float32")
    x[1, 17] = np.nan
    _, device = run(x, None, "float32", "sm_80")
    assert device.machines


def test_results_do_not_depend_on_the_number_of_rows():
    x, weight = random((9, 4096), "float32"), random((4096,), "float32", 1)
    results = []
    for rows in (1, 9):
        device = Device("sm_90a", max_grid=2)
        source, factors = device.tensor(x[:rows], "float32"), device.tensor(weight, "float32")
        output = device.empty((rows, 4096), "float32")
        call = RMSNormCall(
            x=source.spec,
            weight=factors.spec,
            output=output.spec,
            normalized_ndim=1,
            eps=EPS,
            device=DEVICE["sm_90a"],
        )
        device.run(RMSNormCudaKernel, call, source, factors, output)
        results.append(device.fetch(output)[0])
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_default_configs_use_128_bit_accesses_and_never_spill(dtype, arch):
    for size in (64, 576, 2048, 4096, 8192, 65536):
        shape = (2, size)
        x = Device(arch).tensor(np.zeros(shape, random((1,), dtype).dtype), dtype)
        call = RMSNormCall(x=x.spec, weight=None, output=x.spec, normalized_ndim=1, eps=EPS, device=DEVICE[arch])
        (program,) = RMSNormCudaKernel.programs(call, RMSNormCudaKernel.default_config(call)).values()
        facts = facts_of(program, arch)
        assert facts["spill_bytes"] == facts["stack_bytes"] == 0
        assert {"ld.global.nc.v4.b32", "st.global.v4.b32"} <= parsed(program, arch).forms()


@pytest.mark.parametrize("arch", ARCHS)
def test_no_point_of_the_tile_space_spills(arch):
    for size in (576, 4096, 8192, 16384):
        for config in RMSNormCudaKernel.tile_space.points():
            x = Device(arch).tensor(random((1, size), "bfloat16"), "bfloat16")
            call = RMSNormCall(x=x.spec, weight=None, output=x.spec, normalized_ndim=1, eps=EPS, device=DEVICE[arch])
            (program,) = RMSNormCudaKernel.programs(call, config).values()
            assert facts_of(program, arch)["spill_bytes"] == 0, config


def test_at_most_eight_programs_per_dtype_and_config():
    programs = set()
    for size in (1, 7, 33, 64, 576, 1030, 2050, 2048, 4096, 8192, 16384, 65536):
        for offset in (0, 1, 2, 4, 8):
            for step in (1, 2):
                values = random((2, size * step), "bfloat16")[:, ::step]
                x = Device("sm_80").tensor(values, "bfloat16", storage_offset=offset)
                call = RMSNormCall(
                    x=x.spec, weight=None, output=x.spec, normalized_ndim=1, eps=EPS, device=DEVICE["sm_80"]
                )
                programs |= set(RMSNormCudaKernel.programs(call, {"block": 256}).values())
    assert len(programs) <= 8
