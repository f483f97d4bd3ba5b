"""Memory for packed weights: large regions of huge pages that packs share.

Streaming a weight through 4 KiB pages costs a page walk every 64 cache lines, and the hardware prefetcher
stops at each page: with 2 MiB pages two threads read memory 15 to 50 % faster on the machines measured. Most
weights are smaller than a huge page, so packs made one after another share regions. A region returns to the
system when the last pack in it is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading

import torch

_HUGE = 2 << 20
_REGION = 32 << 20
_ALIGNMENT = 128  # two cache lines: the adjacent-line prefetcher works on pairs


class _Region:
    """A mapped range, filled from its start."""

    def __init__(self, nbytes: int) -> None:
        size = -(-nbytes // _HUGE) * _HUGE + _HUGE
        self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.used = -address % _HUGE
        self.size = size
        # Huge pages are only faster: a kernel without them, or out of them, serves small ones.
        with contextlib.suppress(AttributeError, OSError):
            self.memory.madvise(mmap.MADV_HUGEPAGE)

    def take(self, nbytes: int) -> torch.Tensor | None:
        if self.used + nbytes > self.size:
            return None
        start, self.used = self.used, -(-(self.used + nbytes) // _ALIGNMENT) * _ALIGNMENT
        # The tensor holds the mapping, not this object.
        return torch.frombuffer(self.memory, dtype=torch.uint8, count=nbytes, offset=start)


_lock = threading.Lock()
_current: _Region | None = None


def allocate(nbytes: int) -> torch.Tensor:
    """Zeroed bytes ``[nbytes]``, 128-byte aligned, in huge pages where the system has them.

    Raises:
        MemoryError: the system has no more memory.
    """
    global _current
    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    with _lock:
        found = None if _current is None else _current.take(nbytes)
        if found is None:
            try:
                _current = _Region(max(nbytes, _REGION))
            except OSError as error:
                raise MemoryError(f"no memory for a packed weight of {nbytes} bytes: {error}") from None
            found = _current.take(nbytes)
            assert found is not None
    return found
