"""The gradient of SiluAndMul on CUDA, run in the PTX interpreter."""

from __future__ import annotations

import numpy as np

from tests.ptx.harness import DEVICE, DTYPES_AND_ARCHS, Device, assert_close, facts_of, parsed, random
from tileops.jit.program import Program
from tileops.kernels.elementwise.silu_and_mul_bwd_call import SiluAndMulBwdCall
from tileops.kernels.elementwise.silu_and_mul_bwd_cuda import SiluAndMulBwdCudaKernel


def gradient(grad: np.ndarray, x: np.ndarray) -> np.ndarray:
    given = grad.astype(np.float64)
    gate, up = np.split(x.astype(np.float64), 2, axis=1)
    s = 1 / (1 + np.exp(-gate))
    return np.concatenate((given * up * s * (1 + gate * (1 - s)), given * gate * s), axis=1)


def run(
    grad: np.ndarray, x: np.ndarray, dtype: str, arch: str = "sm_80", *, offset: int = 0, max_grid: int | None = None
) -> Program:
    device = Device(arch, max_grid)
    given, source = device.tensor(grad, dtype), device.tensor(x, dtype, storage_offset=offset)
    output = device.empty(x.shape, dtype)
    call = SiluAndMulBwdCall(given.spec, source.spec, output.spec, device=DEVICE[arch])
    program = device.run(SiluAndMulBwdCudaKernel, call, given, source, output)
    assert_close(device.fetch(output), gradient(grad, x), dtype)
    return program


@DTYPES_AND_ARCHS
def test_silu_and_mul_bwd(dtype: str, arch: str) -> None:
    for rows, size, whole in ((1, 16, True), (3, 64, True), (5, 7, False), (2, 1, False), (7, 520, True)):
        program = run(random((rows, size), dtype), random((rows, 2 * size), dtype, 1), dtype, arch)
        assert (dict(program.config)["width"] == 16) == whole
        if whole:
            assert {"ld.global.nc.v4.b32", "st.global.v4.b32"} <= parsed(program, arch).forms()
        facts = facts_of(program, arch)
        assert facts["spill_bytes"] == facts["stack_bytes"] == 0


def test_any_layout() -> None:
    grad, x = random((6, 32), "float16"), random((6, 64), "float16", 1)
    run(np.broadcast_to(np.float16(1.5), (6, 32)), x, "float16")
    run(np.broadcast_to(grad[:1], (6, 32)), x, "float16")
    run(random((12, 64), "float16")[::2, ::2], x, "float16")
    run(grad, random((64, 6), "float16", 1).T, "float16")
    run(grad, random((6, 80), "float16", 1)[:, 8:72], "float16")
    run(grad, x, "float16", offset=1)
    run(grad, x, "float16", max_grid=1)
