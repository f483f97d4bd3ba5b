"""Device side of RMSNorm on the CPU. `rms_norm_cpu` explains the two forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tileops.jit import lang
from tileops.kernels.norm._row_layout_cpu import axes_offset, gathering


def _sweeps(source: str, factor: str, output: str, unroll: int) -> tuple[Any, Any]:
    """The two sweeps over a row of `source` elements: its sum of squares, and its scaling.

    Args:
        source: storage format of the row.
        factor: storage format of the weight.
        output: storage format of the result.
        unroll: vectors (and independent partial sums) side by side.
    """
    size, factor_size, output_size = (lang.itemsize(dtype) for dtype in (source, factor, output))

    @lang.tile("row:i64, n:i64", returns="f32")
    def sum_of_squares(t: Any, row: Any, n: Any) -> Any:
        step = t.LANES * unroll
        unrolled, whole = n // step * step, n // t.LANES * t.LANES

        def add(i: Any, sums: list[Any], mask: Any = None) -> list[Any]:
            values = [t.load(source, row + (i + u * t.LANES) * size, mask) for u in range(len(sums))]
            return [lang.fma(value, value, total) for value, total in zip(values, sums, strict=True)]

        sums = t.loop(0, unrolled, step, [t.vconst(0.0)] * unroll, add)
        sums[:1] = t.loop(unrolled, whole, t.LANES, sums[:1], add)
        # Masked lanes load as zero and add nothing.
        sums[:1] = t.loop(whole, n, t.LANES, sums[:1], lambda i, s: add(i, s, t.mask_lt(n - i)))
        while len(sums) > 1:
            sums = [left + right for left, right in zip(sums[::2], sums[1::2], strict=True)]
        return lang.hsum(sums[0])

    @lang.tile("row:i64, factors:i64, out:i64, n:i64, scale:f32")
    def scaled(t: Any, row: Any, factors: Any, out: Any, n: Any, scale: Any) -> None:
        step = t.LANES * unroll
        unrolled, whole = n // step * step, n // t.LANES * t.LANES
        shared = t.splat(scale)

        def write(i: Any, count: int, mask: Any = None) -> None:
            offsets = [i + u * t.LANES for u in range(count)]
            values = [t.load(source, row + offset * size, mask) for offset in offsets]
            weights = [t.load(factor, factors + offset * factor_size, mask) for offset in offsets]
            values = [value * shared for value in values]
            values = [value * weight for value, weight in zip(values, weights, strict=True)]
            if mask is None:
                t.store_group(output, [out + offset * output_size for offset in offsets], values)
            else:
                t.store(output, out + i * output_size, values[0], mask)

        t.loop(0, unrolled, step, body=lambda i, _: write(i, unroll))
        t.loop(unrolled, whole, t.LANES, body=lambda i, _: write(i, 1))
        t.loop(whole, n, t.LANES, body=lambda i, _: write(i, 1, t.mask_lt(n - i)))

    return sum_of_squares, scaled


def rows(*, dtype: str, unroll: int) -> Callable[..., None]:
    """Rows with dense elements: one unit is a row."""
    sum_of_squares, scaled = _sweeps(dtype, dtype, dtype, unroll)
    offset = axes_offset()
    item = lang.itemsize(dtype)
    rsqrt = lang.rsqrt_exact

    def body(begin, end, tid, size, eps, geometry, x, weight, output):
        for row in range(begin, end):
            source = x + offset(geometry, row)
            scale = rsqrt(sum_of_squares(source, size) / size + eps)
            scaled(source, weight, output + row * size * item, size, scale)

    return body


def gathered_rows(*, dtype: str, unroll: int) -> Callable[..., None]:
    """Any layout: a row is gathered into float32 scratch first, the weight once per thread."""
    sum_of_squares, scaled = _sweeps("f32", "f32", dtype, unroll)
    offset = axes_offset()
    item = lang.itemsize(dtype)
    rsqrt, load_i64, gather = lang.rsqrt_exact, lang.load_i64, gathering(dtype)

    def body(begin, end, tid, size, eps, geometry, x, weight, output, scratch):
        inner = geometry + 8 + 16 * load_i64(geometry)
        factors = inner + 8 + 16 * load_i64(inner)
        own = scratch + tid * size * 8
        own_factors = own + size * 4
        gather(factors, weight, size, own_factors)
        for row in range(begin, end):
            gather(inner, x + offset(geometry, row), size, own)
            scale = rsqrt(sum_of_squares(own, size) / size + eps)
            scaled(own, own_factors, output + row * size * item, size, scale)

    return body
