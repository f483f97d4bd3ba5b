"""Words across lanes: sums and maxima by a fixed tree, transposes, transposing reductions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tileops.jit.lang import context
from tileops.jit.lang.arith import max_nan, maxq, minq
from tileops.jit.lang.values import Value
from tileops.jit.lang.words import word


def shuffle(x: Value, y: Value, indices: Sequence[int]) -> Value:
    """Lanes of `x` (``0 .. n - 1``) and `y` (``n ..``) picked by `indices`."""
    return Value(context.emitter().shuffle(x.ir, y.ir, indices))


def tree(v: Value, combine: Callable[[Value, Value], Value]) -> Value:
    """Combines all lanes into a scalar: upper half onto lower half until one is left.

    The order depends on the number of lanes only, never on the data or on threads.
    """
    count = v.kind.lanes
    while count > 1:
        half = count // 2
        v = combine(shuffle(v, v, range(half)), shuffle(v, v, range(half, count)))
        count = half
    return Value(context.emitter().extract(v.ir, 0))


@word
def hsum(v):
    """Sum of all lanes (fixed tree), as a scalar."""
    return tree(v, lambda x, y: x + y)


@word
def hmax(v):
    """Maximum of all lanes; ignores no NaN and promises nothing about it (see `hmax_nan`)."""
    return tree(v, maxq.function) if v.kind.is_float else tree(v, lambda x, y: _integer_pick(">", x, y))


@word
def hmin(v):
    """Minimum of all lanes; promises nothing about NaN."""
    return tree(v, minq.function) if v.kind.is_float else tree(v, lambda x, y: _integer_pick("<", x, y))


@word
def hmax_nan(v):
    """Maximum of all lanes; NaN if any lane is NaN."""
    return tree(v, max_nan.function)


def _integer_pick(relation: str, x: Value, y: Value) -> Value:
    build = context.emitter().builder
    return Value(build.select(build.icmp_signed(relation, x.ir, y.ir), x.ir, y.ir))


def _interleave(x: Value, y: Value, distance: int) -> tuple[Value, Value]:
    """Exchanges the lanes of `x` whose number has the bit `distance` set with those of `y` that lack it."""
    count = x.kind.lanes
    low = [j if not j & distance else count + (j ^ distance) for j in range(count)]
    high = [(j | distance) if not j & distance else count + j for j in range(count)]
    return shuffle(x, y, low), shuffle(x, y, high)


def transpose(rows: Sequence[Value]) -> list[Value]:
    """Transposes n vectors of n lanes: lane ``j`` of result ``i`` is lane ``i`` of ``rows[j]``.

    log2(n) stages of n two-input shuffles.
    """
    current = list(rows)
    count = current[0].kind.lanes
    if len(current) != count:
        raise ValueError(f"transpose takes as many vectors as lanes: got {len(current)} of {count} lanes")
    distance = 1
    while distance < count:
        for i in range(count):
            if not i & distance:
                current[i], current[i | distance] = _interleave(current[i], current[i | distance], distance)
        distance *= 2
    return current


def reduce_transpose(vectors: Sequence[Value], combine: Callable[[Value, Value], Value] = lambda x, y: x + y) -> Value:
    """Reduces n vectors of n lanes at once: lane ``i`` of the result combines all lanes of ``vectors[i]``.

    Takes 3 (n - 1) instructions, where n separate trees take about 3 n log2(n). With fewer vectors than lanes
    (a power of two of them) the results repeat: lane ``i`` belongs to ``vectors[i % len(vectors)]``.
    """
    current = list(vectors)
    count = current[0].kind.lanes
    if len(current) > count or len(current) & (len(current) - 1):
        raise ValueError(f"expected a power of two of vectors, at most {count}, got {len(current)}")
    distance = 1
    while len(current) > 1:
        current = [combine(*_interleave(x, y, distance)) for x, y in zip(current[::2], current[1::2], strict=True)]
        distance *= 2
    result = current[0]
    while distance < count:
        result = combine(result, shuffle(result, result, [j ^ distance for j in range(count)]))
        distance *= 2
    return result


def group_reduce(v: Value, size: int, combine: Callable[[Value, Value], Value]) -> Value:
    """Combines within groups of `size` (a power of two) lanes; every lane gets the result of its group."""
    distance = 1
    while distance < size:
        v = combine(v, shuffle(v, v, [j ^ distance for j in range(v.kind.lanes)]))
        distance *= 2
    return v


@word
def reduce16(vectors):
    """The sums of a tuple of vectors (see `reduce_transpose`): lane ``i`` is the sum of ``vectors[i]``."""
    return reduce_transpose(vectors)


__all__ = [
    "group_reduce",
    "hmax",
    "hmax_nan",
    "hmin",
    "hsum",
    "reduce16",
    "reduce_transpose",
    "shuffle",
    "transpose",
    "tree",
]
