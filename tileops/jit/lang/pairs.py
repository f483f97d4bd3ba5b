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
#: Bits of float32.
_ONE, _256, _INFINITY = 0x3F800000, 0x43800000, 0x7F800000


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


#: Products of parts (left, right) that make up a product, by their numbers of parts; a step changes one operand only.
#: What is left out is at most 2**-16 of a product of two parts with two, 2**-21 (2**-25 in the mean square) of
#: three with three, and nothing of three with one, which has to be finite. The last parts come before the middle ones,
#: which may be rounded up: no sum on the way exceeds a result that is just below the largest number.
PART_PRODUCTS = {
    (1, 1): ((0, 0),),
    (2, 2): ((1, 0), (0, 0), (0, 1)),
    (3, 3): ((0, 2), (0, 0), (2, 0), (1, 0), (1, 1), (0, 1)),
    (3, 1): ((0, 0), (2, 0), (1, 0)),
}


def bf16_parts(x: Value, parts: int) -> list[Value]:
    """`x` as a sum of `parts` float32 values that are exact in bfloat16, largest first, to multiply by
    `PART_PRODUCTS`.

    Two parts hold every float16, three every float32 that is not close to the smallest normal number. Part n is zero
    unless `x` has more than ``8 * (n - 1)`` significant bits, so nothing is left out of a product that the format of
    `x` holds.

    The last cut rounds to nearest: what is left out has no preferred sign. The one before it goes towards zero, as a
    product of parts must not overflow where the product does not. So does the last one for three parts of numbers from
    256 on, which may be met by so large ones that a part of the other sign would make NaN of an infinite result.

    An infinity or NaN is its own last part, behind a first part of 1 with its sign and zeros between. So it meets the
    first parts of other numbers only, which are zero and negative where the numbers are. (If all its parts were
    infinite, they would meet others that are zero by chance.)
    """
    if parts == 1:
        return [x]
    build = context.emitter().builder
    ints = x.kind.of("i32")

    def number(value: int) -> ir.Constant:
        return constant(ints, value)

    bits = build.bitcast(x.ir, ints.ir)
    size = build.and_(bits, number(0x7FFFFFFF))
    special = build.icmp_unsigned(">=", size, number(_INFINITY))
    half: ir.Value = number(0x8000)
    if parts == 3:
        half = build.select(build.icmp_unsigned(">=", size, number(_256)), number(0), half)
    # Taken from an infinity, this leaves the infinity, and from NaN a NaN that stays one when cut to 16 bits.
    one = build.bitcast(build.or_(build.and_(bits, number(0x80000000)), number(_ONE)), x.kind.ir)
    found, rest = [], x.ir
    for index in range(parts - 1):
        bits = build.bitcast(rest, ints.ir)
        if index == parts - 2:
            bits = build.add(bits, half)
        part = build.bitcast(build.and_(bits, number(_UPPER)), x.kind.ir)
        part = build.select(special, constant(x.kind, 0.0) if index else one, part)
        found.append(Value(part, x.kind))
        rest = build.fsub(rest, part)
    return [*found, Value(rest, x.kind)]


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


__all__ = ["PART_PRODUCTS", "bf16_parts", "join_bf16", "load_pairs", "split_pairs", "store_bf16_flushed"]
