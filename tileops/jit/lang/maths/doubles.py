"""float64 lanes, for the few intermediate results that need more than 24 bits."""

from __future__ import annotations

from tileops.jit.lang import context
from tileops.jit.lang.arith import to_float
from tileops.jit.lang.emitter import constant
from tileops.jit.lang.values import Value, as_kind
from tileops.jit.lang.words import word


@word
def to_double(x):
    """float32 (or integer) lanes as float64."""
    kind = x.kind.of("f64")
    return Value(context.emitter().builder.fpext(to_float(x).ir, kind.ir), kind)


@word
def to_single(x):
    """float64 lanes rounded to float32."""
    kind = x.kind.of("f32")
    return Value(context.emitter().builder.fptrunc(x.ir, kind.ir), kind)


@word
def double_bits(x):
    """The bits of float64 lanes as int64."""
    kind = x.kind.of("i64")
    return Value(context.emitter().builder.bitcast(x.ir, kind.ir), kind)


@word
def double_of_bits(x):
    """int64 lanes as the bits of float64."""
    kind = x.kind.of("f64")
    return Value(context.emitter().builder.bitcast(x.ir, kind.ir), kind)


@word
def fma_double(a, b, c):
    """``a * b + c`` in float64: rounded once where the target has the instruction, else twice."""
    kind = next(arg.kind for arg in (a, b, c) if isinstance(arg, Value))
    a, b, c = (as_kind(arg, kind) for arg in (a, b, c))
    return Value(context.emitter().fma(a.ir, b.ir, c.ir), kind)


@word
def select_double(mask, a, b):
    """`select` of float64 lanes."""
    kind = mask.kind.of("f64")
    a, b = (arg if isinstance(arg, Value) else Value(constant(kind, arg), kind) for arg in (a, b))
    return Value(context.emitter().builder.select(mask.ir, a.ir, b.ir), kind)


def polynomial_double(x, *coefficients):
    """Horner's rule in float64, highest power first."""
    value = coefficients[0]
    for coefficient in coefficients[1:]:
        value = fma_double(value, x, coefficient)
    return value
