"""Scratch memory of a launch, kept per Python thread between launches.

A block that the thread has just used is still in its caches and has its pages; a fresh one costs page faults
and cache misses on every call.
"""

from __future__ import annotations

import threading

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
        block = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
    return block


def give(block: torch.Tensor) -> None:
    """Keeps a block for the next `take` of this thread."""
    if block.numel() <= KEEP_BYTES:
        _kept.block = block


__all__ = ["KEEP_BYTES", "give", "take"]
