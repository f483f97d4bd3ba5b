"""Memory for packed weights: large regions of huge pages that packs share.

Streaming a weight through 4 KiB pages costs a page walk every 64 cache lines, and the hardware prefetcher
stops at each page: with 2 MiB pages two threads read memory 15 to 50 % faster on the machines measured. Most
weights are smaller than a huge page, so packs made one after another share regions. A region returns to the
system when the last pack in it is gone.

Getting a huge page takes long where the system has to clear it, or a virtual machine's host to find it: a region's
pages are asked for at once, by all threads. Packing alone would have the threads wait for each other at every page.
Where that costs more than a start may take, memory is taken in small pages and gathered into huge ones later.
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
_MADV_POPULATE_WRITE, _MADV_COLLAPSE = 23, 25  # Linux 5.14 and 6.1; Python has no names for them
#: Nanoseconds that one thread takes for a byte of fresh pages.
_POPULATE_NS = 0.5

_libc = ctypes.CDLL(None)


class _Region:
    """A mapped range, filled from its start; in huge pages, or in small ones that may become huge."""

    def __init__(self, nbytes: int, huge: bool) -> None:
        size = -(-nbytes // _HUGE) * _HUGE + _HUGE
        self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.used = -address % _HUGE
        self.size = size
        if not huge:
            return
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
#: The region that is being filled, in huge pages (True) and in small ones.
_current: dict[bool, _Region] = {}


def allocate(nbytes: int, huge: bool = True) -> torch.Tensor:
    """Zeroed bytes ``[nbytes]``, 128-byte aligned.

    Args:
        nbytes: how many.
        huge: in huge pages where the system has them; else in small ones, for `gather` to change that.

    Raises:
        MemoryError: the system has no more memory.
    """
    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    with _lock:
        region = _current.get(huge)
        found = None if region is None else region.take(nbytes)
        if found is None:
            size = _FIRST_REGION if region is None else min(2 * region.size, _REGION)
            try:
                region = _current[huge] = _Region(max(nbytes, size), huge)
            except OSError as error:
                raise MemoryError(f"no memory for a packed weight of {nbytes} bytes: {error}") from None
            found = region.take(nbytes)
            assert found is not None
    return found


def gather(memory: torch.Tensor, now: bool) -> None:
    """Has the system move memory of `allocate` into huge pages: now, or over the next minutes.

    Reads and writes of the memory stay right, and wait for the page that is being moved. The page in which the memory
    ends is left to what was allocated behind it.
    """
    start, stop = (address // _HUGE * _HUGE for address in (memory.data_ptr(), memory.data_ptr() + memory.numel()))
    if start == stop or not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    for advice in (mmap.MADV_HUGEPAGE, _MADV_COLLAPSE)[: 2 if now else 1]:
        _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), advice)
