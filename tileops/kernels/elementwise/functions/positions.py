"""Functions of the number of an element, on CUDA; the CPU walks rows instead (`_positions_cpu`)."""

from __future__ import annotations

from typing import Any

from tileops.jit import lang


def alibi(number: Any, size: Any, whole: Any, step: Any) -> Any:
    """Bias of an element of ``[H, size, size]``.

    The slope of head h is ``2**(step * 2 * (h + 1))`` for the first `whole` heads, of the others, counted from 0,
    ``2**(step * (2 h + 1))``: the exponents are exact in float32.
    """
    row = number // size
    key = number - row * size
    head = row // size
    distance = lang.to_float(lang.low_word(row - head * size - key))
    place = lang.select(head < whole, 2 * (head + 1), 2 * (head - whole) + 1)
    return -(lang.exp2(lang.to_float(lang.low_word(place)) * step) * lang.abs_(distance))
