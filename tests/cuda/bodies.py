"""Device bodies that only the tests compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tileops.jit import lang as vocabulary
from tileops.jit.lang import cuda as lang
from tileops.jit.lang.emitter import Kind
from tileops.jit.lang.random import philox4x32
from tileops.jit.lang.values import as_kind


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


def random() -> Callable[..., None]:
    """``kernel(words, out, count)``: Philox of rows of `count` int32 words, four of counter and two of key."""
    strip = lang.Strip("i32", 4)
    load, store = strip.load, strip.store

    def word(k: int) -> Any:
        return lang.strip_map(lambda *words: philox4x32(words[:4], words[4:])[k], [strip] * 6, strip)

    first, second, third, fourth = (word(k) for k in range(4))

    def kernel(words, out, count):  # type: ignore[no-untyped-def]
        row = count * 4
        i = lang.block_index() * lang.block_size() + lang.thread_index()
        if i < count:
            at = words + i * 4
            c0, c1, c2, c3 = load(at), load(at + row), load(at + 2 * row), load(at + 3 * row)
            k0, k1 = load(at + 4 * row), load(at + 5 * row)
            store(out + i * 4, first(c0, c1, c2, c3, k0, k1, ()))
            store(out + i * 4 + row, second(c0, c1, c2, c3, k0, k1, ()))
            store(out + i * 4 + 2 * row, third(c0, c1, c2, c3, k0, k1, ()))
            store(out + i * 4 + 3 * row, fourth(c0, c1, c2, c3, k0, k1, ()))

    return kernel


def short_random() -> Callable[..., None]:
    """``kernel(low, high, out, count)``: the first word of ``philox(low, high, 7, high)``."""
    strip = lang.Strip("i32", 4)
    compute = lang.strip_map(lambda low, high: vocabulary.philox(low, high, 7, high)[0], [strip, strip], strip)
    load, store = strip.load, strip.store

    def kernel(low, high, out, count):  # type: ignore[no-untyped-def]
        i = lang.block_index() * lang.block_size() + lang.thread_index()
        if i < count:
            store(out + i * 4, compute(load(low + i * 4), load(high + i * 4), ()))

    return kernel


def binary(word: str) -> Callable[..., None]:
    """``kernel(x, y, out, count)``: a word of two float32 operands."""
    strip = lang.Strip("f32", 4)
    compute = lang.strip_map(getattr(vocabulary, word), [strip, strip], strip)
    load, store = strip.load, strip.store

    def kernel(x, y, out, count):  # type: ignore[no-untyped-def]
        i = lang.block_index() * lang.block_size() + lang.thread_index()
        if i < count:
            store(out + i * 4, compute(load(x + i * 4), load(y + i * 4), ()))

    return kernel


def numbered(group: int) -> Callable[..., None]:
    """``kernel(out, count, low, high)``: words of Philox, four for each four elements, as int32; whole groups."""

    def word(number: Any, low: Any, high: Any) -> Any:
        quarter = number >> 2
        drawn = vocabulary.philox(to_i32(quarter), to_i32(quarter >> 32), to_i32(low), to_i32(high))
        place = to_i32(number) & 3
        lower = vocabulary.select(place == 0, drawn[0], drawn[1])
        return vocabulary.select(place < 2, lower, vocabulary.select(place == 2, drawn[2], drawn[3]))

    draw = lang.pointwise(word, (), "i32", group, scalars=("i64", "i64"), numbered=True)

    def kernel(out, count, low, high):  # type: ignore[no-untyped-def]
        i = lang.block_index() * lang.block_size() + lang.thread_index()
        if i * group < count:
            draw(i, (out + i * group * 4,), (0,), (low, high))

    return kernel


def to_i32(x: Any) -> Any:
    """The low 32 bits of an int64."""
    return as_kind(x, Kind("i32"))
