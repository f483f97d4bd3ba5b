"""The gradients of RMSNorm on CUDA, run in the PTX interpreter."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.ptx.harness import DEVICE, DTYPES_AND_ARCHS, Device, assert_close, facts_of, random
from tileops.kernels.base import TensorSpec
from tileops.kernels.norm.call_spec import RMSNormBwdCall
from tileops.kernels.norm.rms_norm_bwd_cuda import RMSNormBwdCudaKernel

EPS = 1e-6


def gradients(
    grad: np.ndarray, x: np.ndarray, weight: np.ndarray | None, ndim: int
) -> tuple[np.ndarray, np.ndarray | None]:
    given, wide, axes = grad.astype(np.float64), x.astype(np.float64), tuple(range(-ndim, 0))
    scale = 1 / np.sqrt(np.mean(wide**2, axis=axes, keepdims=True) + EPS)
    y = wide * scale
    inner = given if weight is None else given * weight.astype(np.float64)
    grad_x = (inner - y * np.mean(inner * y, axis=axes, keepdims=True)) * scale
    rows = tuple(range(x.ndim - ndim))
    return grad_x, None if weight is None else np.sum(given * y, axis=rows)


def run(
    grad: np.ndarray,
    x: np.ndarray,
    weight: np.ndarray | None,
    dtype: str,
    arch: str = "sm_80",
    *,
    ndim: int = 1,
    offset: int = 0,
    sm_count: int = 4,
    max_grid: int | None = None,
    **config: Any,
) -> tuple[str, np.ndarray | None]:
    """Name of the body, and the gradient of the weight."""
    device = Device(arch, max_grid)
    given, source = device.tensor(grad, dtype, storage_offset=offset), device.tensor(x, dtype)
    factors = None if weight is None else device.tensor(weight, dtype)
    grad_x = device.empty(x.shape, dtype)
    grad_weight = None if weight is None else device.empty(weight.shape, dtype)
    call = RMSNormBwdCall(
        grad_out=given.spec,
        x=source.spec,
        weight=factors and factors.spec,
        grad_x=grad_x.spec,
        grad_weight=grad_weight and grad_weight.spec,
        normalized_ndim=ndim,
        eps=EPS,
        device=dataclasses.replace(DEVICE[arch], sm_count=sm_count),
    )
    program = device.run(RMSNormBwdCudaKernel, call, given, source, factors, grad_x, grad_weight, **config)
    expected, expected_weight = gradients(grad, x, weight, ndim)
    assert_close(device.fetch(grad_x), expected, dtype)
    if grad_weight is None or expected_weight is None:
        return program.name, None
    found = device.fetch(grad_weight)
    # A sum over many rows cancels: its error is relative to the terms.
    size = max(1.0, float(np.sqrt(np.mean(expected_weight**2))))
    assert_close((found.astype(np.float64) / size), expected_weight / size, dtype)
    return program.name, found


def operands(rows: int, size: int, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return random((rows, size), dtype, 2), random((rows, size), dtype), random((size,), dtype, 1)


# A warp with one access a thread and with several, a block likewise, and what is not held.
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("rows", "size", "form"),
    [
        (1, 64, "held_rows"),
        (9, 576, "held_rows"),
        (3, 2048, "held_rows"),
        (2, 8192, "held_rows"),
        (1, 9216, "strided_rows"),
        (35, 33, "strided_rows"),
        (5, 1, "strided_rows"),
    ],
)
def test_rms_norm_bwd(rows: int, size: int, form: str, dtype: str) -> None:
    grad, x, weight = operands(rows, size, dtype)
    assert run(grad, x, weight, dtype)[0] == form
    assert run(grad, x, None, dtype)[0] == form


def test_bfloat16_on_another_architecture() -> None:
    run(*operands(3, 576, "bfloat16"), "bfloat16", "sm_90a")


def test_owners_take_several_rows_and_the_grid_may_be_small() -> None:
    for size in (256, 2048):
        grad, x, weight = operands(67, size, "float16")
        _, one = run(grad, x, weight, "float16", sm_count=1, block=512)
        _, same = run(grad, x, weight, "float16", sm_count=1, max_grid=1, block=512)
        assert one is not None
        np.testing.assert_array_equal(one, same)  # the same owners, whoever runs them


def test_any_layout() -> None:
    grad, x, weight = operands(12, 64, "float16")
    wide = random((12, 128), "float16", 3)
    assert run(wide[:, 64:], x, weight, "float16")[0] == "held_rows"
    assert run(wide[:, ::2], x, weight, "float16")[0] == "strided_rows"
    assert run(grad, random((64, 12), "float16").T, weight, "float16")[0] == "strided_rows"
    run(np.broadcast_to(np.float16(1.0), (12, 64)), x, weight, "float16")
    run(np.broadcast_to(grad[:1], (12, 64)), x, np.broadcast_to(weight[:1], (64,)), "float16")
    run(grad, x, weight, "float16", offset=1)


def test_several_axes() -> None:
    x, weight = random((2, 3, 4, 8), "float32"), random((4, 8), "float32", 1)
    grad = random((2, 3, 4, 8), "float32", 2)
    run(grad, x, weight, "float32", ndim=2)
    run(grad.transpose(1, 0, 2, 3), x.transpose(1, 0, 2, 3), weight, "float32", ndim=2)
    run(grad, x.transpose(0, 1, 3, 2).copy().transpose(0, 1, 3, 2), weight, "float32", ndim=2)
    run(grad, x, random((2, 3, 4, 8), "float32", 3), "float32", ndim=4)


def test_no_rows_give_a_gradient_of_zeros() -> None:
    for size in (64, 33):
        grad, x, weight = operands(0, size, "float32")
        _, found = run(grad, x, weight, "float32")
        assert found is not None
        assert not found.any()


@DTYPES_AND_ARCHS
def test_nothing_spills_in_the_largest_block(dtype: str, arch: str) -> None:
    item = 4 if dtype == "float32" else 2
    for size in (64, 576, 8192, 33):
        row = TensorSpec("cuda:0", dtype, (2, size), (size, 1), 16 if size != 33 else item)
        weight = TensorSpec("cuda:0", dtype, (size,), (1,), 16)
        call = RMSNormBwdCall(row, row, weight, row, weight, normalized_ndim=1, eps=EPS, device=DEVICE[arch])
        for program in RMSNormBwdCudaKernel.programs(call, {"block": 512}).values():
            facts = facts_of(program, arch)
            assert facts["spill_bytes"] == facts["stack_bytes"] == 0, (size, program.name)


def test_at_most_eight_programs_per_dtype_and_config() -> None:
    programs = set()
    for size in (1, 7, 64, 576, 1030, 2048, 4096, 8192, 16384, 65536):
        for alignment in (2, 16):
            for rows in (1, 2, 5000):
                row = TensorSpec("cuda:0", "bfloat16", (rows, size), (size, 1), alignment)
                weight = TensorSpec("cuda:0", "bfloat16", (size,), (1,), 16)
                call = RMSNormBwdCall(row, row, weight, row, weight, 1, EPS, device=DEVICE["sm_80"])
                programs |= set(RMSNormBwdCudaKernel.programs(call, {"block": 256}).values())
    assert len(programs) <= 8
