"""How the rows of a normalisation lie in memory, in the form that the CPU kernels read.

A *group* of axes is merged where its axes can be, and stored innermost first. The *geometry* is a block of
integers with one group after the other; `_row_layout_cpu` walks it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from tileops.kernels.base import TensorSpec
from tileops.kernels.layout import coalesce

#: Extents and steps in elements of the axes of a group, innermost first.
Axes = tuple[tuple[int, ...], tuple[int, ...]]


def axes_of(shape: Sequence[int], strides: Sequence[int]) -> Axes:
    """The group of all axes of a tensor."""
    sizes, (steps,) = coalesce(shape, strides)
    return sizes[::-1], steps[::-1]


def split(x: TensorSpec, normalized_ndim: int) -> tuple[Axes, Axes]:
    """The axes over rows and the axes within a row."""
    batch_ndim = x.ndim - normalized_ndim
    return (
        axes_of(x.shape[:batch_ndim], x.strides[:batch_ndim]),
        axes_of(x.shape[batch_ndim:], x.strides[batch_ndim:]),
    )


def has_dense_rows(x: TensorSpec, normalized_ndim: int) -> bool:
    """Whether the elements of a row lie next to each other, in order."""
    if x.is_contiguous:
        return True
    sizes, steps = split(x, normalized_ndim)[1]
    return len(sizes) == 1 and steps[0] == 1


def geometry(groups: Sequence[Axes], itemsize: int) -> ctypes.Array[ctypes.c_int64]:
    """For each group of axes: their number, then extent and byte step of each. Keep the array alive for as long as
    its address is in use.
    """
    words: list[int] = []
    for sizes, steps in groups:
        words.append(len(sizes))
        for size, step in zip(sizes, steps, strict=True):
            words += [size, step * itemsize]
    return (ctypes.c_int64 * len(words))(*words)
