"""Scratch memory of a launch, kept between launches: a block by each Python thread, and one for
native calls.

A block that was just used is still in the caches and has its pages; a fresh one costs page faults and cache misses on
every call.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

#: Larger blocks are returned to the allocator at once.
KEEP_BYTES = 32 << 20


class _Kept(threading.local):
    block: torch.Tensor | None = None


_kept = _Kept()


def take(nbytes: int) -> torch.Tensor:
    """At least `nbytes` bytes, 64-byte aligned. Hand them back with `give`.

    The block leaves the thread's keeping while it is in use, so a signal handler or finaliser that launches
    something meanwhile gets another one; a block that is never handed back is freed like any tensor.
    """
    block, _kept.block = _kept.block, None
    if block is None or block.numel() < nbytes:
        block = _new(nbytes)
    return block


def give(block: torch.Tensor) -> None:
    """Keeps a block for the next `take` of this thread."""
    if block.numel() <= KEEP_BYTES:
        _kept.block = block


def _new(nbytes: int) -> torch.Tensor:
    import torch  # not with the module: records and keys of programs are read without it

    return torch.empty(nbytes, dtype=torch.uint8, device="cpu")


class _Shared:
    """The block of native calls (`direct`). One call at a time has it: the call marks it, with the GIL held; one that
    finds it marked or too small asks Python, which has blocks of its own.

    Attributes:
        facts: address, bytes, and whether a call has it.
    """

    def __init__(self) -> None:
        self.facts = (ctypes.c_int64 * 3)()
        self._blocks: list[torch.Tensor] = []
        self._lock = threading.Lock()

    def grow(self, nbytes: int) -> None:
        """Makes it hold `nbytes` from the next call on, unless that is too much to keep."""
        if not self.facts[1] < nbytes <= KEEP_BYTES or not self._lock.acquire(blocking=False):
            return
        try:
            block = _new(1 << (nbytes - 1).bit_length())
            self._blocks.append(block)
            # Both at once: no other thread runs in the middle of a slice.
            self.facts[:2] = [block.data_ptr(), block.numel()]
            if not self.facts[2]:  # else a call may be at work in the block before
                del self._blocks[:-1]
        finally:
            self._lock.release()

    def after_fork(self) -> None:
        """What other threads had begun goes on in the parent only."""
        self.facts[2] = 0
        self._lock = threading.Lock()


shared = _Shared()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=shared.after_fork)
