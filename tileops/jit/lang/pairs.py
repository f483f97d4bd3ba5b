"""Words of two 16-bit elements, the unit of half-precision matrix products: element 2i is in the low half of
word i.
"""

from __future__ import annotations

from llvmlite import ir

from tileops.jit.lang import context
from tileops.jit.lang.arith import mask_below
from tileops.jit.lang.emitter import BF16, Kind, constant
from tileops.jit.lang.memory import widen
from tileops.jit.lang.values import Value, i64

_UPPER = 0xFFFF0000


def load_pairs(addr: Value, count: Value | None = None) -> Value:
    """LANES words from ``2 * LANES`` neighbouring elements; elements from `count` on are 0 and are not
    touched.
    """
    emit = context.emitter()
    kind = Kind("i16", 2 * emit.lanes)
    mask = None if count is None else mask_below(count, kind.lanes).ir
    bits = emit.load(kind, i64(addr).ir, mask)
    return Value(emit.builder.bitcast(bits, Kind("i32", emit.lanes).ir))


def split_pairs(dtype: str, words: Value) -> tuple[Value, Value]:
    """The low and the high elements (``"bf16"`` or ``"f16"``) of words, as float32."""
    build, kind = context.emitter().builder, words.kind
    if dtype == "bf16":
        low = build.shl(words.ir, constant(kind, 16))
        high = build.and_(words.ir, constant(kind, _UPPER))
        floats = kind.of("f32").ir
        return Value(build.bitcast(low, floats)), Value(build.bitcast(high, floats))
    halves = kind.of("i16").ir
    low = build.trunc(words.ir, halves)
    high = build.trunc(build.lshr(words.ir, constant(kind, 16)), halves)
    return widen(dtype, Value(low)), widen(dtype, Value(high))


def bf16_parts(x: Value, parts: int) -> list[Value]:
    """`x` as a sum of `parts` float32 values that are exact in bfloat16, largest first.

    Two parts hold every float16, three every float32 that is not close to the smallest normal number. All
    parts have the sign of `x`, and none is zero unless `x` is: part i is between 0 and ``2**(-7 i)`` of `x`.
    So products of parts of an infinity with parts of other numbers are the infinity (or NaN) that the whole
    numbers would give. All parts of an infinity and of NaN are `x` itself.
    """
    build = context.emitter().builder
    ints = x.kind.of("i32")

    def number(value: int) -> ir.Constant:
        return constant(ints, value)

    found, rest = [], x
    for _ in range(parts - 1):
        bits = build.bitcast(rest.ir, ints.ir)
        size = build.and_(bits, number(0x7FFFFFFF))
        special = build.or_(build.icmp_signed("==", size, number(0)), build.icmp_signed(">=", size, number(0x7F800000)))
        # One less than the number, cut to 8 bits: strictly smaller, so that something is left for the next
        # part.
        cut = build.bitcast(build.and_(build.sub(bits, number(1)), number(_UPPER)), x.kind.ir)
        left = build.fsub(rest.ir, cut)
        found.append(Value(build.select(special, rest.ir, cut), x.kind))
        rest = Value(build.select(special, rest.ir, left), x.kind)
    return [*found, rest]


def join_bf16(low: Value, high: Value) -> Value:
    """Words of two bfloat16 from float32 values that are exact in bfloat16."""
    build, ints = context.emitter().builder, low.kind.of("i32")
    lower = build.lshr(build.bitcast(low.ir, ints.ir), constant(ints, 16))
    upper = build.and_(build.bitcast(high.ir, ints.ir), constant(ints, _UPPER))
    return Value(build.or_(lower, upper))


def store_bf16_flushed(addr: Value, first: Value, second: Value) -> None:
    """Stores two vectors side by side as bfloat16 with the hardware's conversion, which turns subnormals into
    zeros: exact for values that come from AMX, where sums are flushed already. Needs ``has_avx512bf16``.
    """
    emit = context.emitter()
    result = ir.VectorType(BF16, 2 * first.kind.lanes)
    bits = emit.call("llvm.x86.avx512bf16.cvtne2ps2bf16.512", result, (second.ir, first.ir))
    pointer = emit.address(i64(addr).ir)
    emit.builder.store(bits, pointer, align=2)


__all__ = ["bf16_parts", "join_bf16", "load_pairs", "split_pairs", "store_bf16_flushed"]
