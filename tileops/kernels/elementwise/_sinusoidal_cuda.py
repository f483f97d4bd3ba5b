"""Device body of sinusoidal positions on CUDA."""

from __future__ import annotations

from collections.abc import Callable

from tileops.jit.lang import cuda as lang
from tileops.jit.lang import cuda_angles


def rows(dtype: str, width: int) -> Callable[..., None]:
    """``kernel(out, count, strips, slope, ratio)``: `count` accesses of `width` bytes, `strips` of them a position."""
    strip = lang.Strip(dtype, width)
    pairs = strip.elements // 2
    angles_of, alternate, store = cuda_angles.rotary_angles(pairs), cuda_angles.alternate(strip), strip.store

    def kernel(out, count, strips, slope, ratio):
        stride = lang.grid_size() * lang.block_size()
        i = lang.block_index() * lang.block_size() + lang.thread_index()
        while i < count:
            position, place = lang.divide(i, strips)
            store(out + i * width, alternate(angles_of(position, place * pairs, slope, ratio)))
            i += stride

    return kernel
