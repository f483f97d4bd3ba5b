"""Device bodies of the elementwise operators on CUDA: two forms for every scalar function of two operands."""

from __future__ import annotations

from collections.abc import Callable

from tileops.jit.lang import cuda as lang
from tileops.kernels.elementwise import functions


def dense(function: str, dtype: str, width: int, scalars: int) -> Callable[..., None]:
    """``kernel(a, b, out, count, *scalars)``: three contiguous runs of `count` elements, `width` bytes an
    access.
    """
    strip, element = lang.Strip(dtype, width), lang.Strip(dtype, lang.ITEMSIZE[dtype])
    compute = lang.strip_map(functions.find(function), [strip, strip], strip, scalars)
    compute_one = lang.strip_map(functions.find(function), [element, element], element, scalars)
    load, store, load_one, store_one = strip.load, strip.store, element.load, element.store
    size, per_strip = lang.ITEMSIZE[dtype], strip.elements

    def kernel(a, b, out, count, *scalars):
        first = lang.block_index() * lang.block_size() + lang.thread_index()
        stride = lang.grid_size() * lang.block_size()
        strips = count // per_strip
        i = first
        while i < strips:
            at = i * width
            store(out + at, compute(load(a + at), load(b + at), scalars))
            i += stride
        # The last elements, fewer than a strip.
        i = strips * per_strip + first
        while i < count:
            at = i * size
            store_one(out + at, compute_one(load_one(a + at), load_one(b + at), scalars))
            i += stride

    return kernel


def strided(function: str, dtype: str, width: int, axes: int, scalars: int) -> Callable[..., None]:
    """``kernel(a, b, out, count, *geometry, *scalars)`` for operands that step through memory as they like.

    `count` counts accesses of `width` bytes; the output is contiguous. The geometry (see `lang.walk`) holds
    the axes of `a` and `b`, the innermost first and counted in accesses. Where an innermost step is 0, the
    operand is a single element that broadcasts; else it is `width`, or any step where `width` is one element.
    """
    strip, element = lang.Strip(dtype, width), lang.Strip(dtype, lang.ITEMSIZE[dtype])
    compute = lang.strip_map(functions.find(function), [strip, strip], strip, scalars)
    load, store, load_one, spread = strip.load, strip.store, element.load, strip.broadcast
    locate = lang.walk(axes, 2)
    words = axes * 3
    scalar_width = strip.elements == 1

    def kernel(a, b, out, count, *rest):
        geometry, scalars = rest[:words], rest[words:]
        i = lang.block_index() * lang.block_size() + lang.thread_index()
        stride = lang.grid_size() * lang.block_size()
        while i < count:
            at_a, at_b = locate(i, geometry)
            if scalar_width or geometry[1] != 0:
                left = load(a + at_a)
            else:
                left = spread(load_one(a + at_a))
            if scalar_width or geometry[2] != 0:
                right = load(b + at_b)
            else:
                right = spread(load_one(b + at_b))
            store(out + i * width, compute(left, right, scalars))
            i += stride

    return kernel
