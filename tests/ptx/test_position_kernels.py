"""Operators of positions alone, in the PTX interpreter."""

from __future__ import annotations

import pytest
import torch

from tests.ptx.harness import ARCHS, DEVICE, DTYPES, Device, facts_of
from tests.ptx.pointwise import check
from tileops.kernels.elementwise.alibi_cuda import AlibiCudaKernel
from tileops.kernels.elementwise.call_spec import AlibiCall, SinusoidalCall
from tileops.kernels.elementwise.sinusoidal_cuda import SinusoidalCudaKernel
from tileops.workloads import elementwise


def run(kernel, call_type, shape, dtype, arch, storage_offset=0, max_grid=None):
    device = Device(arch, max_grid)
    output = device.empty(shape, dtype, storage_offset=storage_offset)
    program = device.run(kernel, call_type(output=output.spec, device=DEVICE[arch]), output)
    facts = facts_of(program, arch)
    assert facts["spill_bytes"] == facts["stack_bytes"] == 0
    return device.fetch(output), program


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_alibi(dtype, arch):
    for heads, size in ((4, 8), (3, 7), (12, 5), (1, 33)):
        got, _ = run(AlibiCudaKernel, AlibiCall, (heads, size, size), dtype, arch)
        check(got, getattr(torch, dtype), elementwise.alibi(seq_len=size, num_heads=heads))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sinusoidal(dtype, arch):
    for positions, width in ((5, 16), (40, 2), (9, 22), (3, 64)):
        got, _ = run(SinusoidalCudaKernel, SinusoidalCall, (positions, width), dtype, arch)
        expected = elementwise.sinusoidal(seq_len=positions, d_model=width)
        check(got, getattr(torch, dtype), expected, slack=1e-7 if dtype == "float32" else 0.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_outputs_at_every_storage_offset_and_small_grids(dtype):
    biases = elementwise.alibi(seq_len=6, num_heads=3)
    waves = elementwise.sinusoidal(seq_len=3, d_model=8)
    for offset in range(16):
        got, _ = run(AlibiCudaKernel, AlibiCall, (3, 6, 6), dtype, "sm_80", offset, max_grid=1)
        check(got, getattr(torch, dtype), biases)
        got, _ = run(SinusoidalCudaKernel, SinusoidalCall, (3, 8), dtype, "sm_80", 2 * offset, max_grid=1)
        check(got, getattr(torch, dtype), waves, slack=1e-7)
