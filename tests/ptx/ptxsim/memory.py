"""Global and shared memory with the checks that a GPU does not make.

Global memory is a heap of tensors in which every byte knows whether it may be read and written. Bytes between
the elements of a strided view belong to nobody, so a kernel that touches them fails. Shared memory knows
which warp wrote and read a byte since the last barrier, so a missing barrier fails too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.ptx.ptxsim.types import UNSIGNED, SimError

GLOBAL_BASE = 0x10_0000_0000
_POISON = 0xCD
_GUARD = 256


class GlobalMemory:
    """A heap for the tensors of a launch.

    Args:
        size: bytes of the heap.
    """

    def __init__(self, size: int = 1 << 20) -> None:
        self.bytes = np.full(size, _POISON, np.uint8)
        self.readable = np.zeros(size, np.bool_)
        self.writable = np.zeros(size, np.bool_)
        self.written = np.zeros(size, np.bool_)
        self.top = _GUARD

    def place(self, values: np.ndarray, *, offset: int = 0, writable: bool = False) -> int:
        """Copies an array in, strides and all, and returns the address of its first element.

        Only the bytes of its elements become accessible. A read-only tensor may not be written; a writable
        one starts as it is given and may be read.

        Args:
            values: an array with non-negative strides; gaps between its elements stay inaccessible.
            offset: bytes past a 256-byte boundary at which the first element lies.
            writable: the kernel may write it.
        """
        start = self.top + offset
        where = _byte_offsets(values.shape, values.strides, values.itemsize)
        end = start + int(where.max(initial=0)) + 1
        if end + 2 * _GUARD > len(self.bytes):
            self._grow(end + 2 * _GUARD)
        raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        where = start + where
        self.bytes[where] = raw
        self.readable[where] = True
        self.writable[where] = writable
        self.top = -(-(end + _GUARD) // 256) * 256
        return GLOBAL_BASE + start

    def fetch(self, address: int, shape: Sequence[int], strides: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """The tensor at `address` (strides in bytes) as a contiguous array."""
        dtype = np.dtype(dtype)
        where = _byte_offsets(shape, strides, dtype.itemsize) + (address - GLOBAL_BASE)
        return self.bytes[where].view(dtype).reshape(tuple(shape))

    def _grow(self, size: int) -> None:
        size = max(size, 2 * len(self.bytes))
        for name in ("bytes", "readable", "writable", "written"):
            old = getattr(self, name)
            new = np.full(size, _POISON if name == "bytes" else False, old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)

    def locate(self, addresses: np.ndarray, size: int, *, write: bool, read_only: bool) -> np.ndarray:
        """Byte offsets of accesses of `size` bytes each.

        Raises:
            SimError: an access is misaligned, leaves the tensors, writes a read-only tensor, or reads through
                the read-only path what this launch has written. `culprit` of the error is its index.
        """
        offsets = addresses - GLOBAL_BASE
        _refuse(offsets % size != 0, addresses, f"misaligned global access of {size} bytes")
        _refuse(
            (offsets < 0) | (offsets + size > len(self.bytes)),
            addresses,
            f"global access of {size} bytes outside every tensor",
        )
        spans = offsets[:, None] + np.arange(size)
        if write:
            _refuse(~self.writable[spans].all(1), addresses, f"store of {size} bytes outside the writable tensors")
            self.written[spans] = True
        else:
            _refuse(~self.readable[spans].all(1), addresses, f"load of {size} bytes outside every tensor")
            if read_only:
                _refuse(
                    self.written[spans].any(1),
                    addresses,
                    "ld.global.nc of memory that this launch has written",
                )
        return offsets


class SharedMemory:
    """The shared memory of every block, one row each.

    Args:
        blocks: number of blocks.
        size: bytes of each.
    """

    def __init__(self, blocks: int, size: int) -> None:
        self.size = size
        self.bytes = np.full(blocks * size, _POISON, np.uint8)
        self.written = np.zeros(blocks * size, np.bool_)
        self.epoch = np.ones(blocks, np.int64)
        # per byte: the last barrier interval in which it was written or read, and by which warp (-1: several)
        self.write_epoch = np.zeros(blocks * size, np.int64)
        self.write_warp = np.zeros(blocks * size, np.int64)
        self.read_epoch = np.zeros(blocks * size, np.int64)
        self.read_warp = np.zeros(blocks * size, np.int64)

    def barrier(self, blocks: np.ndarray) -> None:
        """All threads of `blocks` have met: what was written is visible to all."""
        self.epoch[blocks] += 1

    def locate(
        self, addresses: np.ndarray, size: int, blocks: np.ndarray, warps: np.ndarray, *, write: bool
    ) -> np.ndarray:
        """Byte offsets of accesses of `size` bytes each, one per thread; `warps` are global warp numbers.

        Raises:
            SimError: an access is misaligned, out of bounds, reads what nobody wrote, or meets an access of
                another warp without a barrier in between.
        """
        _refuse(addresses % size != 0, addresses, f"misaligned shared access of {size} bytes")
        _refuse(
            (addresses < 0) | (addresses + size > self.size),
            addresses,
            f"shared access of {size} bytes out of bounds",
        )
        offsets = addresses + blocks * self.size
        spans = offsets[:, None] + np.arange(size)
        epoch, warp = self.epoch[blocks][:, None], warps[:, None]
        foreign_write = (self.write_epoch[spans] == epoch) & (self.write_warp[spans] != warp)
        if write:
            _refuse(
                foreign_write.any(1),
                addresses,
                "race: two warps write this shared memory without a barrier between",
            )
            foreign_read = (self.read_epoch[spans] == epoch) & (self.read_warp[spans] != warp)
            _refuse(
                foreign_read.any(1),
                addresses,
                "race: written while another warp may still read it (missing barrier)",
            )
            self.write_epoch[spans], self.write_warp[spans] = epoch, warp
            # Several warps in this very store: the scatter kept only the last of them.
            together = (self.write_warp[spans] != warp).any(1)
            _refuse(together, addresses, "race: two warps write this shared memory without a barrier between")
            self.written[spans] = True
        else:
            _refuse(~self.written[spans].all(1), addresses, "read of shared memory that nobody has written")
            _refuse(foreign_write.any(1), addresses, "race: read without a barrier after another warp's write")
            shared_read = (self.read_epoch[spans] == epoch) & (self.read_warp[spans] != warp)
            self.read_warp[spans] = np.where(shared_read, -1, warp)
            self.read_epoch[spans] = epoch
            _mark_concurrent_reads(self, spans, warps)
        return offsets


def _mark_concurrent_reads(shared: SharedMemory, spans: np.ndarray, warps: np.ndarray) -> None:
    """Several warps that read one byte in a single step: the scatter above kept only the last of them."""
    differs = shared.read_warp[spans] != warps[:, None]
    shared.read_warp[spans[differs]] = -1


def gather(memory: np.ndarray, offsets: np.ndarray, dtype: np.dtype, count: int) -> list[np.ndarray]:
    """`count` consecutive values of `dtype` at each byte offset (offsets are multiples of the item size)."""
    words = memory.view(UNSIGNED[dtype.itemsize])
    index = offsets // dtype.itemsize
    return [words[index + k].view(dtype) for k in range(count)]


def scatter(memory: np.ndarray, offsets: np.ndarray, values: Sequence[np.ndarray]) -> None:
    """Stores consecutive values at each byte offset."""
    dtype = UNSIGNED[values[0].dtype.itemsize]
    words = memory.view(dtype)
    index = offsets // dtype.itemsize
    for k, value in enumerate(values):
        words[index + k] = value.view(dtype)


def _refuse(wrong: np.ndarray, addresses: np.ndarray, what: str) -> None:
    if wrong.any():
        culprit = int(np.argmax(wrong))
        error = SimError(f"{what} at {int(addresses[culprit]):#x}")
        error.culprit = culprit
        raise error


def _byte_offsets(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> np.ndarray:
    """Offset of every byte of every element, elements in row-major order."""
    offsets = np.zeros((), np.int64)
    for size, stride in zip(shape, strides, strict=True):
        offsets = offsets[..., None] + np.arange(size, dtype=np.int64) * stride
    return (offsets[..., None] + np.arange(itemsize)).reshape(-1)
