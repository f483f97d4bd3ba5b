"""Large CPU outputs in huge pages, where this machine gets them faster.

glibc maps every block of 32 MiB or more afresh and unmaps it when it is freed, so each call of an operator
with such an output pays for one page fault per 4 KiB: several times what the operator itself takes. Asking
for 2 MiB pages leaves a fault per 2 MiB. Most systems gain threefold, some (virtual machines whose host is
short of huge pages) lose, so both ways are measured once, when the first large output is made.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import time
from collections.abc import Callable, Sequence

import torch

#: Blocks from this size on are always mapped; smaller ones glibc may take from its own heap.
MAPPED_FROM = 32 << 20

_PAGE = mmap.PAGESIZE
_PROBE_BYTES = 4 << 20
_PROBES = 2
#: How much faster huge pages must be.
_WORTHWHILE = 1.2
_MADV_HUGEPAGE = getattr(mmap, "MADV_HUGEPAGE", None)

_libc = ctypes.CDLL(None, use_errno=True)


def large_output(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> bool:
    """Whether an output of this size is made by `allocate`."""
    nbytes = dtype.itemsize
    for size in shape:
        nbytes *= size
    return device.type == "cpu" and nbytes >= MAPPED_FROM and _MADV_HUGEPAGE is not None


def allocate(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialised CPU tensor, in huge pages if they are worthwhile here."""
    output = torch.empty(shape, dtype=dtype, device="cpu")
    if huge_pages_are_faster():
        advise(output.data_ptr(), output.nbytes)
    return output


def streaming_pays(nbytes: int, least: int) -> bool:
    """Whether to write an output of `nbytes` around the caches, where that pays from `least` bytes on.

    Not where each page of it is new and small: the system has just written zeros to the page, through the caches.
    """
    return nbytes >= least and (nbytes < MAPPED_FROM or huge_pages_are_faster())


def advise(address: int, nbytes: int) -> None:
    """Asks for huge pages in the whole pages of a range; a system without them ignores it."""
    start = -(-address // _PAGE) * _PAGE
    length = (address + nbytes - start) // _PAGE * _PAGE
    if length > 0:
        _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _MADV_HUGEPAGE)


@functools.cache
def huge_pages_are_faster() -> bool:
    """Whether the first write to fresh memory is faster with huge pages, measured once per process."""
    small, huge = [], []
    for _ in range(_PROBES):
        small.append(_first_write(lambda address: None))
        huge.append(_first_write(lambda address: advise(address, _PROBE_BYTES)))
    return min(huge) * _WORTHWHILE < min(small)


def _first_write(prepare: Callable[[int], None]) -> float:
    """Seconds to write fresh memory of the probe's size."""
    with mmap.mmap(-1, _PROBE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        view = ctypes.c_char.from_buffer(memory)
        address = ctypes.addressof(view)
        prepare(address)
        start = time.perf_counter()
        ctypes.memset(address, 1, _PROBE_BYTES)
        seconds = time.perf_counter() - start
        del view  # the mapping cannot be closed while it is exported
    return seconds
