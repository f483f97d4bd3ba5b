"""Costs of pooling: what windows hold inside the input. Padding is neither read nor counted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tileops.manifest.roofline import CallView

#: Letters of the spatial axes, outermost first; a single one is L.
AXES = ("D", "H", "W", "L")


def window_elements(
    length: int, windows: int, kernel: int, stride: int, padding: int, dilation: int
) -> tuple[int, int]:
    """Elements of the input that the windows of one axis cover: with repetition, and distinct ones.

    Args:
        length: of the input axis.
        windows: their number.
        kernel, stride, padding, dilation: of the pooling.
    """
    covered, seen = 0, bytearray(length)
    for tap in range(kernel):
        offset = tap * dilation - padding  # of this tap in window 0
        first = max(0, -(offset // stride))
        last = min(windows - 1, (length - 1 - offset) // stride)
        count = max(0, last - first + 1)
        if count:
            covered += count
            start = first * stride + offset
            seen[start : start + (count - 1) * stride + 1 : stride] = b"\x01" * count
    return covered, sum(seen)


def _axes(call: CallView) -> Iterator[tuple[int, int]]:
    indices = call.indices
    for axis in AXES:
        if f"{axis}_in" in indices:
            yield window_elements(
                indices[f"{axis}_in"],
                indices[f"{axis}_out"],
                indices[f"k{axis}"],
                indices[f"s{axis}"],
                indices[f"p{axis}"],
                indices.get(f"d{axis}", 1),
            )


def _cost(call: CallView, axes: list[tuple[int, int]], *, average: bool) -> tuple[int, int]:
    """A mean takes an addition per element less one, and a division; an extremum a comparison per element less
    one.
    """
    shape, _ = call.tensors["input"]
    planes = shape[0] * shape[1]
    elements = planes * math.prod(covered for covered, _ in axes)
    outputs = math.prod(call.tensors["output"][0])
    size = math.prod(shape)
    read = 0 if size == 0 else call.bytes("input") // size * planes * math.prod(distinct for _, distinct in axes)
    written = call.bytes("output") + (call.bytes("indices") if "indices" in call.tensors else 0)
    return elements if average else max(0, elements - outputs), read + written


def avg_pool_fwd(call: CallView) -> tuple[int, int]:
    """Mean over windows of a fixed size."""
    return _cost(call, list(_axes(call)), average=True)


def max_pool_fwd(call: CallView) -> tuple[int, int]:
    """Maximum over windows of a fixed size."""
    return _cost(call, list(_axes(call)), average=False)


def _adaptive_axes(call: CallView) -> list[tuple[int, int]]:
    """Window i of n spans ``floor(i * size / n)`` to ``ceil((i + 1) * size / n)``: neighbours share an element
    wherever their border is no integer.
    """
    found = []
    for axis in "HW":
        size, windows = call.indices[f"{axis}_in"], call.indices[f"{axis}_out"]
        found.append((size + windows - math.gcd(size, windows), size) if windows else (0, 0))
    return found


def adaptive_avg_pool2d_fwd(call: CallView) -> tuple[int, int]:
    """Mean over windows that divide each axis evenly."""
    return _cost(call, _adaptive_axes(call), average=True)


def adaptive_max_pool2d_fwd(call: CallView) -> tuple[int, int]:
    """Maximum over windows that divide each axis evenly."""
    return _cost(call, _adaptive_axes(call), average=False)
