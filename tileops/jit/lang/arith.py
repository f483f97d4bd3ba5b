"""Arithmetic words: constants, lanes, fused multiply-add, selection, rounding, bits, minimum and maximum."""

from __future__ import annotations

from typing import Any

from tileops.jit.lang import context
from tileops.jit.lang.emitter import Kind, constants, ir_type
from tileops.jit.lang.values import Lockstep, Value, as_f32, as_kind, common, common_kind, is_float, is_mask, is_number
from tileops.jit.lang.words import word


def _f32(*args: Any) -> list[Value]:
    """The operands as float32 with the lanes of the first vector among them, or as scalars."""
    like = next((arg.kind for arg in args if isinstance(arg, Value) and arg.kind.is_vector), None)
    return [as_f32(arg, like) for arg in args]


# -- constants and lanes -------------------------------------------------------------------------------------


@word
def splat(s):
    """`s` as float32 in every lane."""
    return as_kind(s, Kind("f32", context.emitter().lanes))


@word
def isplat(s):
    """`s` as int32 in every lane."""
    return as_kind(s, Kind("i32", context.emitter().lanes))


@word
def zeros():
    """A float32 vector of zeros."""
    return as_kind(0.0, Kind("f32", context.emitter().lanes))


@word
def iota():
    """The int32 vector 0, 1, 2, ..."""
    return Value(constants("i32", range(context.emitter().lanes)))


@word
def tail_mask(n):
    """The mask of lanes below `n` (any integer: all lanes from LANES on, none from 0 down)."""
    return mask_below(n, context.emitter().lanes)


def mask_below(n: Value | int, lanes: int, start: int = 0) -> Value:
    """The mask of `lanes` lanes that is true where ``start + lane < n``."""
    emit = context.emitter()
    if not isinstance(n, Value):
        return Value(constants("b1", [start + lane < n for lane in range(lanes)]))
    # Clamped first, so that the comparison in 32 bits is right for every 64-bit n.
    n = as_kind(n, Kind("i64"))
    build = emit.builder
    low, high = as_kind(start, Kind("i64")).ir, as_kind(start + lanes, Kind("i64")).ir
    clamped = build.select(build.icmp_signed("<", n.ir, low), low, n.ir)
    clamped = build.select(build.icmp_signed(">", clamped, high), high, clamped)
    words = emit.splat(build.trunc(clamped, ir_type("i32")), lanes)
    return Value(build.icmp_signed("<", constants("i32", range(start, start + lanes)), words))


@word
def first(v):
    """Lane 0."""
    return Value(context.emitter().extract(v.ir, 0)) if v.kind.is_vector else v


@word
def any_true(mask):
    """Whether any lane of `mask` is true."""
    if not mask.kind.is_vector:
        return mask
    build = context.emitter().builder
    bits = build.bitcast(mask.ir, _integer(mask.kind.lanes))
    return Value(build.icmp_unsigned("!=", bits, bits.type(0)))


def _integer(width: int) -> Any:
    from llvmlite import ir

    return ir.IntType(width)


# -- arithmetic ----------------------------------------------------------------------------------------------


@word
def fma(a, b, c):
    """``a * b + c``: rounded once where the target has the instruction, else twice."""
    a, b, c = _f32(a, b, c)
    return Value(context.emitter().fma(a.ir, b.ir, c.ir), a.kind)


@word
def fma_exact(a, b, c):
    """`fma` as if fused on every target, for error-free transformations; slow without the instruction."""
    a, b, c = _f32(a, b, c)
    return Value(context.emitter().fma_exact(a.ir, b.ir, c.ir), a.kind)


@word
def select(mask, a, b):
    """`a` where `mask` is true, else `b`, of float32, integers or masks; the branch not taken may hold NaN."""
    if is_number(a) and is_number(b):
        kind = mask.kind.of("b1" if is_mask(a) and is_mask(b) else "f32")
    else:
        kind = common_kind(a, b)
        if kind.element == "f64":
            kind = kind.of("f32")
        if mask.kind.is_vector and not kind.is_vector:
            # int64 scalars come from ordinary integer arithmetic: in a vector they are int32.
            kind = Kind("i32" if kind.element == "i64" else kind.element, mask.kind.lanes)
    a, b = as_kind(a, kind), as_kind(b, kind)
    return Value(context.emitter().builder.select(mask.ir, a.ir, b.ir), kind)


@word
def sqrt(x):
    """Square root, correctly rounded."""
    (x,) = _f32(x)
    return Value(context.emitter().sqrt(x.ir), x.kind)


@word
def rsqrt_exact(x):
    """``1 / sqrt(x)`` with two correctly rounded operations."""
    (x,) = _f32(x)
    return 1.0 / Value(context.emitter().sqrt(x.ir), x.kind)


@word
def reciprocal_lp(x):
    """``1 / x`` to a relative error of 2**-14, for normal `x` with a normal reciprocal, and NaN."""
    (x,) = _f32(x)
    return Value(context.emitter().reciprocal_lp(x.ir), x.kind)


@word
def abs_(x):
    """Absolute value (clears the sign bit, of NaN too); of integers too, where the smallest stays as it is."""
    if is_mask(x):
        return x
    if isinstance(x, Value) and not is_float(x):
        return select(x < 0, -x, x)
    (x,) = _f32(x)
    return Value(context.emitter().abs(x.ir), x.kind)


@word
def sign(x):
    """-1, 0 or 1, and 0 for NaN (torch.sign); of integers too, and of a mask itself."""
    if is_mask(x):
        return x
    one = as_kind(1, x.kind)
    return select(x > 0, one, select(x < 0, -one, as_kind(0, x.kind)))


@word
def floor(x):
    """Largest integer not above `x`."""
    (x,) = _f32(x)
    return Value(context.emitter().floor(x.ir), x.kind)


@word
def ceil(x):
    """Smallest integer not below `x`."""
    (x,) = _f32(x)
    return Value(context.emitter().ceil(x.ir), x.kind)


@word
def trunc(x):
    """`x` without its fraction."""
    (x,) = _f32(x)
    return Value(context.emitter().trunc(x.ir), x.kind)


@word
def rint(x):
    """Nearest integer, ties to even."""
    (x,) = _f32(x)
    return Value(context.emitter().rint(x.ir), x.kind)


@word
def copysign(x, y):
    """The size of `x` with the sign of `y`."""
    x, y = _f32(x, y)
    return Value(context.emitter().copysign(x.ir, y.ir), x.kind)


@word
def maxq(x, y):
    """Maximum in one instruction; the second operand where the first is NaN or both are zero."""
    x, y = _f32(x, y)
    return _pick(">", x, y)


@word
def minq(x, y):
    """Minimum in one instruction; the second operand where the first is NaN or both are zero."""
    x, y = _f32(x, y)
    return _pick("<", x, y)


@word
def max_nan(x, y):
    """Maximum; NaN if either is NaN (torch.maximum)."""
    x, y = _f32(x, y)
    return _keep_nan(x, _pick(">", x, y))


@word
def min_nan(x, y):
    """Minimum; NaN if either is NaN (torch.minimum)."""
    x, y = _f32(x, y)
    return _keep_nan(x, _pick("<", x, y))


@word
def maximum(x, y):
    """Maximum of float32 (NaN if either is NaN), of integers or of masks: torch.maximum."""
    x, y = common(x, y)
    return max_nan(x, y) if is_float(x) else select(x > y, x, y)


@word
def minimum(x, y):
    """Minimum of float32 (NaN if either is NaN), of integers or of masks: torch.minimum."""
    x, y = common(x, y)
    return min_nan(x, y) if is_float(x) else select(x < y, x, y)


def _pick(relation: str, x: Value, y: Value) -> Value:
    build = context.emitter().builder
    return Value(build.select(build.fcmp_ordered(relation, x.ir, y.ir), x.ir, y.ir), x.kind)


def _keep_nan(x: Value, picked: Value) -> Value:
    # The comparison above gives y for a NaN on either side, so only a NaN in x is lost.
    build = context.emitter().builder
    return Value(build.select(build.fcmp_unordered("uno", x.ir, x.ir), x.ir, picked.ir), x.kind)


# -- bits and conversions ------------------------------------------------------------------------------------


@word
def as_int(x):
    """The bits of float32 lanes as int32."""
    (x,) = _f32(x)
    kind = x.kind.of("i32")
    return Value(context.emitter().builder.bitcast(x.ir, kind.ir), kind)


@word
def as_float(x):
    """int32 lanes as the bits of float32."""
    kind = x.kind.of("f32")
    return Value(context.emitter().builder.bitcast(as_kind(x, x.kind.of("i32")).ir, kind.ir), kind)


@word
def to_float(x):
    """Integers of any width, or masks, converted to float32; float32 stays."""
    kind = x.kind.of("f32")
    if is_float(x):
        return as_f32(x)
    build = context.emitter().builder
    convert = build.uitofp if x.kind.element == "b1" else build.sitofp
    return Value(convert(x.ir, kind.ir), kind)


@word
def to_int(x):
    """float32 lanes truncated to int32; the caller keeps values within int32 and free of NaN."""
    (x,) = _f32(x)
    kind = x.kind.of("i32")
    return Value(context.emitter().builder.fptosi(x.ir, kind.ir), kind)


@word
def shift_right_logical(x, n):
    """int32 lanes shifted right, zeros shifted in."""
    n = as_kind(n, x.kind)
    return Value(context.emitter().builder.lshr(x.ir, n.ir), x.kind)


@word
def ldexp(x, n):
    """``x * 2**n`` rounded once, for ``0.5 <= |x| < 4`` and ``-252 <= n <= 252``."""
    (x,) = _f32(x)
    n = as_kind(n, x.kind.of("i32"))
    return Value(context.emitter().ldexp(x.ir, n.ir), x.kind)


__all__ = [
    "Lockstep", "abs_", "any_true", "as_float", "as_int", "ceil", "copysign", "first", "floor", "fma",
    "fma_exact", "iota", "isplat", "ldexp", "mask_below", "max_nan", "maximum", "maxq", "min_nan",
    "minimum", "minq", "reciprocal_lp", "rint", "rsqrt_exact", "select", "shift_right_logical", "sign",
    "splat", "sqrt", "tail_mask", "to_float", "to_int", "trunc", "zeros",
]  # fmt: skip
