"""Operators, storage formats, masks and lanes of the vocabulary, on every CPU target."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tileops import jit
from tileops.jit import Program

_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def test_operators(target):
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.randn(1003, generator=generator) * 5 for _ in range(2))
    specials = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 2.5, -2.5, 1e-45, 0.5, 1.5])
    pairs = torch.cartesian_prod(specials, specials)
    x, y = torch.cat([x, pairs[:, 0]]), torch.cat([y, pairs[:, 1]])
    n = x.numel()
    program = Program.of("jit_test_bodies:arithmetic", ["ptr", "ptr", "ptr", "i64"], rows=20)
    out = torch.empty(20, n)
    jit.get_entry(program, target).launch(0, n, x.data_ptr(), y.data_ptr(), out.data_ptr(), n)
    bits, other = x.view(torch.int32), y.view(torch.int32)
    total = x + y
    root = x.double().sqrt().float()  # torch's own float32 root is not correctly rounded
    want = [
        *(total, x - y, x * y, x / y, -x * 2 + 0.5),
        torch.where(x < y, x, torch.tensor(3.0)),
        torch.where((x >= 0) | x.isnan(), y, x),
        torch.where(x > y, x, y),
        torch.where(x < y, x, y),
        *(torch.maximum(x, y), torch.minimum(x, y), torch.copysign(x, y), x.abs(), x.floor(), x.round()),
        *(root, 1 / root, (bits >> 20).float(), (bits ^ (other & 1)).view(torch.float32)),
        total * 0.25,
    ]
    for row, (got, expected) in enumerate(zip(out, want, strict=True)):
        same = (got == expected) | (got.isnan() & expected.isnan())
        assert same.all(), (row, x[~same][:3], y[~same][:3], got[~same][:3], expected[~same][:3])


def test_rounding_keeps_the_sign_of_zero(target):
    x = torch.tensor([-0.3, 0.3, -0.0, 0.0, -0.5, 0.5])
    out = torch.empty(20, 6)
    program = Program.of("jit_test_bodies:arithmetic", ["ptr", "ptr", "ptr", "i64"], rows=20)
    jit.get_entry(program, target).launch(0, 6, x.data_ptr(), x.data_ptr(), out.data_ptr(), 6)
    assert torch.signbit(out[14]).tolist() == torch.signbit(x.round()).tolist()
    assert torch.signbit(out[13]).tolist() == torch.signbit(x.floor()).tolist()


def _floats() -> torch.Tensor:
    """float32 values around every rounding boundary of the 16-bit formats, and random bits."""
    halves = torch.arange(1 << 16, dtype=torch.int32)
    steps = torch.tensor([-1, 0, 1, 0x7FFF, 0x8000, 0x8001], dtype=torch.int64)
    near_bf16 = ((halves.long() << 16)[:, None] + steps).flatten()
    near_f16 = halves.short().view(torch.float16).float().view(torch.int32).long()
    near_f16 = (near_f16[:, None] + torch.tensor([-1, 0, 1, 0xFFF, 0x1000, 0x1001])).flatten()
    noise = torch.from_numpy(np.random.default_rng(1).integers(0, 1 << 32, 50_001))
    bits = torch.cat([near_bf16, near_f16, noise]) & 0xFFFFFFFF
    return torch.from_numpy(bits.numpy().astype(np.uint32).view(np.float32))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("body", ["convert", "convert_scalars"])
def test_narrowing_rounds_to_nearest_even(target, dtype, body):
    x = _floats()
    y = torch.empty(x.numel(), dtype=_DTYPES[dtype])
    program = Program.of(f"jit_test_bodies:{body}", ["ptr", "ptr"], source="f32", destination=dtype)
    jit.get_entry(program, target).launch(1, x.numel(), x.data_ptr(), y.data_ptr())
    # NumPy and PyTorch agree on everything but the payload of NaN.
    want = x.to(_DTYPES[dtype])
    same = (y.view(torch.int16) == want.view(torch.int16)) | (y.isnan() & want.isnan())
    assert same.all(), (x[~same][:4], y[~same][:4], want[~same][:4])
    if dtype == "bf16":
        assert set((y.view(torch.int16)[y.isnan()].int() & 0xFFFF).tolist()) == {0x7FC0}


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("body", ["convert", "convert_scalars"])
def test_widening_is_exact(target, dtype, body):
    x = torch.arange(1 << 16, dtype=torch.int32).short().view(torch.float16).to(_DTYPES[dtype])
    if dtype == "bf16":
        x = torch.arange(1 << 16, dtype=torch.int32).short().view(torch.bfloat16)
    y = torch.empty(x.numel())
    program = Program.of(f"jit_test_bodies:{body}", ["ptr", "ptr"], source=dtype, destination="f32")
    jit.get_entry(program, target).launch(1, x.numel(), x.data_ptr(), y.data_ptr())
    torch.testing.assert_close(y, x.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_masked_access_touches_nothing_else(target, dtype):
    program = Program.of("jit_test_bodies:convert", ["ptr", "ptr"], source=dtype, destination=dtype)
    entry = jit.get_entry(program, target)
    for n in range(1, 2 * target.lanes + 2):
        x = torch.randn(80).to(_DTYPES[dtype])
        y = torch.full((80,), 7.0, dtype=_DTYPES[dtype])
        entry.launch(0, n, x[3:].data_ptr(), y[5:].data_ptr())
        assert torch.equal(y[5 : 5 + n], x[3 : 3 + n])
        assert (y[:5] == 7).all()
        assert (y[5 + n :] == 7).all()


def test_masked_access_stays_off_the_next_page(target):
    """The last elements before an unmapped page are read and written with masks."""
    import ctypes
    import mmap

    page = mmap.PAGESIZE
    region = mmap.mmap(-1, 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(region))
    libc = ctypes.CDLL(None)
    assert libc.mprotect(ctypes.c_void_p(start + page), ctypes.c_size_t(page), 0) == 0
    try:
        for dtype, size in (("f32", 4), ("bf16", 2), ("f16", 2)):
            program = Program.of("jit_test_bodies:convert", ["ptr", "ptr"], source=dtype, destination=dtype)
            entry = jit.get_entry(program, target)
            for n in (1, target.lanes - 1, target.lanes + 1):
                place = start + page - n * size
                ctypes.memmove(place, bytes(range(n * size)), n * size)
                entry.launch(0, n, place, place)
                assert ctypes.string_at(place, n * size) == bytes(range(n * size))
    finally:
        libc.mprotect(ctypes.c_void_p(start + page), ctypes.c_size_t(page), 3)


def test_tail_mask_of_any_integer(target):
    lanes = target.lanes
    counts = torch.tensor([-(2**62), -1, 0, 1, lanes - 1, lanes, lanes + 1, 2**31, 2**32 + 1, 2**62])
    out = torch.full((len(counts), lanes), 9, dtype=torch.uint8)
    entry = jit.get_entry(Program.of("jit_test_bodies:masks", ["ptr", "ptr"]), target)
    entry.launch(0, len(counts), counts.data_ptr(), out.data_ptr())
    assert torch.equal(out.bool(), torch.arange(lanes) < counts[:, None])
    assert out.max() == 1


def test_across_lanes(target):
    lanes = target.lanes
    x = torch.randn(50, lanes)
    x[0, 1] = float("nan")
    x[1, :], x[2, :] = -1.0, 1.0
    out = torch.empty(50, 6)
    jit.get_entry(Program.of("jit_test_bodies:across", ["ptr", "ptr"]), target).launch(
        0, 50, x.data_ptr(), out.data_ptr()
    )
    tree = x.clone()
    while tree.shape[1] > 1:
        half = tree.shape[1] // 2
        tree = tree[:, :half] + tree[:, half:]
    torch.testing.assert_close(out[:, 0], tree[:, 0], rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(out[1:, 1], x[1:].amax(1), rtol=0, atol=0)
    torch.testing.assert_close(out[:, 2], x.amax(1), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(out[:, 3], x[:, 0])
    torch.testing.assert_close(out[:, 4], x[:, 0] * lanes, rtol=1e-6, atol=0)
    assert out[1, 5] == -1.0
    assert out[2, 5] == lanes * (lanes - 1) / 2


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("unroll", [1, 3])
def test_elementwise_block(target, dtype, unroll):
    program = Program.of(
        "jit_test_bodies:silu_and_mul", ["f32", "ptr", "ptr", "ptr"], grain=64, dtype=dtype, unroll=unroll
    )
    entry = jit.get_entry(program, target)
    for n in (1, 63, 64, 1000):
        x, y = torch.randn(n).to(_DTYPES[dtype]), torch.randn(n).to(_DTYPES[dtype])
        out = torch.empty_like(x)
        entry.launch(2, n, 0.5, x.data_ptr(), y.data_ptr(), out.data_ptr())
        want = (torch.nn.functional.silu(x.double()) * y.double() * 0.5).to(_DTYPES[dtype])
        torch.testing.assert_close(
            out, want, rtol=1e-2 if dtype == "bf16" else 2e-3 if dtype == "f16" else 1e-6, atol=1e-6
        )


def test_functions_under_njit_may_be_called(target):
    x = torch.randn(3, 16)
    y = torch.zeros_like(x)
    entry = jit.get_entry(Program.of("jit_test_bodies:helped", ["ptr", "ptr"]), target)
    entry.launch(0, 3, x.data_ptr(), y.data_ptr())
    assert torch.equal(y[:, : target.lanes], 2 * x[:, : target.lanes])


def test_vocabulary_outside_a_kernel_says_so():
    from tileops.jit import lang

    with pytest.raises(TypeError, match="inside a kernel body"):
        lang.exp(1.0)
    with pytest.raises(ValueError, match=r"'f12'.*expected one of"):
        lang.load("f12")
    assert lang.LANES == lang.lanes() == jit.cpu_target().lanes
    with lang.compiling_for(jit.cpu_target("generic")):
        assert lang.LANES == 4
