"""Memory for packed weights: large regions of huge pages that packs share.

Streaming a weight through 4 KiB pages costs a page walk every 64 cache lines, and the hardware prefetcher
stops at each page: with 2 MiB pages two threads read memory 15 to 50 % faster on the machines measured. Most
weights are smaller than a huge page, so packs made one after another share regions. A region returns to the
system when the last pack in it is gone.

Getting a huge page takes long where the system has to clear it, or a virtual machine's host to find it: a region's
pages are asked for at once, by all threads. Packing alone would have the threads wait for each other at every page.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
from collections.abc import Sequence

import torch

from tileops.jit import parallel

_HUGE = 2 << 20
#: Regions double in size from the first to this, so that few packs do not take much more memory than they need.
_FIRST_REGION = 4 << 20
_REGION = 64 << 20
_ALIGNMENT = 128  # two cache lines: the adjacent-line prefetcher works on pairs
_MADV_POPULATE_WRITE = 23  # Linux 5.14; Python has no name for it
#: Nanoseconds that one thread takes for a byte of fresh pages.
_POPULATE_NS = 0.5

_libc = ctypes.CDLL(None)


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
            _populate(address + self.used, size - _HUGE)

    def take(self, nbytes: int) -> torch.Tensor | None:
        if self.used + nbytes > self.size:
            return None
        start, self.used = self.used, -(-(self.used + nbytes) // _ALIGNMENT) * _ALIGNMENT
        # The tensor holds the mapping, not this object.
        return torch.frombuffer(self.memory, dtype=torch.uint8, count=nbytes, offset=start)


def _populate(address: int, nbytes: int) -> None:
    """Maps all pages of a range, each thread a part; a system that cannot maps them when they are written."""
    parts = max(1, parallel.threads(nbytes * _POPULATE_NS))
    share = -(-nbytes // (parts * _HUGE)) * _HUGE
    ranges = [(start, min(share, address + nbytes - start)) for start in range(address, address + nbytes, share)]
    helpers = [threading.Thread(target=_map_pages, args=(part,)) for part in ranges[1:]]
    for helper in helpers:
        helper.start()
    _map_pages(ranges[0])
    for helper in helpers:
        helper.join()


def _map_pages(part: Sequence[int]) -> None:
    start, nbytes = part
    _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(nbytes), _MADV_POPULATE_WRITE)


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
            size = _FIRST_REGION if _current is None else min(2 * _current.size, _REGION)
            try:
                _current = _Region(max(nbytes, size))
            except OSError as error:
                raise MemoryError(f"no memory for a packed weight of {nbytes} bytes: {error}") from None
            found = _current.take(nbytes)
            assert found is not None
    return found
