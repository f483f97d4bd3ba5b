"""Traced functions: an ordinary Python function over the vocabulary, run once, becomes one word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tileops.jit.lang import context
from tileops.jit.lang.arith import tail_mask
from tileops.jit.lang.emitter import Kind
from tileops.jit.lang.memory import itemsize, load_as, store_as, store_group
from tileops.jit.lang.values import Lockstep, Value, as_kind, i64
from tileops.jit.lang.words import Word


def traced(function: Callable[..., Any], n: int) -> Word:
    """A word of `n` arguments that does what `function` does.

    `function` uses operators, the words of the vocabulary and other such functions; it runs once, on tracer
    values, so it must not branch on them (use `select`). It is much cheaper to compile than the same code in
    a Numba body.
    """

    def call(*args: Any) -> Any:
        if len(args) != n:
            raise TypeError(f"{call.__name__} takes {n} arguments, got {len(args)}")
        return function(*args)

    call.__name__ = call.__qualname__ = getattr(function, "__name__", "traced").strip("<>")
    call.__doc__ = function.__doc__
    return Word(call, composite=True)


def elementwise_block(
    function: Callable[..., Any], in_dtypes: Sequence[str], out_dtype: str, unroll: int
) -> tuple[Word, Word]:
    """Words that apply `function` to contiguous elements.

    Args:
        function: takes one float32 vector per input (and whatever scalars the block is given) and returns one
        vector. in_dtypes: storage formats of the inputs. out_dtype: storage format of the output. unroll:
        vectors computed side by side, operation by operation.

    Returns:
        ``block(ptrs, out, i, *scalars)`` computes elements ``i .. i + unroll * LANES - 1`` and ``masked(ptrs,
        out, i, n, *scalars)`` elements ``i .. min(i + LANES, n) - 1``; `ptrs` is a tuple of addresses.
    """
    sizes = [itemsize(dtype) for dtype in in_dtypes]

    def operands(scalars: Sequence[Any]) -> list[Any]:
        return [as_kind(scalar, scalar.kind.of("f32")) if scalar.kind.is_float else scalar for scalar in scalars]

    def block(pointers, out, i, *scalars):
        lanes = context.emitter().lanes

        def inputs(dtype: str, size: int, pointer: Value) -> Lockstep:
            start = pointer + i64(i) * size
            return Lockstep([load_as(dtype, start + u * lanes * size, lanes) for u in range(unroll)])

        loaded = [inputs(*item) for item in zip(in_dtypes, sizes, pointers, strict=True)]
        result = function(*loaded, *operands(scalars))
        members = result.members if isinstance(result, Lockstep) else [result] * unroll
        start = out + i64(i) * itemsize(out_dtype)
        places = [start + u * lanes * itemsize(out_dtype) for u in range(unroll)]
        store_group(out_dtype, places, [_widened(member, lanes) for member in members])

    def masked(pointers, out, i, n, *scalars):
        lanes = context.emitter().lanes
        mask = tail_mask(i64(n) - i64(i))
        items = zip(in_dtypes, sizes, pointers, strict=True)
        loaded = [load_as(dtype, pointer + i64(i) * size, lanes, mask) for dtype, size, pointer in items]
        result = function(*loaded, *operands(scalars))
        store_as(out_dtype, out + i64(i) * itemsize(out_dtype), _widened(result, lanes), mask)

    return Word(block), Word(masked)


def _widened(value: Any, lanes: int) -> Value:
    """`value` as a vector, where the function returned a scalar or a number."""
    if isinstance(value, Value) and value.kind.is_vector:
        return value
    return as_kind(value, Kind("f32", lanes))
