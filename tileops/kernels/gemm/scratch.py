"""Scratch memory of a launch, kept per Python thread between launches.

A block that the thread has just used is still in its caches and has its pages; a fresh one costs page faults and
cache misses on every call.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

#: Larger blocks are returned to the allocator at once.
KEEP_BYTES = 32 << 20


class _Kept(threading.local):
    block: torch.Tensor | None = None


_kept = _Kept()


@contextmanager
def borrowed(nbytes: int) -> Iterator[int]:
    """The address of `nbytes` of scratch memory, 64-byte aligned, inside a ``with`` block.

    The block is taken out of the thread's keeping while it is in use, so a signal handler or finaliser that launches
    something meanwhile gets another one.
    """
    block, _kept.block = _kept.block, None
    if block is None or block.numel() < nbytes:
        block = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
    try:
        yield block.data_ptr()
    finally:
        if block.numel() <= KEEP_BYTES:
            _kept.block = block


__all__ = ["KEEP_BYTES", "borrowed"]
