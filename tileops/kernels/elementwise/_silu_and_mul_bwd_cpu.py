"""Device side of the gradient of SwiGLU's activation on the CPU: a unit is a block of a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tileops.jit import lang
from tileops.kernels.elementwise._silu_and_mul_bwd import gradients


def _span(source: str, output: str, unroll: int) -> Any:
    """A tile that computes `n` elements of both halves of a row.

    Args:
        source: storage format of the operands.
        output: storage format of the results.
        unroll: vectors computed side by side.
    """
    size, output_size = lang.itemsize(source), lang.itemsize(output)

    @lang.tile("grad:i64, gate:i64, up:i64, grad_gate:i64, grad_up:i64, n:i64")
    def span(t: Any, grad: Any, gate: Any, up: Any, grad_gate: Any, grad_up: Any, n: Any) -> None:
        step = t.LANES * unroll
        unrolled, whole = n // step * step, n // t.LANES * t.LANES

        def vectors(i: Any, count: int, mask: Any = None) -> None:
            places = [i + u * t.LANES for u in range(count)]
            operands = (
                lang.Lockstep([t.load(source, operand + place * size, mask) for place in places])
                for operand in (grad, gate, up)
            )
            for target, result in zip((grad_gate, grad_up), gradients(*operands), strict=True):
                addresses = [target + place * output_size for place in places]
                if mask is None:
                    t.store_group(output, addresses, result.members)
                else:
                    t.store(output, addresses[0], result.members[0], mask)

        t.loop(0, unrolled, step, body=lambda i, _: vectors(i, unroll))
        t.loop(unrolled, whole, t.LANES, body=lambda i, _: vectors(i, 1))
        t.when(whole < n, lambda: vectors(whole, 1, t.mask_lt(n - whole)))

    return span


def rows(*, dtype: str, unroll: int, width: int) -> Callable[..., None]:
    """Rows with dense elements, `blocks` blocks of `width` columns each; the halves of `x` are `half` bytes apart."""
    span, item = _span(dtype, dtype, unroll), lang.itemsize(dtype)

    def body(begin, end, tid, blocks, columns, grad_step, x_step, half, grad, x, out):
        for unit in range(begin, end):
            row = unit // blocks
            start = (unit - row * blocks) * width
            count = min(width, columns - start)
            given, gate = grad + row * grad_step + start * item, x + row * x_step + start * item
            target = out + (row * 2 * columns + start) * item
            span(given, gate, gate + half, target, target + columns * item, count)

    return body


def gathered_rows(*, dtype: str, unroll: int, width: int) -> Callable[..., None]:
    """Any strides: a block of the operands is gathered into float32 scratch first."""
    span, item = _span("f32", dtype, unroll), lang.itemsize(dtype)

    @lang.tile("source:i64, step:i64, n:i64, target:i64")
    def gather(t: Any, source: Any, step: Any, n: Any, target: Any) -> None:
        def element(i: Any, _: Any) -> None:
            t.store_scalar("f32", target + i * 4, t.load_scalar(dtype, source + i * step))

        t.loop(0, n, 1, body=element)

    def body(begin, end, tid, blocks, columns, grad_step, x_step, half, grad_element, x_element, grad, x, out, scratch):
        own = scratch + tid * width * 12
        own_gate, own_up = own + width * 4, own + width * 8
        for unit in range(begin, end):
            row = unit // blocks
            start = (unit - row * blocks) * width
            count = min(width, columns - start)
            gate = x + row * x_step + start * x_element
            gather(grad + row * grad_step + start * grad_element, grad_element, count, own)
            gather(gate, x_element, count, own_gate)
            gather(gate + half, x_element, count, own_up)
            target = out + (row * 2 * columns + start) * item
            span(own, own_gate, own_up, target, target + columns * item, count)

    return body
