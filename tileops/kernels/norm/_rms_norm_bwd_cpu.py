"""Device side of the gradients of RMSNorm on the CPU. `rms_norm_bwd_cpu` explains the forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tileops.jit import lang
from tileops.kernels.norm._row_layout_cpu import axes_offset, gathering


def _row(source: str, factor: str, output: str, unroll: int, weighted: bool) -> Any:
    """A tile: the gradient of one row of `x`, whose share in the gradient of the weight is added to `sums`.

    Args:
        source: storage format of the row and of its gradient.
        factor: storage format of the weight.
        output: storage format of the result.
        unroll: vectors side by side.
        weighted: whether there is a weight.
    """
    size, factor_size, output_size = (lang.itemsize(dtype) for dtype in (source, factor, output))

    @lang.tile("grad:i64, row:i64, factors:i64, out:i64, sums:i64, n:i64, share:f32, eps:f32")
    def gradient(t: Any, grad: Any, row: Any, factors: Any, out: Any, sums: Any, n: Any, share: Any, eps: Any) -> None:
        step = t.LANES * unroll
        unrolled, whole = n // step * step, n // t.LANES * t.LANES

        def loaded(i: Any, count: int, mask: Any) -> tuple[list[Any], list[Any], list[Any]]:
            offsets = [i + u * t.LANES for u in range(count)]
            values = [t.load(source, row + offset * size, mask) for offset in offsets]
            grads = [t.load(source, grad + offset * size, mask) for offset in offsets]
            if not weighted:
                return values, grads, grads
            weights = [t.load(factor, factors + offset * factor_size, mask) for offset in offsets]
            return values, grads, [g * w for g, w in zip(grads, weights, strict=True)]

        def add(i: Any, totals: list[Any], mask: Any = None) -> list[Any]:
            """Adds to the sums of squares and, after those, of products with the gradient."""
            count = len(totals) // 2
            values, _, scaled = loaded(i, count, mask)
            squares = [lang.fma(x, x, total) for x, total in zip(values, totals[:count], strict=True)]
            return squares + [lang.fma(h, x, s) for h, x, s in zip(scaled, values, totals[count:], strict=True)]

        totals = t.loop(0, unrolled, step, [t.vconst(0.0)] * (2 * unroll), add)
        squares, products = totals[:unroll], totals[unroll:]
        one = [squares[0], products[0]]
        one = t.loop(unrolled, whole, t.LANES, one, add)
        # Masked lanes load as zero and add nothing.
        one = t.loop(whole, n, t.LANES, one, lambda i, s: add(i, s, t.mask_lt(n - i)))
        squares[0], products[0] = one
        while len(squares) > 1:
            squares = [left + right for left, right in zip(squares[::2], squares[1::2], strict=True)]
            products = [left + right for left, right in zip(products[::2], products[1::2], strict=True)]
        scale = lang.rsqrt_exact(lang.fma(lang.hsum(squares[0]), share, eps))
        shared, common = t.splat(scale), t.splat(lang.hsum(products[0]) * share * scale)

        def write(i: Any, count: int, mask: Any = None) -> None:
            values, grads, scaled = loaded(i, count, mask)
            normalized = [value * shared for value in values]
            results = [lang.fma(-y, common, h) * shared for y, h in zip(normalized, scaled, strict=True)]
            addresses = [out + (i + u * t.LANES) * output_size for u in range(count)]
            if mask is None:
                t.store_group(output, addresses, results)
            else:
                t.store(output, addresses[0], results[0], mask)
            if weighted:
                places = [sums + (i + u * t.LANES) * 4 for u in range(count)]
                before = [t.load("f32", place, mask) for place in places]
                after = [lang.fma(g, y, s) for g, y, s in zip(grads, normalized, before, strict=True)]
                for place, value in zip(places, after, strict=True):
                    t.store("f32", place, value, mask)

        t.loop(0, unrolled, step, body=lambda i, _: write(i, unroll))
        t.loop(unrolled, whole, t.LANES, body=lambda i, _: write(i, 1))
        t.loop(whole, n, t.LANES, body=lambda i, _: write(i, 1, t.mask_lt(n - i)))

    return gradient


def _clearing() -> Any:
    """A tile: `n` zeros."""

    @lang.tile("target:i64, n:i64")
    def clear(t: Any, target: Any, n: Any) -> None:
        whole = n // t.LANES * t.LANES
        t.loop(0, whole, t.LANES, body=lambda i, _: t.store("f32", target + i * 4, t.vconst(0.0)))
        t.loop(whole, n, 1, body=lambda i, _: t.store_scalar("f32", target + i * 4, t.const(0)))

    return clear


def rows(*, dtype: str, unroll: int, weighted: bool) -> Callable[..., None]:
    """Rows with dense elements: one unit is a chunk of `height` rows, with its own line of `partial`."""
    gradient, clear, offset = _row(dtype, dtype, dtype, unroll, weighted), _clearing(), axes_offset()
    item, load_i64 = lang.itemsize(dtype), lang.load_i64

    def body(begin, end, tid, count, height, size, share, eps, geometry, grad, x, weight, output, partial):
        grad_rows = geometry + 8 + 16 * load_i64(geometry)
        for chunk in range(begin, end):
            sums = partial + chunk * size * 4
            if weighted:
                clear(sums, size)
            last = min((chunk + 1) * height, count)
            for row in range(chunk * height, last):
                source, given = x + offset(geometry, row), grad + offset(grad_rows, row)
                gradient(given, source, weight, output + row * size * item, sums, size, share, eps)

    return body


def gathered_rows(*, dtype: str, unroll: int, weighted: bool) -> Callable[..., None]:
    """Any layout: a row and its gradient are gathered into float32 scratch first, the weight once per thread."""
    gradient, clear, offset = _row("f32", "f32", dtype, unroll, weighted), _clearing(), axes_offset()
    item, load_i64, gather = lang.itemsize(dtype), lang.load_i64, gathering(dtype)

    def body(begin, end, tid, count, height, size, share, eps, geometry, grad, x, weight, output, partial, scratch):
        grad_rows = geometry + 8 + 16 * load_i64(geometry)
        within = grad_rows + 8 + 16 * load_i64(grad_rows)
        grad_within = within + 8 + 16 * load_i64(within)
        factors = grad_within + 8 + 16 * load_i64(grad_within)
        own = scratch + tid * size * 12
        own_grad, own_factors = own + size * 4, own + size * 8
        if weighted:
            gather(factors, weight, size, own_factors)
        for chunk in range(begin, end):
            sums = partial + chunk * size * 4
            if weighted:
                clear(sums, size)
            last = min((chunk + 1) * height, count)
            for row in range(chunk * height, last):
                gather(within, x + offset(geometry, row), size, own)
                gather(grad_within, grad + offset(grad_rows, row), size, own_grad)
                gradient(own_grad, own, own_factors, output + row * size * item, sums, size, share, eps)

    return body


def column_sums(*, dtype: str, width: int) -> Callable[..., None]:
    """One unit is a block of `width` columns: the lines of `partial` added in order, rounded once."""
    item = lang.itemsize(dtype)

    @lang.tile("partial:i64, lines:i64, size:i64, start:i64, stop:i64, out:i64")
    def add_up(t: Any, partial: Any, lines: Any, size: Any, start: Any, stop: Any, out: Any) -> None:
        unroll = 4
        step = t.LANES * unroll
        whole = start + (stop - start) // step * step

        def columns(i: Any, count: int, mask: Any = None) -> None:
            def line(k: Any, totals: list[Any]) -> list[Any]:
                base = partial + (k * size + i) * 4
                return [total + t.load("f32", base + u * t.LANES * 4, mask) for u, total in enumerate(totals)]

            totals = t.loop(0, lines, 1, [t.vconst(0.0)] * count, line)
            for u, total in enumerate(totals):
                t.store(dtype, out + (i + u * t.LANES) * item, total, mask)

        t.loop(start, whole, step, body=lambda i, _: columns(i, unroll))
        t.loop(whole, stop, t.LANES, body=lambda i, _: columns(i, 1, t.mask_lt(stop - i)))

    def body(begin, end, tid, lines, size, partial, output):
        for block in range(begin, end):
            add_up(partial, lines, size, block * width, min((block + 1) * width, size), output)

    return body
