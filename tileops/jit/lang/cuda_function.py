"""How IR becomes a function that the body of a CUDA kernel may call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from tileops.jit import _numba_cuda
from tileops.jit.lang import context
from tileops.jit.lang.cuda_emitter import CudaEmitter
from tileops.jit.lang.values import Value

types, _intrinsic = _numba_cuda.intrinsic_tools()


def device_function(emit: Callable[..., Any], parameters: Sequence[Any], result: Any) -> Any:
    """A function for CUDA bodies out of one that emits IR.

    Args:
        emit: ``emit(emitter, *values)`` of LLVM values; returns a value, a list of values for a tuple, or
            None.
        parameters: Numba types of the parameters; arguments are converted to them.
        result: Numba type of the result.
    """

    def typed(*_args: Any) -> Any:
        def generate(numba_context: Any, builder: ir.IRBuilder, signature: Any, args: Sequence[ir.Value]) -> Any:
            emitter = CudaEmitter(builder)
            with context.emitting(emitter):
                value = emit(emitter, *args)
            if value is None:
                return numba_context.get_dummy_value()
            if isinstance(value, list):
                return numba_context.make_tuple(builder, signature.return_type, value)
            return value

        return result(*parameters), generate

    names = [f"a{i}" for i in range(len(parameters))]
    typed.__name__ = getattr(emit, "__name__", "device_function").strip("_")
    typed.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("typing_context", *names)]
    )
    return _intrinsic(typed)


def traced(function: Callable[..., Any], arity: int) -> Any:
    """`function`, written over the vocabulary, as a device function of `arity` float32 scalars."""

    def emit(_emitter: CudaEmitter, *args: ir.Value) -> Any:
        result = function(*(Value(arg) for arg in args))
        return [item.ir for item in result] if isinstance(result, tuple) else result.ir

    emit.__name__ = getattr(function, "__name__", "traced")
    return device_function(emit, [types.float32] * arity, types.float32)


def items(emitter: CudaEmitter, packed: ir.Value, count: int) -> list[ir.Value]:
    """The items of a tuple argument."""
    return [emitter.builder.extract_value(packed, i) for i in range(count)]


__all__ = ["device_function", "items", "traced", "types"]
