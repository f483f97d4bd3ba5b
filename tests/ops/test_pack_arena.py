"""The memory of packed weights: shared regions, alignment, lifetime."""

from __future__ import annotations

import gc
import itertools
import mmap
import threading
import weakref

import pytest
import torch

from tileops.ops.gemm import arena


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "_current", {})


def test_blocks_are_zeroed_aligned_and_disjoint() -> None:
    blocks = [arena.allocate(size) for size in (1, 127, 128, 129, 100_000)]
    for block in blocks:
        assert block.data_ptr() % 128 == 0
        assert not block.any()
    for index, block in enumerate(blocks):
        block.fill_(index + 1)
    for index, block in enumerate(blocks):
        assert (block == index + 1).all()


def test_small_blocks_share_a_region_and_large_ones_get_their_own() -> None:
    first, second = arena.allocate(1 << 20), arena.allocate(1 << 20)
    assert second.data_ptr() - first.data_ptr() == 1 << 20
    large = arena.allocate(arena._REGION + 1)
    assert large.numel() == arena._REGION + 1
    large[-1] = 7


def test_a_region_starts_at_a_huge_page() -> None:
    assert arena.allocate(64).data_ptr() % (2 << 20) == 0


def test_memory_outlives_the_arena_and_goes_with_its_last_block() -> None:
    first, second = arena.allocate(1000), arena.allocate(1000)
    mapping = weakref.ref(arena._current[True].memory)
    arena._current.clear()
    del first
    gc.collect()
    assert mapping() is not None
    second.fill_(3)
    del second
    gc.collect()
    assert mapping() is None


def test_no_bytes_need_no_region() -> None:
    assert arena.allocate(0).numel() == 0
    assert not arena._current


@pytest.mark.parametrize("now", [False, True])
def test_small_pages_that_are_gathered_keep_their_bytes(now: bool) -> None:
    blocks = [arena.allocate(size, huge=False) for size in (100, 5 << 20, 1 << 20, 3 << 20)]
    assert list(arena._current) == [False]
    for block in blocks:
        block.copy_(torch.arange(block.numel(), dtype=torch.uint8))
        arena.gather(block, now)
    for block in blocks:
        assert torch.equal(block, torch.arange(block.numel(), dtype=torch.uint8))
    arena.gather(arena.allocate(0, huge=False), now)


def test_works_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    class Without(mmap.mmap):
        def madvise(self, *_: int) -> None:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(arena.mmap, "mmap", Without)
    assert arena.allocate(5000).sum() == 0


def test_out_of_memory_names_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int, **__: int) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(arena.mmap, "mmap", full)
    with pytest.raises(MemoryError, match="5000 bytes"):
        arena.allocate(5000)


def test_threads_never_share_bytes() -> None:
    found: list[torch.Tensor] = []
    barrier = threading.Barrier(4)

    def take() -> None:
        barrier.wait()
        for _ in range(50):
            found.append(arena.allocate(3000))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    starts = sorted(block.data_ptr() for block in found)
    assert all(later - earlier >= 3000 for earlier, later in itertools.pairwise(starts))
