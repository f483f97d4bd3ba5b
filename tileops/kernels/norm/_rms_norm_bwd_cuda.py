"""Device bodies of the gradients of RMSNorm on CUDA. `rms_norm_bwd_cuda` explains the forms.

Everything is float32 and rounded once. Sums over a row and over rows are in an order that the launch fixes, so
results never depend on timing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tileops.jit.lang import arith
from tileops.jit.lang import cuda as lang


def _square_sum(total: Any, x: Any) -> Any:
    return arith.fma(x, x, total)


def _product_sum(total: Any, grad: Any, x: Any) -> Any:
    return arith.fma(grad, x, total)


def _weighted_product_sum(total: Any, grad: Any, x: Any, weight: Any) -> Any:
    return arith.fma(grad * weight, x, total)


def _gradient(grad: Any, x: Any, scale: Any, common: Any) -> Any:
    return arith.fma(-(x * scale), common, grad) * scale


def _weighted_gradient(grad: Any, x: Any, weight: Any, scale: Any, common: Any) -> Any:
    return arith.fma(-(x * scale), common, grad * weight) * scale


def _share_of_row(total: Any, grad: Any, x: Any, scale: Any) -> Any:
    return arith.fma(grad, x * scale, total)


def _mean(total: Any, share: Any, eps: Any) -> Any:
    return arith.fma(total, share, eps)


def _common(products: Any, share: Any, scale: Any) -> Any:
    return products * share * scale


def held_rows(dtype: str, width: int, vectors: int, threads: int, threads_per_row: int) -> Callable[..., None]:
    """``kernel(grad, x, weight, out, partial, rows, owners, height, row_bytes, grad_step, x_step, share, eps)``: a
    row stays in registers, and so does what its owner has summed up for the gradient of the weight.

    An owner is a warp or a block (`threads_per_row`) and takes `height` rows one after the other; its thread holds
    the same columns of each. Then it writes its sums to line ``owner`` of `partial`, in accesses of 16 bytes in the
    order (access, thread). The addresses `weight` and `partial` are 0 where there is no weight.
    """
    strip = lang.Strip(dtype, width, vectors)
    sums = lang.Strip("f32", 16, strip.elements // 4)
    load, store, keep, nothing = strip.load_below, strip.store_below, sums.store_below, sums.load_below
    square_sum = lang.strip_fold(_square_sum, [strip])
    product_sum = lang.strip_fold(_product_sum, [strip, strip])
    weighted_product_sum = lang.strip_fold(_weighted_product_sum, [strip, strip, strip])
    gradient = lang.strip_map(_gradient, [strip, strip], strip, 2)
    weighted_gradient = lang.strip_map(_weighted_gradient, [strip, strip, strip], strip, 2)
    accumulate = lang.strip_map(_share_of_row, [sums, strip, strip], sums, 1)
    row_sum = lang.block_sum(threads) if threads_per_row == threads else lang.warp_sum
    mean, common = lang.traced(_mean, 3), lang.traced(_common, 3)
    step, line = threads_per_row * width, threads_per_row * sums.vectors * 16
    owners_per_block = threads // threads_per_row

    def kernel(grad, x, weight, out, partial, rows, owners, height, row_bytes, grad_step, x_step, share, eps):
        owner_of_block, thread = lang.divide(lang.thread_index(), threads_per_row)
        offset = thread * width
        left = row_bytes - offset
        owner = lang.block_index() * owners_per_block + owner_of_block
        while owner < owners:
            total = nothing(0, 0, 0)  # zeros
            row = owner * height
            last = min(row + height, rows)
            while row < last:
                values = load(x + row * x_step + offset, step, left)
                grads = load(grad + row * grad_step + offset, step, left)
                scale = lang.rsqrt(mean(row_sum(square_sum(0.0, values)), share, eps))
                target = out + row * row_bytes + offset
                if weight != 0:
                    factors = load(weight + offset, step, left)
                    shared = common(row_sum(weighted_product_sum(0.0, grads, values, factors)), share, scale)
                    store(target, step, left, weighted_gradient(grads, values, factors, (scale, shared)))
                    total = accumulate(total, grads, values, (scale,))
                else:
                    shared = common(row_sum(product_sum(0.0, grads, values)), share, scale)
                    store(target, step, left, gradient(grads, values, (scale, shared)))
                row += 1
            if weight != 0:
                keep(partial + owner * line + thread * 16, threads_per_row * 16, line, total)
            owner += lang.grid_size() * owners_per_block

    return kernel


def line_sums(dtype: str, width: int, threads: int) -> Callable[..., None]:
    """``kernel(partial, out, lines, line_bytes, columns, threads_per_row)``: the lines of `held_rows` added up.

    A warp adds up one column, its lanes every 32nd line. `width` is that of the accesses of `held_rows`.
    """
    value, element = lang.Strip("f32", 4), lang.Strip(dtype, lang.ITEMSIZE[dtype])
    load, store = value.load, element.store
    add = lang.strip_fold(_add, [value])
    rounded = lang.strip_map(_first_scalar, [element], element, 1)
    blank = element.load_below
    item = lang.ITEMSIZE[dtype]
    per_access = width // item
    quads = per_access // 4

    def kernel(partial, out, lines, line_bytes, columns, threads_per_row):
        warp, lane = lang.divide(lang.thread_index(), 32)
        column = lang.block_index() * (threads // 32) + warp
        while column < columns:
            access, place = lang.divide(column, per_access)
            vector, thread = lang.divide(access, threads_per_row)
            quad, rest = lang.divide(place, 4)
            at = ((vector * quads + quad) * threads_per_row + thread) * 16 + rest * 4
            total = 0.0
            line = lane
            while line < lines:
                total = add(total, load(partial + line * line_bytes + at))
                line += 32
            total = lang.warp_sum(total)
            if lane == 0:
                store(out + column * item, rounded(blank(0, 0, 0), (total,)))
            column += lang.grid_size() * (threads // 32)

    return kernel


def _add(total: Any, x: Any) -> Any:
    return total + x


def _first_scalar(_: Any, scalar: Any) -> Any:
    return scalar


def strided_rows(dtype: str, axes: int, threads: int) -> Callable[..., None]:
    """``kernel(grad, x, weight, out, scales, rows, count, share, eps, *geometry)`` for any strides, element by
    element: a block takes a row, walks it twice and notes its scale in `scales` (0 for nowhere).

    `count` is the row length. The geometry (see `lang.walk`) is that of the rows (of `grad` and `x`), then that
    within a row (of `grad`, `x` and the weight); steps in bytes.
    """
    element, value = lang.Strip(dtype, lang.ITEMSIZE[dtype]), lang.Strip("f32", 4)
    load, store, note, blank = element.load, element.store, value.store, value.load_below
    square_sum = lang.strip_fold(_square_sum, [element])
    product_sum = lang.strip_fold(_product_sum, [element, element])
    weighted_product_sum = lang.strip_fold(_weighted_product_sum, [element, element, element])
    gradient = lang.strip_map(_gradient, [element, element], element, 2)
    weighted_gradient = lang.strip_map(_weighted_gradient, [element, element, element], element, 2)
    as_strip = lang.strip_map(_first_scalar, [value], value, 1)
    locate_row, locate = lang.walk(axes, 2), lang.walk(axes, 3)
    row_sum = lang.block_sum(threads)
    mean, common = lang.traced(_mean, 3), lang.traced(_common, 3)
    itemsize, row_words = lang.ITEMSIZE[dtype], axes * 3

    def kernel(grad, x, weight, out, scales, rows, count, share, eps, *geometry):
        row_geometry, inner = geometry[:row_words], geometry[row_words:]
        thread = lang.thread_index()
        row = lang.block_index()
        while row < rows:
            grad_offset, x_offset = locate_row(row, row_geometry)
            squares = 0.0
            products = 0.0
            i = thread
            while i < count:
                at_grad, at_x, at_weight = locate(i, inner)
                given, here = load(grad + grad_offset + at_grad), load(x + x_offset + at_x)
                squares = square_sum(squares, here)
                if weight != 0:
                    products = weighted_product_sum(products, given, here, load(weight + at_weight))
                else:
                    products = product_sum(products, given, here)
                i += threads
            scale = lang.rsqrt(mean(row_sum(squares), share, eps))
            shared = common(row_sum(products), share, scale)
            if scales != 0 and thread == 0:
                note(scales + row * 4, as_strip(blank(0, 0, 0), (scale,)))
            i = thread
            while i < count:
                at_grad, at_x, at_weight = locate(i, inner)
                given, here = load(grad + grad_offset + at_grad), load(x + x_offset + at_x)
                if weight != 0:
                    result = weighted_gradient(given, here, load(weight + at_weight), (scale, shared))
                else:
                    result = gradient(given, here, (scale, shared))
                store(out + (row * count + i) * itemsize, result)
                i += threads
            row += lang.grid_size()

    return kernel


def strided_columns(dtype: str, axes: int, threads: int) -> Callable[..., None]:
    """``kernel(grad, x, scales, out, rows, count, *geometry)``: the gradient of the weight for any strides, with what
    `strided_rows` noted and its geometry. A warp adds up one column, its lanes every 32nd row.
    """
    element, value = lang.Strip(dtype, lang.ITEMSIZE[dtype]), lang.Strip("f32", 4)
    load, load_scale, store, blank = element.load, value.load, element.store, element.load_below
    accumulate = lang.strip_fold(_scaled_product_sum, [element, element, value])
    rounded = lang.strip_map(_first_scalar, [element], element, 1)
    locate_row, locate = lang.walk(axes, 2), lang.walk(axes, 3)
    itemsize, row_words = lang.ITEMSIZE[dtype], axes * 3

    def kernel(grad, x, scales, out, rows, count, *geometry):
        row_geometry, inner = geometry[:row_words], geometry[row_words:]
        warp, lane = lang.divide(lang.thread_index(), 32)
        column = lang.block_index() * (threads // 32) + warp
        while column < count:
            at_grad, at_x, _ = locate(column, inner)
            total = 0.0
            row = lane
            while row < rows:
                grad_offset, x_offset = locate_row(row, row_geometry)
                given, here = load(grad + grad_offset + at_grad), load(x + x_offset + at_x)
                total = accumulate(total, given, here, load_scale(scales + row * 4))
                row += 32
            total = lang.warp_sum(total)
            if lane == 0:
                store(out + column * itemsize, rounded(blank(0, 0, 0), (total,)))
            column += lang.grid_size() * (threads // 32)

    return kernel


def _scaled_product_sum(total: Any, grad: Any, x: Any, scale: Any) -> Any:
    return arith.fma(grad, x * scale, total)
