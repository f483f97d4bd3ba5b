"""Device bodies that only the tests compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tileops.jit import lang as vocabulary
from tileops.jit.lang import cuda as lang


def wrong() -> Callable[..., None]:
    """A body that no compiler can type."""

    def kernel(x):  # type: ignore[no-untyped-def]
        x.no_such_attribute()

    return kernel


def unary(word: str) -> Callable[..., None]:
    """``kernel(x, out, count)``: a word of the vocabulary on float32 scalars."""
    strip = lang.Strip("f32", 4)
    compute = lang.strip_map(getattr(vocabulary, word), [strip], strip)
    load, store = strip.load, strip.store

    def kernel(x, out, count):  # type: ignore[no-untyped-def]
        i = lang.block_index() * lang.block_size() + lang.thread_index()
        if i < count:
            store(out + i * 4, compute(load(x + i * 4), ()))

    return kernel


def mixed() -> Callable[..., None]:
    """``kernel(x, y, out, count)``: operators, selections, bits and two operands in one traced function."""
    strip = lang.Strip("f32", 4)

    def function(x: Any, y: Any) -> Any:
        larger = vocabulary.max_nan(x, y) - vocabulary.minq(x, -y)
        halves = vocabulary.to_float(vocabulary.as_int(x) >> 23) * 0.5
        sign = vocabulary.copysign(1.0, x)
        return vocabulary.select((x < y) & ~(y == 0.0), larger, halves + sign) / (1.0 + vocabulary.abs_(y))

    compute = lang.strip_map(function, [strip, strip], strip)
    load, store = strip.load, strip.store

    def kernel(x, y, out, count):  # type: ignore[no-untyped-def]
        i = lang.block_index() * lang.block_size() + lang.thread_index()
        if i < count:
            store(out + i * 4, compute(load(x + i * 4), load(y + i * 4), ()))

    return kernel
