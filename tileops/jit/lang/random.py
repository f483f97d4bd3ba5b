"""Random bits by counter: the same on every device, in any order and on any number of threads."""

from __future__ import annotations

from typing import Any

from tileops.jit.lang import context
from tileops.jit.lang.emitter import constant
from tileops.jit.lang.values import Value, as_kind
from tileops.jit.lang.words import composite, word

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_WORD = 0xFFFFFFFF


@word
def multiply_high(x, y):
    """Upper 32 bits of the product of 32-bit words, read as unsigned."""
    y = as_kind(y, x.kind)
    build, longs = context.emitter().builder, x.kind.of("i64")
    product = build.mul(build.zext(x.ir, longs.ir), build.zext(y.ir, longs.ir))
    return Value(build.trunc(build.lshr(product, constant(longs, 32)), x.kind.ir), x.kind)


@word
def low_word(x):
    """The low 32 bits of int64 values, as int32."""
    kind = x.kind.of("i32")
    return Value(context.emitter().builder.trunc(x.ir, kind.ir), kind)


def philox4x32(counter: tuple[Any, Any, Any, Any], key: tuple[Any, Any]) -> tuple[Any, Any, Any, Any]:
    """Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011).

    Args:
        counter: four int32 words, the least significant first; at least one of them a traced value.
        key: two int32 words, or Python integers below 2**32.

    Returns:
        Four int32 words of 32 random bits each.
    """
    a, b, c, d = counter
    low, high = key
    for step in range(_ROUNDS):
        if step:
            low, high = (low + _WEYL[0]) & _WORD, (high + _WEYL[1]) & _WORD
        a, b, c, d = (
            multiply_high(c, _MULTIPLIERS[1]) ^ b ^ low,
            c * _MULTIPLIERS[1],
            multiply_high(a, _MULTIPLIERS[0]) ^ d ^ high,
            a * _MULTIPLIERS[0],
        )
    return a, b, c, d


@composite
def philox(counter_low, counter_high, key_low, key_high):
    """Four int32 words of random bits each for the 64-bit counter and key, given as int32 words."""
    nothing = counter_low ^ counter_low
    return philox4x32((counter_low, counter_high, nothing, nothing), (key_low, key_high))


__all__ = ["low_word", "multiply_high", "philox", "philox4x32"]
