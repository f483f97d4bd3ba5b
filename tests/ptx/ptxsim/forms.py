"""The instruction forms that the interpreter models, and what each computes.

Most instructions act on every thread alone: they are rows of `ELEMENTWISE`, one per full spelling, so that a
modifier nobody has thought about is an error and not a guess. `scripts/device_check.py` runs each row on a
GPU and compares bit for bit, or within `ulps` for the approximate ones.

Meanings follow the PTX ISA 9.0, chapter "Instruction Set".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.ptx.ptxsim.arithmetic import (
    convert,
    divide,
    float_max,
    float_min,
    flush,
    fma32,
    fma64,
    multiply_high,
    remainder,
    shift_left,
    shift_right,
)
from tests.ptx.ptxsim.types import PTX_TYPES


@dataclass(frozen=True)
class Form:
    """One spelling of an instruction that acts on each thread alone.

    Attributes:
        name: opcode and modifiers.
        result: PTX type of the destination.
        sources: PTX types of the source operands.
        compute: NumPy implementation.
        ulps: how far a GPU may be from `compute`, in units in the last place of the result.
    """

    name: str
    result: str
    sources: tuple[str, ...]
    compute: Callable[..., np.ndarray]
    ulps: int = 0


ELEMENTWISE: dict[str, Form] = {}

#: Forms that `ptxsim.machine` executes itself: memory, control flow, warps.
STRUCTURAL = frozenset({"bra", "bra.uni", "ret", "exit", "bar.sync", "bar.warp.sync", "shfl.sync", "ld", "st", "mov"})


def _form(name: str, result: str, sources: str, compute: Callable[..., np.ndarray], ulps: int = 0) -> None:
    ELEMENTWISE[name] = Form(name, result, tuple(sources.split()), compute, ulps)


_INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
_WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def _wide(result: str) -> Callable[..., np.ndarray]:
    dtype = PTX_TYPES[result]
    return lambda a, b: a.astype(dtype) * b.astype(dtype)


def _wide_add(result: str) -> Callable[..., np.ndarray]:
    dtype = PTX_TYPES[result]
    return lambda a, b, c: a.astype(dtype) * b.astype(dtype) + c


for _t in _INTEGERS:
    _form(f"add.{_t}", _t, f"{_t} {_t}", np.add)
    _form(f"sub.{_t}", _t, f"{_t} {_t}", np.subtract)
    _form(f"mul.lo.{_t}", _t, f"{_t} {_t}", np.multiply)
    _form(f"mad.lo.{_t}", _t, f"{_t} {_t} {_t}", lambda a, b, c: a * b + c)
    _form(f"div.{_t}", _t, f"{_t} {_t}", divide)
    _form(f"rem.{_t}", _t, f"{_t} {_t}", remainder)
    _form(f"min.{_t}", _t, f"{_t} {_t}", np.minimum)
    _form(f"max.{_t}", _t, f"{_t} {_t}", np.maximum)
    _form(f"shr.{_t}", _t, f"{_t} u32", shift_right)
    if _t in _WIDE:
        _form(f"mul.wide.{_t}", _WIDE[_t], f"{_t} {_t}", _wide(_WIDE[_t]))
        _form(f"mad.wide.{_t}", _WIDE[_t], f"{_t} {_t} {_WIDE[_t]}", _wide_add(_WIDE[_t]))
    _form(f"mul.hi.{_t}", _t, f"{_t} {_t}", multiply_high)
for _t in ("s16", "s32", "s64"):
    _form(f"neg.{_t}", _t, _t, np.negative)
    _form(f"abs.{_t}", _t, _t, np.abs)
for _t in ("b16", "b32", "b64"):
    _form(f"and.{_t}", _t, f"{_t} {_t}", np.bitwise_and)
    _form(f"or.{_t}", _t, f"{_t} {_t}", np.bitwise_or)
    _form(f"xor.{_t}", _t, f"{_t} {_t}", np.bitwise_xor)
    _form(f"not.{_t}", _t, _t, np.bitwise_not)
    _form(f"shl.{_t}", _t, f"{_t} u32", shift_left)
    _form(f"shr.{_t}", _t, f"{_t} u32", shift_right)
_form("and.pred", "pred", "pred pred", np.logical_and)
_form("or.pred", "pred", "pred pred", np.logical_or)
_form("xor.pred", "pred", "pred pred", np.logical_xor)
_form("not.pred", "pred", "pred", np.logical_not)

for _t, _fma in (("f32", fma32), ("f64", fma64)):
    for _rounding in ("", ".rn"):
        _form(f"add{_rounding}.{_t}", _t, f"{_t} {_t}", np.add)
        _form(f"sub{_rounding}.{_t}", _t, f"{_t} {_t}", np.subtract)
        _form(f"mul{_rounding}.{_t}", _t, f"{_t} {_t}", np.multiply)
    _form(f"fma.rn.{_t}", _t, f"{_t} {_t} {_t}", _fma)
    _form(f"div.rn.{_t}", _t, f"{_t} {_t}", np.divide)
    _form(f"sqrt.rn.{_t}", _t, _t, np.sqrt)
    _form(f"neg.{_t}", _t, _t, np.negative)
    _form(f"abs.{_t}", _t, _t, np.abs)
    _form(f"copysign.{_t}", _t, f"{_t} {_t}", lambda sign, value: np.copysign(value, sign))
    _form(f"min.{_t}", _t, f"{_t} {_t}", float_min)
    _form(f"max.{_t}", _t, f"{_t} {_t}", float_max)


def _ftz(compute: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """A unary approximate function that flushes subnormal inputs and results, computed in float64."""
    return lambda x: flush(compute(flush(x).astype(np.float64)).astype(np.float32))


_form("ex2.approx.ftz.f32", "f32", "f32", _ftz(np.exp2), ulps=2)
_form("rsqrt.approx.ftz.f32", "f32", "f32", _ftz(lambda x: 1 / np.sqrt(x)), ulps=2)
_form("rsqrt.approx.f32", "f32", "f32", lambda x: (1 / np.sqrt(x.astype(np.float64))).astype(np.float32), ulps=2)
_form("rcp.approx.ftz.f32", "f32", "f32", _ftz(lambda x: 1 / x), ulps=1)
_form("div.full.f32", "f32", "f32 f32", np.divide, ulps=2)
_form("rcp.rn.f32", "f32", "f32", lambda x: np.float32(1) / x)

_COMPARE = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_COMPARE_UNSIGNED = {"lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal}


def _unordered(compare: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda a, b: compare(a, b) | np.isnan(a) | np.isnan(b)


def _ordered(compare: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda a, b: compare(a, b) & ~(np.isnan(a) | np.isnan(b))


for _t in ("u16", "s16", "b16", "u32", "s32", "b32", "u64", "s64", "b64"):
    for _name, _compare in (_COMPARE | (_COMPARE_UNSIGNED if _t[0] == "u" else {})).items():
        if _t[0] != "b" or _name in ("eq", "ne"):
            _form(f"setp.{_name}.{_t}", "pred", f"{_t} {_t}", _compare)
for _t in ("f32", "f64"):
    for _name, _compare in _COMPARE.items():
        _form(f"setp.{_name}.{_t}", "pred", f"{_t} {_t}", _ordered(_compare))
        _form(f"setp.{_name}u.{_t}", "pred", f"{_t} {_t}", _unordered(_compare))
    _form(f"setp.num.{_t}", "pred", f"{_t} {_t}", lambda a, b: ~(np.isnan(a) | np.isnan(b)))
    _form(f"setp.nan.{_t}", "pred", f"{_t} {_t}", lambda a, b: np.isnan(a) | np.isnan(b))
for _t in ("b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"):
    _form(f"selp.{_t}", _t, f"{_t} {_t} pred", lambda a, b, p: np.where(p, a, b))

_CONVERSIONS = ["cvt.rn.f32.f64", "cvt.f64.f32", "cvt.rn.f16.f32", "cvt.f32.f16", "cvt.rn.bf16.f32"]
for _source in ("u16", "s16", "u32", "s32", "u64", "s64"):
    _CONVERSIONS += [f"cvt.rn.f32.{_source}", f"cvt.rn.f64.{_source}"]
    _CONVERSIONS += [f"cvt.{_target}.{_source}" for _target in ("u8", "s8", *_INTEGERS) if _target != _source]
for _source in ("u8", "s8"):
    _CONVERSIONS += [f"cvt.rn.f32.{_source}", *(f"cvt.{_target}.{_source}" for _target in _INTEGERS)]
for _float in ("f32", "f64"):
    for _rounding in ("rzi", "rni", "rmi", "rpi"):
        _CONVERSIONS += [f"cvt.{_rounding}.{_target}.{_float}" for _target in ("u32", "s32", "u64", "s64")]
        _CONVERSIONS.append(f"cvt.{_rounding}.{_float}.{_float}")


def _conversion(name: str) -> Form:
    parts = name.split(".")
    target, source = parts[-2], parts[-1]
    rounding = parts[1] if len(parts) == 4 else ""
    registers = {"f16": "b16", "bf16": "b16", "u8": "u16", "s8": "s16"}

    def compute(value: np.ndarray) -> np.ndarray:
        # An 8-bit source is the low byte of a wider register.
        held_as = PTX_TYPES[source]
        value = value.view(held_as) if held_as.itemsize == value.dtype.itemsize else value.astype(held_as)
        result = convert(value, target, rounding)
        held = PTX_TYPES[registers.get(target, target)]
        return result.view(held) if result.dtype.itemsize == held.itemsize else result.astype(held)

    return Form(name, registers.get(target, target), (registers.get(source, source),), compute)


ELEMENTWISE.update({name: _conversion(name) for name in _CONVERSIONS})


def _pack(target: str) -> Callable[..., np.ndarray]:
    def compute(high: np.ndarray, low: np.ndarray) -> np.ndarray:
        upper, lower = (convert(x, target, "rn").view(np.uint16).astype(np.uint32) for x in (high, low))
        return (upper << np.uint32(16)) | lower

    return compute


_form("cvt.rn.f16x2.f32", "b32", "f32 f32", _pack("f16"))
_form("cvt.rn.bf16x2.f32", "b32", "f32 f32", _pack("bf16"))


def _permute(a: np.ndarray, b: np.ndarray, selector: np.ndarray) -> np.ndarray:
    """``prmt.b32``: each nibble of the selector picks one byte of b:a, or replicates its sign."""
    both = (b.astype(np.uint64) << np.uint64(32)) | a.astype(np.uint64)
    result = np.zeros(a.shape, np.uint32)
    for k in range(4):
        nibble = (selector >> np.uint32(4 * k)) & np.uint32(15)
        byte = (both >> ((nibble & np.uint32(7)).astype(np.uint64) * np.uint64(8))).astype(np.uint32) & np.uint32(255)
        sign = np.where(byte >> np.uint32(7), np.uint32(255), np.uint32(0))
        result |= np.where(nibble >> np.uint32(3), sign, byte).astype(np.uint32) << np.uint32(8 * k)
    return result


_form("prmt.b32", "b32", "b32 b32 b32", _permute)


def _insert(a: np.ndarray, b: np.ndarray, position: np.ndarray, length: np.ndarray) -> np.ndarray:
    """``bfi``: the low `length` bits of `a` in place of those of `b` from `position` on; none beyond the top."""
    position, length = position & np.uint32(255), length & np.uint32(255)
    one, all_ones = np.ones_like(a), ~np.zeros_like(a)
    below = np.where(length < a.dtype.itemsize * 8, shift_left(one, length) - one, all_ones)
    field = shift_left(below, position)
    return (b & ~field) | (shift_left(a, position) & field)


for _t in ("b32", "b64"):
    _form(f"bfi.{_t}", _t, f"{_t} {_t} u32 u32", _insert)
