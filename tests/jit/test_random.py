"""Philox on vectors of every CPU target and on CUDA scalars, against the published vectors and a plain reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.ptx.harness import parsed, ptx_of
from tests.ptx.ptxsim import GlobalMemory, launch
from tileops import jit
from tileops.jit import Program

#: Of the authors' library Random123 (``kat_vectors``): counter, key, result.
KNOWN = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)


def reference(words: np.ndarray) -> np.ndarray:
    """Ten rounds in Python's integers, for rows of counter and key."""
    c0, c1, c2, c3, k0, k1 = (row.astype(object) for row in words)
    mask = 0xFFFFFFFF
    for _ in range(10):
        first, second = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second & mask, (first >> 32) ^ c3 ^ k1, first & mask
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return np.stack([c0, c1, c2, c3]).astype(np.uint32)


@pytest.fixture(scope="module")
def words() -> np.ndarray:
    """The known inputs, then random ones, a column each."""
    drawn = np.random.default_rng(0).integers(0, 1 << 32, (6, 64), dtype=np.uint32)
    drawn[:, : len(KNOWN)] = np.array([(*counter, *key) for counter, key, _ in KNOWN], np.uint32).T
    return drawn


def test_the_reference_is_philox(words: np.ndarray) -> None:
    known = np.array([result for _, _, result in KNOWN], np.uint32).T
    np.testing.assert_array_equal(reference(words)[:, : len(KNOWN)], known)


def test_on_vectors(target: jit.CpuTarget, words: np.ndarray) -> None:
    given = torch.from_numpy(words.view(np.int32).copy())
    out = torch.empty(4, 64, dtype=torch.int32)
    entry = jit.get_entry(Program.of("jit_test_bodies:random", ["ptr", "ptr", "i64"]), target)
    entry.launch(0, 64, given.data_ptr(), out.data_ptr(), 64)
    np.testing.assert_array_equal(out.numpy().view(np.uint32), reference(words))


def test_on_cuda(words: np.ndarray) -> None:
    memory = GlobalMemory()
    given = memory.place(words)
    out = memory.place(np.zeros((4, 64), np.uint32), writable=True)
    program = Program.of("tests.cuda.bodies:random", ["ptr", "ptr", "i64"], device="cuda", block=64)
    launch(ptx_of(program, "sm_80"), memory, 1, 64, [given, out, 64])
    np.testing.assert_array_equal(memory.fetch(out, (4, 64), (256, 4), np.dtype(np.uint32)), reference(words))


def test_a_short_counter_has_zeros_above(words: np.ndarray) -> None:
    low, high = words[:2]
    memory = GlobalMemory()
    args = [memory.place(low.copy()), memory.place(high.copy())]
    out = memory.place(np.zeros(64, np.uint32), writable=True)
    program = Program.of("tests.cuda.bodies:short_random", ["ptr"] * 3 + ["i64"], device="cuda", block=64)
    launch(ptx_of(program, "sm_80"), memory, 1, 64, [*args, out, 64])
    zero = np.zeros_like(low)
    expected = reference(np.stack([low, high, zero, zero, np.full_like(low, 7), high]))[0]
    np.testing.assert_array_equal(memory.fetch(out, (64,), (4,), np.dtype(np.uint32)), expected)


def test_neighbouring_elements_share_their_words() -> None:
    memory = GlobalMemory()
    out = memory.place(np.zeros(512, np.uint32), writable=True)
    program = Program.of("tests.cuda.bodies:numbered", ["ptr", "i64", "i64", "i64"], device="cuda", block=64, group=8)
    launch(ptx_of(program, "sm_80"), memory, 1, 64, [out, 512, 5, 6])
    counter = np.arange(128, dtype=np.uint32)
    words = reference(np.stack([counter, *[np.full_like(counter, value) for value in (0, 0, 0, 5, 6)]]))
    np.testing.assert_array_equal(memory.fetch(out, (512,), (4,), np.dtype(np.uint32)), words.T.reshape(-1))
    # Two of them for eight elements: ten rounds of two products each.
    products = [step for step in parsed(program, "sm_80").instructions if step.opcode in ("mul", "mad")]
    assert len(products) <= 2 * 10 * 2 * 2 + 8
