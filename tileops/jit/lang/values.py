"""Tracer values: ordinary Python operators and functions on them emit LLVM IR.

`Value` is one scalar or vector. `Lockstep` is several of them that go through the same operations side by
side, which hides the latency of one behind the work of the others; every function of the vocabulary accepts
both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from tileops.jit.lang import context
from tileops.jit.lang.emitter import ELEMENTS, Kind, constant, kind_of

Number = float | int | bool | np.generic


class Value:
    """A scalar or vector of the program being emitted.

    Operators follow the vector rules of the vocabulary: numbers and scalars broadcast, float32 stays float32,
    integer operators need integers, comparisons give masks (ordered: false for NaN; ``!=`` is true for NaN).
    On masks, ``+`` is "or" and ``*`` is "and", as in torch.
    """

    __slots__ = ("ir", "kind")
    __hash__ = None  # type: ignore[assignment]
    __array_ufunc__ = None  # a NumPy scalar on the left leaves the operator to us

    def __init__(self, value: ir.Value, kind: Kind | None = None) -> None:
        self.ir = value
        self.kind = kind or kind_of(value)

    def __repr__(self) -> str:
        return f"Value({self.kind})"

    def __bool__(self) -> bool:
        raise TypeError(
            "a traced value has no truth value while the program is being built: use select(mask, a, b), or "
            "t.when(...) in a tile"
        )

    def __add__(self, other: Any) -> Any:
        return _arithmetic(self, other, "fadd", "add")

    def __radd__(self, other: Any) -> Any:
        return _arithmetic(other, self, "fadd", "add")

    def __sub__(self, other: Any) -> Any:
        return _arithmetic(self, other, "fsub", "sub")

    def __rsub__(self, other: Any) -> Any:
        return _arithmetic(other, self, "fsub", "sub")

    def __mul__(self, other: Any) -> Any:
        return _arithmetic(self, other, "fmul", "mul")

    def __rmul__(self, other: Any) -> Any:
        return _arithmetic(other, self, "fmul", "mul")

    def __truediv__(self, other: Any) -> Any:
        return _arithmetic(self, other, "fdiv", None)

    def __rtruediv__(self, other: Any) -> Any:
        return _arithmetic(other, self, "fdiv", None)

    def __floordiv__(self, other: Any) -> Value:
        return _floor_divide(self, other)[0]

    def __mod__(self, other: Any) -> Value:
        return _floor_divide(self, other)[1]

    def __and__(self, other: Any) -> Any:
        return _arithmetic(self, other, None, "and_")

    def __rand__(self, other: Any) -> Any:
        return _arithmetic(other, self, None, "and_")

    def __or__(self, other: Any) -> Any:
        return _arithmetic(self, other, None, "or_")

    def __ror__(self, other: Any) -> Any:
        return _arithmetic(other, self, None, "or_")

    def __xor__(self, other: Any) -> Any:
        return _arithmetic(self, other, None, "xor")

    def __rxor__(self, other: Any) -> Any:
        return _arithmetic(other, self, None, "xor")

    def __lshift__(self, other: Any) -> Any:
        return _arithmetic(self, other, None, "shl")

    def __rshift__(self, other: Any) -> Any:
        """Arithmetic shift; `shift_right_logical` shifts in zeros."""
        return _arithmetic(self, other, None, "ashr")

    def __neg__(self) -> Value:
        build = context.emitter().builder
        if self.kind.is_float:
            return Value(build.fneg(self.ir), self.kind)
        return Value(build.neg(self.ir), self.kind)

    def __invert__(self) -> Value:
        return Value(context.emitter().builder.not_(self.ir), self.kind)

    def __lt__(self, other: Any) -> Any:
        return _compare(self, other, "<")

    def __le__(self, other: Any) -> Any:
        return _compare(self, other, "<=")

    def __gt__(self, other: Any) -> Any:
        return _compare(self, other, ">")

    def __ge__(self, other: Any) -> Any:
        return _compare(self, other, ">=")

    def __eq__(self, other: Any) -> Any:
        return _compare(self, other, "==")

    def __ne__(self, other: Any) -> Any:
        return _compare(self, other, "!=")


class Lockstep:
    """Values that go through the same operations side by side.

    An operation on it emits one instruction per member, back to back; operands that are not `Lockstep` are
    shared.
    """

    __slots__ = ("members",)
    __hash__ = None  # type: ignore[assignment]
    __array_ufunc__ = None

    def __init__(self, members: list[Value]) -> None:
        self.members = members

    def __repr__(self) -> str:
        return f"Lockstep({self.members})"


def in_lockstep(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """`function` of `args`, member by member where an argument is a `Lockstep`."""
    count = next((len(arg.members) for arg in args if isinstance(arg, Lockstep)), None)
    if count is None:
        return function(*args)
    results = [function(*(arg.members[i] if isinstance(arg, Lockstep) else arg for arg in args)) for i in range(count)]
    return results if results[0] is None else Lockstep(results)


def _lockstep_operator(name: str) -> Callable[..., Any]:
    method = getattr(Value, name)

    def apply(*args: Any) -> Any:
        return in_lockstep(method, args)

    apply.__name__ = name
    return apply


for _stem in ["add", "sub", "mul", "truediv", "and", "or", "xor"]:
    setattr(Lockstep, f"__{_stem}__", _lockstep_operator(f"__{_stem}__"))
    setattr(Lockstep, f"__r{_stem}__", _lockstep_operator(f"__r{_stem}__"))
for _stem in ["lshift", "rshift", "neg", "invert", "lt", "le", "gt", "ge", "eq", "ne"]:
    setattr(Lockstep, f"__{_stem}__", _lockstep_operator(f"__{_stem}__"))


# -- coercion ------------------------------------------------------------------------------------------------


def is_number(value: Any) -> bool:
    """Whether `value` is a Python or NumPy number."""
    return isinstance(value, int | float | np.generic)


def is_float(x: Any) -> bool:
    """Whether `x` (a traced value, a `Lockstep` or a number) is a floating-point value; known while tracing."""
    x = x.members[0] if isinstance(x, Lockstep) else x
    return x.kind.is_float if isinstance(x, Value) else isinstance(x, float | np.floating)


def is_mask(x: Any) -> bool:
    """Whether `x` (a traced value, a `Lockstep` or a number) is a mask or a truth value; known while tracing."""
    x = x.members[0] if isinstance(x, Lockstep) else x
    return x.kind.element == "b1" if isinstance(x, Value) else isinstance(x, bool | np.bool_)


def as_kind(value: Value | Number, kind: Kind) -> Value:
    """`value` as `kind`: numbers become constants, scalars are converted and broadcast.

    Raises:
        TypeError: a vector of another kind; vectors are never converted implicitly.
    """
    if not isinstance(value, Value):
        if not is_number(value):
            raise TypeError(f"expected a number or a traced value, got {type(value).__name__}")
        if not kind.is_float and int(value) != value:
            raise TypeError(f"{value!r} is not an integer, but {kind} is needed")
        return Value(constant(kind, float(value) if kind.is_float else int(value)), kind)
    if value.kind == kind:
        return value
    if value.kind.is_vector:
        raise TypeError(f"{value.kind} where {kind} is needed: convert it explicitly (to_float, as_int, ...)")
    scalar = _convert_scalar(value, kind.element)
    return Value(context.emitter().splat(scalar, kind.lanes), kind) if kind.is_vector else Value(scalar)


def _convert_scalar(value: Value, element: str) -> ir.Value:
    if value.kind.element == element:
        return value.ir
    goal = ELEMENTS[element]
    source = value.ir
    if isinstance(source, ir.Constant) and isinstance(source.constant, int | float):
        return constant(Kind(element), source.constant)
    build = context.emitter().builder
    if value.kind.is_float and element[0] == "f":
        narrower = int(element[1:]) < int(value.kind.element[1:])
        return build.fptrunc(source, goal) if narrower else build.fpext(source, goal)
    if value.kind.is_float:
        raise TypeError(f"a {value.kind.element} scalar where an integer is needed")
    unsigned = value.kind.element == "b1"
    if element[0] == "f":
        return build.uitofp(source, goal) if unsigned else build.sitofp(source, goal)
    if goal.width < source.type.width:
        return build.trunc(source, goal)
    return build.zext(source, goal) if unsigned else build.sext(source, goal)


def common(x: Value | Number, y: Value | Number) -> tuple[Value, Value]:
    """Both as one kind: a vector's kind wins; among scalars float over integer, then the wider."""
    kind = common_kind(x, y)
    return as_kind(x, kind), as_kind(y, kind)


def common_kind(*values: Value | Number) -> Kind:
    """The kind that operands of one operation share."""
    kinds = [value.kind for value in values if isinstance(value, Value)]
    if not kinds:
        raise TypeError("no operand is a traced value")
    vectors = [kind for kind in kinds if kind.is_vector]
    if vectors:
        return vectors[0]
    if any(kind.is_float for kind in kinds):
        return Kind("f64" if any(kind.element == "f64" for kind in kinds) else "f32")
    best = max(kinds, key=lambda kind: ELEMENTS[kind.element].width)
    floats = [value for value in values if isinstance(value, float | np.floating)]
    return Kind("f32") if floats else best


def as_f32(value: Value | Number, like: Kind | None = None) -> Value:
    """`value` as float32: vectors stay, other scalars and numbers are converted (to the lanes of `like`)."""
    if isinstance(value, Value) and value.kind.is_vector:
        return as_kind(value, value.kind.of("f32"))
    return as_kind(value, like.of("f32") if like else Kind("f32"))


# -- operators -----------------------------------------------------------------------------------------------


#: What integer instructions mean on masks: sums and products are those of truth values.
_ON_MASKS = {"add": "or_", "mul": "and_", "and_": "and_", "or_": "or_", "xor": "xor"}


def _arithmetic(x: Any, y: Any, on_floats: str | None, on_integers: str | None) -> Any:
    if isinstance(x, Lockstep) or isinstance(y, Lockstep):
        return NotImplemented
    x, y = common(x, y)
    method = on_floats if x.kind.is_float else on_integers
    if x.kind.element == "b1":
        method = _ON_MASKS.get(method or "")
    if method is None:
        raise TypeError(f"operator {(on_integers or on_floats or '').rstrip('_')!r} is not defined on {x.kind}")
    return Value(getattr(context.emitter().builder, method)(x.ir, y.ir), x.kind)


def _compare(x: Any, y: Any, operator: str) -> Any:
    if isinstance(y, Lockstep):
        return NotImplemented
    x, y = common(x, y)
    build = context.emitter().builder
    if x.kind.element == "b1":
        result = build.icmp_unsigned(operator, x.ir, y.ir)  # true is greater than false
    elif not x.kind.is_float:
        result = build.icmp_signed(operator, x.ir, y.ir)
    elif operator == "!=":
        result = build.fcmp_unordered(operator, x.ir, y.ir)
    else:
        result = build.fcmp_ordered(operator, x.ir, y.ir)
    return Value(result, x.kind.of("b1"))


def _floor_divide(x: Value, y: Any) -> tuple[Value, Value]:
    """Quotient and remainder of scalar integers, rounded down as in Python."""
    x, y = common(x, y)
    if x.kind.is_float or x.kind.is_vector:
        raise TypeError(f"// and % are defined on scalar integers, not on {x.kind}")
    build = context.emitter().builder
    if isinstance(y.ir, ir.Constant) and isinstance(y.ir.constant, int) and y.ir.constant > 0:
        divisor = y.ir.constant
        if divisor & (divisor - 1) == 0:
            shift = constant(x.kind, divisor.bit_length() - 1)
            return Value(build.ashr(x.ir, shift)), Value(build.and_(x.ir, constant(x.kind, divisor - 1)))
    quotient, remainder = build.sdiv(x.ir, y.ir), build.srem(x.ir, y.ir)
    zero = constant(x.kind, 0)
    inexact = build.icmp_signed("!=", remainder, zero)
    opposite = build.icmp_signed("<", build.xor(x.ir, y.ir), zero)
    adjust = build.and_(inexact, opposite)
    down = build.sub(quotient, build.zext(adjust, x.kind.ir))
    return Value(down), Value(build.add(remainder, build.select(adjust, y.ir, zero)))


def i64(value: Value | int) -> Value:
    """`value` as a scalar i64."""
    return as_kind(value, Kind("i64"))
