"""Angles of rotary embeddings on CUDA, as fractions of a turn in 64-bit fixed point.

An angle ``position * rate`` is needed modulo one turn, and with an absolute error that does not grow with the
position. As an integer in units of 2**-64 turns the product wraps by itself: no range reduction, no double
precision per position, no table, and the error at position p is p * 2**-64 turns plus that of the rate
(2**-52 relative). Sine and cosine are polynomials on a quarter turn (Cephes `sinf`, `cosf`: below 1e-7).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from tileops.jit.lang.cuda_emitter import CudaEmitter
from tileops.jit.lang.cuda_function import device_function, types
from tileops.jit.lang.cuda_strips import Strip
from tileops.jit.lang.emitter import F32, F64, I16, I32, I64

_SIN = (-1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4)
_COS = (4.166664568298827e-2, -1.388731625493765e-3, 2.443315711809948e-5)
_EXP2_TERMS = 13  # terms of the Taylor series of 2**f for |f| <= 1/2; the first one left out is below 2**-57


def rotary_angles(count: int, factor_kinds: Sequence[str] | None = None) -> Any:
    """Cosines and sines of `count` neighbouring pairs at one position.

    Args:
        count: number of pairs.
        factor_kinds: storage formats of the factors that frequencies may have, "f32", "bf16" and "f16" in some order;
            None where frequencies are not scaled at all.

    Returns:
        A device function ``(position, pair, slope, ratio) -> (cos_0, ..., sin_0, ...)``, float32: pair i
        turns by ``position * 2**(i * slope) / (2 pi)`` turns. `position` and `pair` (the first of them) are
        int64; `slope` and ``ratio = 2**slope`` are float64.

        Scaled it takes ``(position, pair, slope, ratio, floor, by_frequency, by_pair, offset, amplitude, factors,
        factor_kind)``: the rate r of pair i, in turns per position, becomes ``r * (floor + (1 - floor) * clamp(
        by_frequency * r + by_pair * i + offset, 0, 1))``, divided by element i of the array at `factors`, whose
        format `factor_kind` counts from 1; 0 divides by nothing. Cosines and sines are multiplied by `amplitude`,
        float32; the other floats are float64.
    """
    kinds = tuple(factor_kinds or ())
    scaled = bool(kinds)

    def rates_of(
        emitter: CudaEmitter, pair: ir.Value, slope: ir.Value, ratio: ir.Value, scaling: Sequence[ir.Value]
    ) -> list[ir.Value]:
        """Turns per position of each pair."""
        b = emitter.builder
        exponent = b.fma(b.sitofp(pair, F64), slope, ir.Constant(F64, -math.log2(2 * math.pi)))
        rates = [_exp2(emitter, exponent)]
        for _ in range(1, count):
            rates.append(b.fmul(rates[-1], ratio))
        if not scaled:
            return rates
        floor, by_frequency, by_pair, offset, factors, factor_kind = scaling
        first = b.sitofp(pair, F64)
        for k, rate in enumerate(rates):
            number = b.fadd(first, ir.Constant(F64, float(k)))
            weight = b.fma(by_frequency, rate, b.fma(by_pair, number, offset))
            weight = _clamp_to_one(emitter, weight)
            rates[k] = b.fmul(rate, b.fma(b.fsub(ir.Constant(F64, 1.0), floor), weight, floor))
        before = b.block
        with b.if_then(b.icmp_signed("!=", factor_kind, I64(0))):
            divided = [
                b.fdiv(rate, _factor(emitter, factors, b.add(pair, I64(k)), factor_kind, kinds))
                for k, rate in enumerate(rates)
            ]
            inside = b.block
        merged = []
        for rate, quotient in zip(rates, divided, strict=True):
            phi = b.phi(F64)
            phi.add_incoming(rate, before)
            phi.add_incoming(quotient, inside)
            merged.append(phi)
        return merged

    def emit(
        emitter: CudaEmitter, position: ir.Value, pair: ir.Value, slope: ir.Value, ratio: ir.Value, *scaling: ir.Value
    ) -> list[ir.Value]:
        b = emitter.builder
        amplitude = scaling[4] if scaled else None
        cosines, sines = [], []
        for rate in rates_of(emitter, pair, slope, ratio, (*scaling[:4], *scaling[5:])):
            sine, cosine = _sin_cos(emitter, b.mul(position, _fixed_point(emitter, rate)))
            sines.append(sine if amplitude is None else b.fmul(sine, amplitude))
            cosines.append(cosine if amplitude is None else b.fmul(cosine, amplitude))
        return cosines + sines

    emit.__name__ = f"{'scaled' if scaled else 'rotary'}_angles_{count}"
    parameters = [types.int64, types.int64, types.float64, types.float64]
    if scaled:
        parameters += [*[types.float64] * 4, types.float32, types.int64, types.int64]
    return device_function(emit, parameters, types.UniTuple(types.float32, 2 * count))


def _clamp_to_one(emitter: CudaEmitter, x: ir.Value) -> ir.Value:
    """`x` within 0 .. 1, in float64."""
    b, zero, one = emitter.builder, ir.Constant(F64, 0.0), ir.Constant(F64, 1.0)
    x = b.select(b.fcmp_ordered("<", x, zero), zero, x)
    return b.select(b.fcmp_ordered(">", x, one), one, x)


def _factor(
    emitter: CudaEmitter, factors: ir.Value, number: ir.Value, kind: ir.Value, kinds: Sequence[str]
) -> ir.Value:
    """Element `number` of an array of one of `kinds`, counted from 1, as float64."""
    b = emitter.builder
    wide = b.icmp_signed("==", kind, I64(1 + kinds.index("f32")))
    address = b.add(factors, b.shl(number, b.select(wide, I64(2), I64(1))))
    flag = b.zext(wide, I32)
    text = "{ .reg .pred p; setp.ne.b32 p, $2, 0; mov.b32 $0, 0; @p ld.global.nc.b32 $0, [$1]; }"
    (word,) = emitter.ptx(text, [I32], [address, flag], early=True)
    text = "{ .reg .pred p; setp.eq.b32 p, $2, 0; mov.b16 $0, 0; @p ld.global.nc.b16 $0, [$1]; }"
    (half,) = emitter.ptx(text, [I16], [address, flag], early=True)
    halves = [emitter.unpack(dtype, [b.zext(half, I32)], 1)[0] for dtype in ("bf16", "f16")]
    narrow = b.select(b.icmp_signed("==", kind, I64(1 + kinds.index("bf16"))), *halves)
    return b.fpext(b.select(wide, b.bitcast(word, F32), narrow), F64)


def _exp2(emitter: CudaEmitter, x: ir.Value) -> ir.Value:
    """``2**x`` in float64, for results that are normal numbers."""
    b = emitter.builder
    (whole,) = emitter.ptx("cvt.rni.f64.f64 $0, $1;", [F64], [x])
    fraction = b.fsub(x, whole)
    value = ir.Constant(F64, math.log(2) ** _EXP2_TERMS / math.factorial(_EXP2_TERMS))
    for k in reversed(range(_EXP2_TERMS)):
        value = b.fma(value, fraction, ir.Constant(F64, math.log(2) ** k / math.factorial(k)))
    shift = b.shl(b.fptosi(whole, I64), I64(52))
    return b.bitcast(b.add(b.bitcast(value, I64), shift), F64)


def _fixed_point(emitter: CudaEmitter, turns: ir.Value) -> ir.Value:
    """The fractional part of a float64 number of turns, in units of 2**-64."""
    b = emitter.builder
    (floor,) = emitter.ptx("cvt.rmi.f64.f64 $0, $1;", [F64], [turns])
    scaled = b.fmul(b.fsub(turns, floor), ir.Constant(F64, 2.0**64))
    (fixed,) = emitter.ptx("cvt.rzi.u64.f64 $0, $1;", [I64], [scaled])
    return fixed


def _sin_cos(emitter: CudaEmitter, turns: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Sine and cosine, float32, of an angle in units of 2**-64 turns."""
    b = emitter.builder
    quarter = b.ashr(b.add(turns, I64(1 << 61)), I64(62))
    rest = b.sub(turns, b.shl(quarter, I64(62)))  # within an eighth of a turn
    x = b.fmul(b.sitofp(b.trunc(b.ashr(rest, I64(30)), I32), F32), _f32(2 * math.pi / 2**34))
    square = b.fmul(x, x)
    sine = b.fma(b.fmul(_polynomial(emitter, square, _SIN), square), x, x)
    cosine = b.fma(b.fmul(_polynomial(emitter, square, _COS), square), square, b.fma(square, _f32(-0.5), _f32(1.0)))
    quarter = b.trunc(quarter, I32)
    swapped = b.trunc(quarter, ir.IntType(1))
    sine_sign = b.shl(b.and_(quarter, I32(2)), I32(30))
    cosine_sign = b.shl(b.and_(b.add(quarter, I32(1)), I32(2)), I32(30))
    return (
        _flip(emitter, b.select(swapped, cosine, sine), sine_sign),
        _flip(emitter, b.select(swapped, sine, cosine), cosine_sign),
    )


def _polynomial(emitter: CudaEmitter, x: ir.Value, coefficients: tuple[float, ...]) -> ir.Value:
    value = _f32(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = emitter.builder.fma(value, x, _f32(coefficient))
    return value


def _flip(emitter: CudaEmitter, x: ir.Value, sign: ir.Value) -> ir.Value:
    b = emitter.builder
    return b.bitcast(b.xor(b.bitcast(x, I32), sign), F32)


def _f32(value: float) -> ir.Constant:
    return ir.Constant(F32, float(np.float32(value)))


def rotate_split(strip: Strip) -> tuple[Any, Any]:
    """Rotates pairs whose first elements lie in one strip and whose second elements in another.

    Returns:
        Two device functions ``(first, second, angles) -> strip``, for the first and the second elements;
        `angles` come from ``rotary_angles(strip.elements)``.
    """
    count = strip.elements

    def first(emitter: CudaEmitter, one: ir.Value, two: ir.Value, angles: ir.Value) -> list[ir.Value]:
        return strip.pack(emitter, [turned[0] for turned in _turn_all(emitter, one, two, angles)])

    def second(emitter: CudaEmitter, one: ir.Value, two: ir.Value, angles: ir.Value) -> list[ir.Value]:
        return strip.pack(emitter, [turned[1] for turned in _turn_all(emitter, one, two, angles)])

    def _turn_all(emitter: CudaEmitter, one: ir.Value, two: ir.Value, angles: ir.Value) -> list[tuple]:
        pairs = zip(strip.unpack(emitter, one), strip.unpack(emitter, two), strict=True)
        return [_turn(emitter, x, y, angles, k, count) for k, (x, y) in enumerate(pairs)]

    parameters = [strip.type, strip.type, types.UniTuple(types.float32, 2 * count)]
    return device_function(first, parameters, strip.type), device_function(second, parameters, strip.type)


def rotate_adjacent(strip: Strip) -> Any:
    """Rotates pairs of adjacent elements.

    Returns:
        A device function ``(strip, angles) -> strip``; `angles` come from ``rotary_angles(strip.elements //
        2)``.
    """
    count = strip.elements // 2

    def adjacent(emitter: CudaEmitter, both: ir.Value, angles: ir.Value) -> list[ir.Value]:
        elements = strip.unpack(emitter, both)
        turned: list[ir.Value] = []
        for k in range(count):
            turned += _turn(emitter, elements[2 * k], elements[2 * k + 1], angles, k, count)
        return strip.pack(emitter, turned)

    return device_function(adjacent, [strip.type, types.UniTuple(types.float32, 2 * count)], strip.type)


def alternate(strip: Strip) -> Any:
    """A strip of sines and cosines in turn.

    Returns:
        A device function ``(angles) -> strip``; `angles` come from ``rotary_angles(strip.elements // 2)``.
    """
    count = strip.elements // 2

    def waves(emitter: CudaEmitter, angles: ir.Value) -> list[ir.Value]:
        b = emitter.builder
        found = [b.extract_value(angles, at) for k in range(count) for at in (count + k, k)]
        return strip.pack(emitter, found)

    return device_function(waves, [types.UniTuple(types.float32, 2 * count)], strip.type)


def _turn(
    emitter: CudaEmitter, x: ir.Value, y: ir.Value, angles: ir.Value, k: int, count: int
) -> tuple[ir.Value, ir.Value]:
    b = emitter.builder
    cosine, sine = b.extract_value(angles, k), b.extract_value(angles, count + k)
    return b.fma(x, cosine, b.fneg(b.fmul(y, sine))), b.fma(y, cosine, b.fmul(x, sine))
