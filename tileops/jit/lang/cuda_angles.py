"""Angles of rotary embeddings on CUDA, as fractions of a turn in 64-bit fixed point.

An angle ``position * rate`` is needed modulo one turn, and with an absolute error that does not grow with the
position. As an integer in units of 2**-64 turns the product wraps by itself: no range reduction, no double
precision per position, no table, and the error at position p is p * 2**-64 turns plus that of the rate
(2**-52 relative). Sine and cosine are polynomials on a quarter turn (Cephes `sinf`, `cosf`: below 1e-7).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir

from tileops.jit.lang.cuda_emitter import CudaEmitter
from tileops.jit.lang.cuda_function import device_function, types
from tileops.jit.lang.cuda_strips import Strip
from tileops.jit.lang.emitter import F32, F64, I32, I64

_SIN = (-1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4)
_COS = (4.166664568298827e-2, -1.388731625493765e-3, 2.443315711809948e-5)
_EXP2_TERMS = 13  # terms of the Taylor series of 2**f for |f| <= 1/2; the first one left out is below 2**-57


def rotary_angles(count: int) -> Any:
    """Cosines and sines of `count` neighbouring pairs at one position.

    Returns:
        A device function ``(position, pair, slope, ratio) -> (cos_0, ..., sin_0, ...)``, float32: pair i
        turns by ``position * 2**(i * slope) / (2 pi)`` turns. `position` and `pair` (the first of them) are
        int64; `slope` and ``ratio = 2**slope`` are float64.
    """

    def emit(
        emitter: CudaEmitter, position: ir.Value, pair: ir.Value, slope: ir.Value, ratio: ir.Value
    ) -> list[ir.Value]:
        b = emitter.builder
        exponent = b.fma(b.sitofp(pair, F64), slope, ir.Constant(F64, -math.log2(2 * math.pi)))
        rate = _exp2(emitter, exponent)
        cosines, sines = [], []
        for k in range(count):
            if k:
                rate = b.fmul(rate, ratio)
            sine, cosine = _sin_cos(emitter, b.mul(position, _fixed_point(emitter, rate)))
            sines.append(sine)
            cosines.append(cosine)
        return cosines + sines

    emit.__name__ = f"rotary_angles_{count}"
    return device_function(
        emit,
        [types.int64, types.int64, types.float64, types.float64],
        types.UniTuple(types.float32, 2 * count),
    )


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


def _turn(
    emitter: CudaEmitter, x: ir.Value, y: ir.Value, angles: ir.Value, k: int, count: int
) -> tuple[ir.Value, ir.Value]:
    b = emitter.builder
    cosine, sine = b.extract_value(angles, k), b.extract_value(angles, count + k)
    return b.fma(x, cosine, b.fneg(b.fmul(y, sine))), b.fma(y, cosine, b.fmul(x, sine))
