"""Device bodies of RMSNorm on CUDA.

Everything is float32 and rounded once at the end. A row belongs to a warp, or to a whole block; sums over it
are butterflies of fixed shape, so a result never depends on timing or on how many rows the call has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tileops.jit.lang import arith
from tileops.jit.lang import cuda as lang


def _square_sum(total: Any, x: Any) -> Any:
    return arith.fma(x, x, total)


def _scaled(x: Any, scale: Any) -> Any:
    return x * scale


def _weighted(x: Any, weight: Any, scale: Any) -> Any:
    return x * scale * weight


def _mean(total: Any, share: Any, eps: Any) -> Any:
    return arith.fma(total, share, eps)


def held_rows(dtype: str, width: int, vectors: int, threads: int, threads_per_row: int) -> Callable[..., None]:
    """``kernel(x, weight, out, rows, row_bytes, x_step, share, eps)``: a row stays in registers between the
    sum and the scaling, so it is read once.

    `threads_per_row` is a warp or the block, and ``threads_per_row * vectors`` accesses of `width` bytes
    cover a row. Rows of `x` are `x_step` bytes apart; `out` is contiguous; `share` is 1 over the row length.
    The address `weight` is 0 where there is none.
    """
    strip = lang.Strip(dtype, width, vectors)
    load, fetch, store = strip.load_below, strip.fetch_below, strip.store_below
    square_sum = lang.strip_fold(_square_sum, [strip])
    weigh = lang.strip_map(_weighted, [strip, strip], strip, 1)
    multiply = lang.strip_map(_scaled, [strip], strip, 1)
    row_sum = lang.block_sum(threads) if threads_per_row == threads else lang.warp_sum
    mean = lang.traced(_mean, 3)
    step = threads_per_row * width
    rows_per_block = threads // threads_per_row

    def kernel(x, weight, out, rows, row_bytes, x_step, share, eps):
        row_of_block, thread = lang.divide(lang.thread_index(), threads_per_row)
        offset = thread * width
        left = row_bytes - offset
        row = lang.block_index() * rows_per_block + row_of_block
        while row < rows:
            values = load(x + row * x_step + offset, step, left)
            # Under way while the sum is formed. Without a weight nothing is read.
            factors = fetch(weight + offset, step, left if weight != 0 else 0)
            scale = lang.rsqrt(mean(row_sum(square_sum(0.0, values)), share, eps))
            if weight != 0:
                result = weigh(values, factors, (scale,))
            else:
                result = multiply(values, (scale,))
            store(out + row * row_bytes + offset, step, left, result)
            row += lang.grid_size() * rows_per_block

    return kernel


def streamed_rows(dtype: str, width: int, vectors: int, threads: int) -> Callable[..., None]:
    """As `held_rows` for rows of any length: a block walks its row twice, the second time out of the
    cache.
    """
    strip = lang.Strip(dtype, width, vectors)
    load, store = strip.load_below, strip.store_below
    square_sum = lang.strip_fold(_square_sum, [strip])
    weigh = lang.strip_map(_weighted, [strip, strip], strip, 1)
    multiply = lang.strip_map(_scaled, [strip], strip, 1)
    row_sum = lang.block_sum(threads)
    mean = lang.traced(_mean, 3)
    step = threads * width
    stride = step * vectors

    def kernel(x, weight, out, rows, row_bytes, x_step, share, eps):
        first = lang.thread_index() * width
        row = lang.block_index()
        while row < rows:
            source, target = x + row * x_step, out + row * row_bytes
            total = 0.0
            offset = first
            while offset < row_bytes:
                total = square_sum(total, load(source + offset, step, row_bytes - offset))
                offset += stride
            scale = lang.rsqrt(mean(row_sum(total), share, eps))
            offset = first
            while offset < row_bytes:
                left = row_bytes - offset
                values = load(source + offset, step, left)
                if weight != 0:
                    result = weigh(values, load(weight + offset, step, left), (scale,))
                else:
                    result = multiply(values, (scale,))
                store(target + offset, step, left, result)
                offset += stride
            row += lang.grid_size()

    return kernel


def strided_rows(dtype: str, axes: int, threads: int) -> Callable[..., None]:
    """``kernel(x, weight, out, rows, count, share, eps, *geometry)`` for any strides, element by element.

    `count` is the row length. The geometry (see `lang.walk`) is that of the rows (of `x` alone), then that
    within a row (of `x` and of the weight); steps in bytes.
    """
    element = lang.Strip(dtype, lang.ITEMSIZE[dtype])
    load, store = element.load, element.store
    square_sum = lang.strip_fold(_square_sum, [element])
    weigh = lang.strip_map(_weighted, [element, element], element, 1)
    multiply = lang.strip_map(_scaled, [element], element, 1)
    locate_row, locate = lang.walk(axes, 1), lang.walk(axes, 2)
    row_sum = lang.block_sum(threads)
    mean = lang.traced(_mean, 3)
    itemsize, row_words = lang.ITEMSIZE[dtype], axes * 2

    def kernel(x, weight, out, rows, count, share, eps, *geometry):
        row_geometry, inner = geometry[:row_words], geometry[row_words:]
        thread = lang.thread_index()
        row = lang.block_index()
        while row < rows:
            (row_offset,) = locate_row(row, row_geometry)
            total = 0.0
            i = thread
            while i < count:
                at_x, _ = locate(i, inner)
                total = square_sum(total, load(x + row_offset + at_x))
                i += threads
            scale = lang.rsqrt(mean(row_sum(total), share, eps))
            i = thread
            while i < count:
                at_x, at_weight = locate(i, inner)
                value = load(x + row_offset + at_x)
                if weight != 0:
                    result = weigh(value, load(weight + at_weight), (scale,))
                else:
                    result = multiply(value, (scale,))
                store(out + (row * count + i) * itemsize, result)
                i += threads
            row += lang.grid_size()

    return kernel
