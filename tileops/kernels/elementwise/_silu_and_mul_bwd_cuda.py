"""Device body of the gradient of SwiGLU's activation on CUDA."""

from __future__ import annotations

from collections.abc import Callable

from tileops.jit.lang import cuda as lang
from tileops.kernels.elementwise._silu_and_mul_bwd import gate_gradient, up_gradient


def rows(dtype: str, width: int) -> Callable[..., None]:
    """``kernel(grad, gate, up, out, count, columns, grad_row, grad_step, x_row, x_step)``: `count` accesses of `width`
    bytes, `columns` of them in a row; their steps in bytes, over rows and along a row. A row of the result is the
    two halves, dense.
    """
    strip = lang.Strip(dtype, width)
    load, store = strip.load, strip.store
    of_gate = lang.strip_map(gate_gradient, [strip, strip, strip], strip)
    of_up = lang.strip_map(up_gradient, [strip, strip], strip)

    def kernel(grad, gate, up, out, count, columns, grad_row, grad_step, x_row, x_step):
        i = lang.block_index() * lang.block_size() + lang.thread_index()
        stride = lang.grid_size() * lang.block_size()
        while i < count:
            row, column = lang.divide(i, columns)
            at = row * x_row + column * x_step
            given = load(grad + row * grad_row + column * grad_step)
            first, second = load(gate + at), load(up + at)
            target = out + (2 * row * columns + column) * width
            store(target, of_gate(given, first, second, ()))
            store(target + columns * width, of_up(given, first, ()))
            i += stride

    return kernel
