"""Words: functions of the vocabulary that work both inside Numba bodies and on tracer values.

A word is written once, as a Python function over tracer values. Called on those it emits IR. Named in a Numba
body it is typed by a dry run of that same function, and lowered by running it on the body's values.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.errors import TypingError
from numba.extending import lower_builtin, models, register_model, type_callable

from tileops.jit.lang import context
from tileops.jit.lang.emitter import Emitter, Kind
from tileops.jit.lang.values import Lockstep, Value, in_lockstep


class VecType(types.Type):
    """Numba type of a vector value: ``vec<16 x f32>``, and masks ``vec<16 x b1>``."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        super().__init__(name=f"vec{kind}")


@register_model(VecType)
class _VecModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vec: VecType) -> None:
        super().__init__(manager, vec, vec.kind.ir)


# -- Numba types and kinds ----------------------------------------------------------------------------------

_SCALARS: dict[types.Type, str] = {
    types.int32: "i32",
    types.int64: "i64",
    types.uint64: "i64",
    types.float32: "f32",
    types.float64: "f64",
    types.boolean: "b1",
}
_NUMBA = {element: scalar for scalar, element in reversed(_SCALARS.items())}


@functools.cache
def numba_type(kind: Kind) -> types.Type:
    """The Numba type of values of `kind`."""
    return VecType(kind) if kind.is_vector else _NUMBA[kind.element]


def _items(type_: Any) -> list[Any]:
    """The types of the items of a tuple type."""
    return list(type_)


def _signed(type_: Any) -> bool:
    return bool(type_.signed)


def _kinds(type_: Any) -> Any:
    """The kind of `type_`, a tuple of them for a tuple, None where the vocabulary has no such type."""
    type_ = types.unliteral(type_)
    if isinstance(type_, VecType):
        return type_.kind
    if isinstance(type_, types.BaseTuple):
        items = tuple(_kinds(item) for item in _items(type_))
        return None if None in items else items
    if type_ in _SCALARS:
        return Kind(_SCALARS[type_])
    return Kind("i64") if isinstance(type_, types.Integer) else None


def _wrap(type_: Any, value: ir.Value, builder: ir.IRBuilder) -> Any:
    """The tracer value (or tuple of them) of a Numba value."""
    type_ = types.unliteral(type_)
    if isinstance(type_, types.BaseTuple):
        return tuple(_wrap(item, builder.extract_value(value, i), builder) for i, item in enumerate(_items(type_)))
    if isinstance(type_, types.Integer) and value.type.width not in (32, 64):
        value = builder.sext(value, ir.IntType(64)) if _signed(type_) else builder.zext(value, ir.IntType(64))
    return Value(value)


def _result_type(result: Any) -> types.Type:
    if result is None:
        return types.void
    if isinstance(result, tuple | list):
        return types.Tuple([_result_type(item) for item in result])
    return numba_type(result.kind)


def _dry_run(function: Callable[..., Any], kinds: tuple[Any, ...]) -> types.Type:
    """The Numba type of `function`'s result for arguments of these kinds."""
    flat: list[Kind] = []

    def collect(kind: Any) -> None:
        if isinstance(kind, Kind):
            flat.append(kind)
        else:
            for item in kind:
                collect(item)

    collect(kinds)
    scratch = ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), [kind.ir for kind in flat]), "dry_run")
    values = iter([Value(arg, kind) for arg, kind in zip(scratch.args, flat, strict=True)])

    def rebuild(kind: Any) -> Any:
        return next(values) if isinstance(kind, Kind) else tuple(rebuild(item) for item in kind)

    args = rebuild(kinds)
    builder = ir.IRBuilder(scratch.append_basic_block())
    with context.emitting(Emitter(builder, context.target())):
        return _result_type(function(*args))


def _pack(result: Any, type_: Any, builder: ir.IRBuilder, numba_context: Any) -> ir.Value:
    if result is None:
        return numba_context.get_dummy_value()
    if isinstance(result, tuple | list):
        items = [
            _pack(item, item_type, builder, numba_context)
            for item, item_type in zip(result, _items(type_), strict=True)
        ]
        return numba_context.make_tuple(builder, type_, items)
    return result.ir


class Word:
    """A function of the vocabulary.

    Args:
        function: emits the word on tracer values and returns a value, a tuple of values or None.
        types: Numba types of the parameters, where they are fixed (arguments are then cast to them).
        returns: Numba type of the result, where it is fixed; otherwise a dry run finds it.
        composite: it only combines other words, so that `Lockstep` operands may pass through to those.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        parameters: Sequence[types.Type] | None = None,
        returns: types.Type | None = None,
        composite: bool = False,
    ) -> None:
        self.composite = composite
        self.function = function
        self.parameters = tuple(parameters) if parameters is not None else None
        self.returns = returns
        self._typed: dict[Any, types.Type] = {}
        self.__name__: str = function.__name__
        self.__doc__ = function.__doc__
        _register(self)

    def __call__(self, *args: Any) -> Any:
        # A device with better instructions for this word has a form of its own.
        function = context.emitter().forms.get(self.__name__, self.function)
        return function(*args) if self.composite else in_lockstep(function, args)

    def __repr__(self) -> str:
        return f"<word {self.__name__}>"

    def signature(self, args: Sequence[types.Type]) -> Any:
        """Numba's signature for arguments of these types, or None if they do not fit."""
        if self.parameters is not None:
            if len(args) != len(self.parameters):
                return None
            return (self.returns or types.void)(*self.parameters)
        kinds = tuple(_kinds(arg) for arg in args)
        if None in kinds:
            return None
        key = (context.target(), kinds)
        if key not in self._typed:
            try:
                self._typed[key] = self.returns or _dry_run(self.function, kinds)
            except TypeError as error:
                raise TypingError(f"{self.__name__}: {error}") from error
        return self._typed[key](*(types.unliteral(arg) for arg in args))


# Numba folds the arguments of a call into the parameters of its typing function: plain positional ones, up to
# 64.
_PARAMETERS = inspect.Signature(
    [inspect.Parameter(f"a{i}", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None) for i in range(64)]
)


def _typing_function(signature_of: Callable[[tuple[types.Type, ...]], Any]) -> Callable[..., Any]:
    def typer(*args: types.Type) -> Any:
        return signature_of(args)

    typer.pysig = _PARAMETERS  # type: ignore[attr-defined]
    return typer


def _register(word: Word) -> None:
    @type_callable(word)
    def _typer(_context: Any) -> Callable[..., Any]:
        return _typing_function(word.signature)

    @lower_builtin(word, types.VarArg(types.Any))
    def _lower(numba_context: Any, builder: ir.IRBuilder, signature: Any, args: Sequence[ir.Value]) -> ir.Value:
        values = [_wrap(type_, arg, builder) for type_, arg in zip(signature.args, args, strict=True)]
        with context.emitting(Emitter(builder, context.target())):
            result = word.function(*values)
        return _pack(result, signature.return_type, builder, numba_context)


def word(function: Callable[..., Any]) -> Word:
    """Decorator: `function`, written over tracer values, becomes a word of the vocabulary."""
    return Word(function)


def composite(function: Callable[..., Any]) -> Word:
    """Decorator: a word that only combines other words, which keep `Lockstep` operands side by side."""
    return Word(function, composite=True)


# -- operators on vectors in Numba bodies -------------------------------------------------------------------

_OPERATORS: tuple[Callable[..., Any], ...] = (
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.lshift, operator.rshift),
    *(operator.and_, operator.or_, operator.xor),
    *(operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne),
)
_INPLACE = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
    operator.iand: operator.and_,
    operator.ior: operator.or_,
    operator.ixor: operator.xor,
}


def _register_operator(function: Callable[..., Any], meaning: Callable[..., Any], arity: int) -> None:
    kinds: dict[Any, types.Type] = {}

    @type_callable(function)
    def _typer(_context: Any) -> Callable[..., Any]:
        def signature_of(args: tuple[types.Type, ...]) -> Any:
            if len(args) != arity or not any(isinstance(arg, VecType) for arg in args):
                return None
            key = tuple(_kinds(arg) for arg in args)
            if None in key:
                return None
            if key not in kinds:
                try:
                    kinds[key] = _dry_run(meaning, key)
                except TypeError as error:
                    raise TypingError(str(error)) from error
            return kinds[key](*(types.unliteral(arg) for arg in args))

        return _typing_function(signature_of)

    def _lower(_context: Any, builder: ir.IRBuilder, signature: Any, args: Sequence[ir.Value]) -> ir.Value:
        values = [_wrap(type_, arg, builder) for type_, arg in zip(signature.args, args, strict=True)]
        with context.emitting(Emitter(builder, context.target())):
            return meaning(*values).ir

    if arity == 1:
        lower_builtin(function, VecType)(_lower)
    else:
        for parameters in ((VecType, VecType), (VecType, types.Any), (types.Any, VecType)):
            lower_builtin(function, *parameters)(_lower)


for _operator in _OPERATORS:
    _register_operator(_operator, _operator, 2)
for _operator, _meaning in _INPLACE.items():
    _register_operator(_operator, _meaning, 2)
_register_operator(operator.neg, operator.neg, 1)
_register_operator(operator.invert, operator.invert, 1)

__all__ = ["Lockstep", "VecType", "Word", "composite", "numba_type", "word"]
