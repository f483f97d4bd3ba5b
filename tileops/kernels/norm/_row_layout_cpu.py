"""Device side of `row_layout`: where a row starts, and a row of any layout gathered into scratch."""

from __future__ import annotations

from typing import Any

from tileops.jit import lang


def axes_offset() -> Any:
    """A tile: the byte offset of element number `index` along a group of axes in the geometry."""

    @lang.tile("group:i64, index:i64", returns="i64", inline=True)
    def offset(t: Any, group: Any, index: Any) -> Any:
        count = t.load_i64(group)
        last = group + 16 * count - 8  # the outermost axis needs no division

        def one_axis(axis: Any, carried: list[Any]) -> list[Any]:
            total, rest = carried
            extent = t.load_i64(axis)
            above = rest // extent
            return [total + (rest - above * extent) * t.load_i64(axis + 8), above]

        total, rest = t.loop(group + 8, last, 16, [t.const(0), index], one_axis)
        return total + rest * t.load_i64(last + 8)

    return offset


def gathering(dtype: str) -> Any:
    """A tile that copies `n` elements along a group of axes to `target`, as float32."""
    offset = axes_offset()

    @lang.tile("group:i64, source:i64, n:i64, target:i64")
    def gather(t: Any, group: Any, source: Any, n: Any, target: Any) -> None:
        inner, step = t.load_i64(group + 8), t.load_i64(group + 16)

        def line(start: Any, _: Any) -> None:
            base = source + offset(group, start)

            def element(i: Any, _: Any) -> None:
                t.store_scalar("f32", target + (start + i) * 4, t.load_scalar(dtype, base + i * step))

            t.loop(0, inner, 1, body=element)

        t.loop(0, n, inner, body=line)

    return gather
