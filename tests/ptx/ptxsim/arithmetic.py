"""Exact scalar arithmetic of PTX on NumPy arrays: fused multiply-add, conversions, wide integers.

NumPy has no fused multiply-add. Both precisions are computed exactly here with error-free transformations and
rounding to odd (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using
rounding to odd", IEEE Transactions on Computers 57, 2008). Overflow and underflow of intermediate float64
values are outside their proof; float32 never comes near them.
"""

from __future__ import annotations

import numpy as np

from tests.ptx.ptxsim.types import PTX_TYPES, is_float

_SPLITTER = 2.0**27 + 1


def fma32(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """``a * b + c`` in float32 with one rounding. The product is exact in float64; the sum is rounded to odd
    there, so that the second rounding cannot err.
    """
    product = a.astype(np.float64) * b.astype(np.float64)
    return _sum_to_odd(product, c.astype(np.float64)).astype(np.float32)


def fma64(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """``a * b + c`` in float64 with one rounding."""
    plain = a * b + c
    high, low = _two_product(a, b)
    tail_high, tail_low = _two_sum(c, low)
    head, head_low = _two_sum(high, tail_high)
    exact = head + _sum_to_odd(tail_low, head_low)
    return np.where(np.isfinite(plain) & np.isfinite(exact), exact, plain)


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _two_product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    product = a * b
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    return product, a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)


def _halves(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scaled = _SPLITTER * a
    high = scaled - (scaled - a)
    return high, a - high


def _sum_to_odd(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``a + b`` in float64 rounded to odd: the neighbour with an odd last bit where the sum is not exact."""
    total, error = _two_sum(a, b)
    bits = total.view(np.int64)
    inexact = np.isfinite(total) & np.isfinite(error) & (error != 0) & (bits & 1 == 0)
    outwards = (error > 0) == (total > 0)
    return np.where(inexact, bits + np.where(outwards, 1, -1), bits).view(np.float64)


def multiply_high(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The upper half of the double-width product of two integer arrays of one type."""
    if a.dtype.itemsize < 8:
        wide = np.dtype(f"{a.dtype.kind}{a.dtype.itemsize * 2}")
        return ((a.astype(wide) * b.astype(wide)) >> (a.dtype.itemsize * 8)).astype(a.dtype)
    unsigned_a, unsigned_b = a.view(np.uint64), b.view(np.uint64)
    mask = np.uint64(0xFFFF_FFFF)
    shift = np.uint64(32)
    a_low, a_high = unsigned_a & mask, unsigned_a >> shift
    b_low, b_high = unsigned_b & mask, unsigned_b >> shift
    middle = a_high * b_low + ((a_low * b_low) >> shift)
    other = a_low * b_high + (middle & mask)
    high = a_high * b_high + (middle >> shift) + (other >> shift)
    if a.dtype.kind == "i":
        high = high - np.where(a < 0, unsigned_b, 0) - np.where(b < 0, unsigned_a, 0)
    return high.view(a.dtype)


def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Integer division towards zero. Division by zero is undefined in PTX; all ones here, as GPUs give."""
    safe = np.where(b == 0, 1, b).astype(b.dtype)
    quotient = (a // safe).astype(a.dtype)
    if a.dtype.kind == "i":
        inexact = quotient * safe != a
        quotient = np.where(inexact & ((a < 0) != (safe < 0)), quotient + 1, quotient).astype(a.dtype)
    return np.where(b == 0, np.array(-1).astype(a.dtype), quotient).astype(a.dtype)


def remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Remainder of `divide`, with the sign of the dividend."""
    safe = np.where(b == 0, 1, b).astype(b.dtype)
    return (a - divide(a, safe) * safe).astype(a.dtype)


def shift_left(a: np.ndarray, amount: np.ndarray) -> np.ndarray:
    """Shifts by the width or more give 0."""
    width = a.dtype.itemsize * 8
    return np.where(amount < width, a << np.minimum(amount, width - 1).astype(a.dtype), 0).astype(a.dtype)


def shift_right(a: np.ndarray, amount: np.ndarray) -> np.ndarray:
    """Arithmetic for signed, logical for unsigned; the amount is clamped to the width."""
    width = a.dtype.itemsize * 8
    shifted = a >> np.minimum(amount, width - 1).astype(a.dtype)
    return shifted if a.dtype.kind == "i" else np.where(amount < width, shifted, 0).astype(a.dtype)


def float_min(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``min``: the other operand where one is NaN, canonical NaN where both are; -0 < +0."""
    return _canonical(np.where(_less(a, b), a, np.where(np.isnan(b), a, b)))


def float_max(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``max``: as `float_min`."""
    return _canonical(np.where(_less(b, a), a, np.where(np.isnan(b), a, b)))


def _less(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a < b) | ((a == b) & np.signbit(a) & ~np.signbit(b))


def _canonical(a: np.ndarray) -> np.ndarray:
    """PTX's canonical NaN (0x7fffffff in float32) for every NaN."""
    if a.dtype == np.float32:
        return np.where(np.isnan(a), np.uint32(0x7FFF_FFFF), a.view(np.uint32)).astype(np.uint32).view(np.float32)
    return a


def flush(a: np.ndarray) -> np.ndarray:
    """``.ftz``: subnormal float32 values become zeros of their sign."""
    return np.where(np.abs(a) < np.float32(2.0**-126), np.copysign(np.float32(0), a), a).astype(np.float32)


_TO_INTEGER = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}


def convert(value: np.ndarray, to: str, rounding: str) -> np.ndarray:
    """``cvt``: `value` as PTX type `to`.

    Float to integer saturates and sends NaN to 0 (to the smallest integer for 64-bit results, as GPUs do);
    integer to narrower integer keeps the low bits.
    """
    dtype = PTX_TYPES[to]
    if value.dtype.kind in "iu" or value.dtype == np.bool_:
        return value.astype(dtype)
    if is_float(to):
        if rounding in _TO_INTEGER:
            value = _TO_INTEGER[rounding](value)
        return _quiet_nan(value.astype(dtype), np.isnan(value))
    whole = _TO_INTEGER[rounding](value.astype(np.float64))
    limits = np.iinfo(dtype)
    nan = np.isnan(whole)
    inside = (whole >= float(limits.min)) & (whole < float(limits.max) + (1 if limits.bits < 64 else 0))
    result = np.where(inside, whole, 0).astype(dtype)
    result = np.where(whole >= float(limits.max), limits.max, np.where(whole < float(limits.min), limits.min, result))
    nan_value = 0 if limits.bits < 64 else (1 << 63 if limits.min == 0 else limits.min)
    return np.where(nan, np.array(nan_value, dtype), result.astype(dtype))


def _quiet_nan(value: np.ndarray, nan: np.ndarray) -> np.ndarray:
    """The NaN that conversions produce: 0x7fff in 16 bits."""
    if value.dtype.itemsize != 2:
        return value
    bits = np.where(nan, np.uint16(0x7FFF), value.view(np.uint16)).astype(np.uint16)
    return bits.view(value.dtype)
