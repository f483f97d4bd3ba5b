"""Memory words: loads and stores that convert between a storage format and float32 lanes.

Addresses are int64. The factories (`load`, `store`, ...) take the name of a storage format and return a word;
call them in the kernel's factory and use the word in the body. Every access needs element alignment only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from numba import types

from tileops.jit.lang import context
from tileops.jit.lang.emitter import ELEMENTS, Kind, kind_of
from tileops.jit.lang.values import Value, as_f32, as_kind, i64
from tileops.jit.lang.words import Word, word

_SIZES = {"f32": 4, "bf16": 2, "f16": 2, "b1": 1, "i8": 1, "u8": 1, "i16": 2, "i32": 4, "i64": 8, "f64": 8}
_STORED_AS = {
    **{"f32": "f32", "bf16": "i16", "f16": "i16", "b1": "i8"},
    **{"u8": "i8", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64"},
}


def itemsize(dtype: str) -> int:
    """Bytes of an element of the storage format `dtype`.

    Raises:
        ValueError: the format is not known.
    """
    try:
        return _SIZES[dtype]
    except KeyError:
        raise ValueError(f"dtype {dtype!r}: expected one of {', '.join(_SIZES)}") from None


def _check(dtype: str) -> None:
    if dtype not in _STORED_AS:
        raise ValueError(f"dtype {dtype!r} cannot be loaded as a vector: expected one of {', '.join(_STORED_AS)}")


def widen(dtype: str, stored: Value) -> Value:
    """Stored elements as what bodies compute with: float32 for the float formats, a mask for ``"b1"``, int16 for
    ``"u8"``, which holds every value with its sign, and the other integers as they are.
    """
    emit = context.emitter()
    if dtype == "bf16":
        return Value(emit.widen_bf16(stored.ir))
    if dtype == "f16":
        return Value(emit.widen_f16(stored.ir))
    if dtype == "b1":
        return stored != 0
    if dtype == "u8":
        return Value(emit.builder.zext(stored.ir, stored.kind.of("i16").ir))
    return stored


def narrow(dtype: str, value: Value) -> Value:
    """The inverse of `widen`: rounds to the storage format; integers wrap."""
    emit = context.emitter()
    if dtype == "bf16":
        return Value(emit.narrow_bf16(as_f32(value).ir))
    if dtype == "f16":
        return Value(emit.narrow_f16(as_f32(value).ir))
    if dtype == "b1":
        return Value(emit.builder.zext(value.ir, value.kind.of("i8").ir))
    if dtype == "u8":
        return Value(emit.builder.trunc(value.ir, value.kind.of("i8").ir))
    return as_kind(value, value.kind.of(_STORED_AS[dtype]))


def load_as(dtype: str, address: Value, lanes: int, mask: Value | None = None) -> Value:
    """Loads `lanes` elements (0: one scalar) at `address`; lanes outside `mask` are 0 and are not touched."""
    _check(dtype)
    emit = context.emitter()
    kind = Kind(_STORED_AS[dtype], lanes)
    return widen(dtype, Value(emit.load(kind, i64(address).ir, None if mask is None else mask.ir)))


def store_as(dtype: str, address: Value, value: Value, mask: Value | None = None, *, streaming: bool = False) -> None:
    """Stores every lane of `value` at `address`, rounded to `dtype`; lanes outside `mask` are not touched.

    With `streaming` past the caches, see `store_group`.
    """
    _check(dtype)
    stored = narrow(dtype, value)
    context.emitter().store(i64(address).ir, stored.ir, None if mask is None else mask.ir, streaming=streaming)


def narrow_group(dtype: str, values: Sequence[Value]) -> list[Value]:
    """`narrow` of several vectors; rounding to bfloat16 is cheaper for a group."""
    _check(dtype)
    if dtype == "bf16":
        return [Value(bits) for bits in context.emitter().narrow_bf16_group([as_f32(value).ir for value in values])]
    return [narrow(dtype, value) for value in values]


def store_narrowed(dtype: str, address: Value, values: Sequence[Value]) -> None:
    """Stores what `narrow_group` made of vectors, one after another from `address` on."""
    emit = context.emitter()
    stored = [value.ir for value in values]
    if dtype == "bf16" and values[0].kind.lanes == 16:
        # Two were narrowed together.
        pairs = [stored[at : at + 2] for at in range(0, len(stored), 2)]
        stored = [pair[0] if len(pair) == 1 else emit.shuffle(pair[0], pair[1], range(32)) for pair in pairs]
    for value in stored:
        emit.store(address.ir, value)
        address += itemsize(dtype) * value.type.count


def store_group(dtype: str, addresses: Sequence[Value], values: Sequence[Value], *, streaming: bool = False) -> None:
    """`store_as` of several vectors; rounding to bfloat16 is cheaper for a group.

    With `streaming` past the caches: an output that no cache holds until it is read is then not read before it is
    written, nor does it displace what is worth keeping. Each address must be a multiple of its vector's size, whole
    cache lines should be written soon one after the other, and the body ends with `store_fence`.
    """
    emit = context.emitter()
    for address, bits in zip(addresses, narrow_group(dtype, values), strict=True):
        emit.store(i64(address).ir, bits.ir, streaming=streaming)


def _factory(make: Callable[[str], Callable[..., Any]]) -> Callable[[str], Word]:
    """A cached function from a storage format to its word, named like ``load(bf16)``."""

    @functools.cache
    def factory(dtype: str) -> Word:
        _check(dtype)
        function = make(dtype)
        function.__name__ = function.__qualname__ = f"{make.__name__}({dtype})"
        function.__doc__ = make.__doc__
        return Word(function)

    functools.update_wrapper(factory, make)
    return factory


@_factory
def load(dtype):
    """``v = ld(addr)``: a vector of LANES elements."""
    return lambda address: load_as(dtype, address, context.emitter().lanes)


@_factory
def load_masked(dtype):
    """``v = ldm(addr, mask)``: lanes outside `mask` are 0 and their memory is not touched."""
    return lambda address, mask: load_as(dtype, address, mask.kind.lanes, mask)


@_factory
def load_splat(dtype):
    """``v = lds(addr)``: one element in every lane."""

    def load_splat(address):
        emit = context.emitter()
        return Value(emit.splat(load_as(dtype, address, 0).ir, emit.lanes))

    return load_splat


@_factory
def load_scalar(dtype):
    """``s = ld1(addr)``: one element, as a float32 scalar."""
    return lambda address: load_as(dtype, address, 0)


def _vector(value: Any) -> Value:
    """`value`, broadcast if it is a scalar."""
    if isinstance(value, Value) and value.kind.is_vector:
        return value
    return as_kind(value, Kind("f32", context.emitter().lanes))


@_factory
def store(dtype):
    """``st(addr, v)``: stores LANES elements, rounded to the format."""
    return lambda address, value: store_as(dtype, address, _vector(value))


@_factory
def store_masked(dtype):
    """``stm(addr, v, mask)``: lanes outside `mask` are not touched."""
    return lambda address, value, mask: store_as(dtype, address, _vector(value), mask)


@_factory
def store_scalar(dtype):
    """``st1(addr, s)``: stores one element, rounded to the format."""

    def store_scalar(address, value):
        kind = Kind({"b1": "b1", "i32": "i32"}.get(dtype, "f32"))
        store_as(dtype, address, as_kind(value, kind))

    return store_scalar


def _raw_load(address: Value, element: str) -> Value:
    return Value(context.emitter().load(Kind(element), i64(address).ir))


def _raw_store(address: Value, value: Value, element: str) -> None:
    context.emitter().store(i64(address).ir, as_kind(value, Kind(element)).ir)


@word
def load_i64(address):
    """One int64."""
    return _raw_load(address, "i64")


@word
def load_i32(address):
    """One int32, as int64."""
    return i64(_raw_load(address, "i32"))


@word
def store_i64(address, value):
    """Stores one int64."""
    _raw_store(address, value, "i64")


@word
def store_i32(address, value):
    """Stores the low 32 bits of an integer."""
    _raw_store(address, value, "i32")


@word
def load_f64(address):
    """One float64."""
    return _raw_load(address, "f64")


@word
def load_words(address):
    """LANES 32-bit words, as int32."""
    emit = context.emitter()
    return Value(emit.load(Kind("i32", emit.lanes), i64(address).ir))


@word
def load_words_masked(address, mask):
    """32-bit words; lanes outside `mask` are 0 and their memory is not touched."""
    return Value(context.emitter().load(Kind("i32", mask.kind.lanes), i64(address).ir, mask.ir))


@word
def store_words(address, value):
    """Stores 32-bit lanes (int32 or float32) unchanged."""
    context.emitter().store(i64(address).ir, value.ir)


@word
def store_words_masked(address, value, mask):
    """Stores the 32-bit lanes inside `mask` unchanged."""
    context.emitter().store(i64(address).ir, value.ir, mask.ir)


@word
def gather_words(address, stride, mask):
    """int32 words at ``address + lane * stride`` (bytes) of the lanes in `mask`, 0 elsewhere."""
    emit = context.emitter()
    build, lanes = emit.builder, mask.kind.lanes
    result = Value(emit.splat(ELEMENTS["i32"](0), lanes))
    for lane in range(lanes):
        wanted = emit.extract(mask.ir, lane)
        before = build.block
        with build.if_then(wanted):
            place = i64(address) + i64(stride) * lane
            inserted = build.insert_element(result.ir, emit.load(Kind("i32"), place.ir), ELEMENTS["i32"](lane))
            inside = build.block
        merged = build.phi(result.ir.type)
        merged.add_incoming(inserted, inside)
        merged.add_incoming(result.ir, before)
        result = Value(merged)
    return result


@word
def prefetch(address):
    """Hints that the cache line at `address` will be read soon."""
    context.emitter().prefetch(i64(address).ir)


def _store_fence():
    """What was stored past the caches is visible to every thread before anything that follows is."""
    context.emitter().builder.fence("seq_cst")


#: ``store_fence()``: ends a body with streaming stores, which other threads might otherwise see late.
store_fence = Word(_store_fence, parameters=())


def alloca_words(count: int) -> Word:
    """A word without arguments: the address of `count` 8-byte words on the stack, 64-byte aligned."""

    def alloca():
        build = context.emitter().builder
        with build.goto_entry_block():
            place = build.alloca(ELEMENTS["i64"], size=ELEMENTS["i64"](count))
            place.align = 64
        return Value(build.ptrtoint(place, ELEMENTS["i64"]))

    return Word(alloca, parameters=(), returns=types.int64)


__all__ = [
    "alloca_words", "gather_words", "itemsize", "kind_of", "load", "load_as", "load_f64", "load_i32",
    "load_i64", "load_masked", "load_scalar", "load_splat", "load_words", "load_words_masked", "narrow",
    "narrow_group", "prefetch", "store", "store_as", "store_fence", "store_i32", "store_i64", "store_masked",
    "store_scalar",
    "store_words", "store_words_masked", "widen",
]  # fmt: skip
