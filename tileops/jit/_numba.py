"""One Python function to object code; the only module that uses private names of Numba's compiler.

A private compiler instance per CPU target, instead of Numba's global one, gives three things: our CPU name
and feature set, object code without a detour through Numba's own execution engine, and a start-up ten times
shorter, because only the parts of the language that kernels use are registered. Where a private name is
missing, the public `numba.cfunc` gives the LLVM text of the function, from which llvmlite makes the object.

Numba's file cache is never used.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import llvmlite.binding as llvm
import numba
from numba import types

from tileops.jit.cpu.elf import undefined_symbols
from tileops.jit.cpu.target import CpuTarget, cpu_target, target_machine
from tileops.jit.cpu.wrapper import BODY
from tileops.jit.lang import context as lang_context
from tileops.jit.lang.words import VecType

log = logging.getLogger(__name__)

SUPPORTED = ((0, 68), (0, 69))
"""Half-open range of Numba versions whose private names are known to fit."""

# Types whose instances mean the same in every kernel.
_REMEMBERED = frozenset({types.Integer, types.Float, types.Boolean, VecType})
_ARGUMENTS = {"ptr": types.int64, "i64": types.int64, "f32": types.float32, "f64": types.float64}


@dataclass(frozen=True)
class CompiledFunction:
    """Object code of one function.

    Attributes:
        object: ELF bytes, position independent; the function in it is called `wrapper.BODY`.
        convention: ``"numba"``: ``i32 f(ptr result, ptr error, args...)``; ``"c"``: ``void f(args...)``.
        undefined: symbols that the loader must supply.
    """

    object: bytes
    convention: Literal["numba", "c"]
    undefined: tuple[str, ...]


def compile_function(function: Callable[..., Any], args: Sequence[str], target: CpuTarget) -> CompiledFunction:
    """Compiles `function`, whose parameters have the kinds `args` and which returns nothing.

    Args:
        function: plain Python over numbers and `tileops.jit.lang`.
        args: ``"ptr"``, ``"i64"``, ``"f32"`` or ``"f64"`` for each parameter.
        target: the CPU to generate code for.

    Raises:
        numba.core.errors.NumbaError: the function uses something that cannot be compiled.
    """
    signature = tuple(_ARGUMENTS[kind] for kind in args)
    with lang_context.compiling_for(target):
        if private_names_fit():
            return _compile_privately(function, signature, target)
        return _compile_publicly(function, signature, target)


# -- private route -------------------------------------------------------------------------------------------


@functools.cache
def private_names_fit() -> bool:
    """Whether Numba is of a known version and a trivial function compiles by the private route."""
    version = tuple(int(part) for part in re.findall(r"\d+", numba.__version__)[:2])
    if not SUPPORTED[0] <= version < SUPPORTED[1]:
        log.warning("Numba %s is not one of the known versions; using its public interface", numba.__version__)
        return False
    try:
        from numba.core.compiler_lock import global_compiler_lock

        with global_compiler_lock:
            probe = _compiler(cpu_target("generic")).compile(lambda x: None, (types.int64,))
    except (ImportError, AttributeError, TypeError) as error:
        log.warning("Numba %s lacks %s; using its public interface", numba.__version__, error)
        return False
    if BODY.encode() not in probe.object or probe.undefined:
        log.warning("Numba %s emits an unexpected object; using its public interface", numba.__version__)
        return False
    return True


@functools.cache
def _private_names() -> Any:
    """The classes that make a compiler of our own, built on first use.

    Raises:
        ImportError: a module is missing.
        AttributeError: a name is missing.
    """
    from numba.core import codegen, compiler, cpu, typing

    for owner, name in (
        (codegen.AOTCPUCodegen, "_customize_tm_options"),
        (codegen.AOTCPUCodegen, "_customize_tm_features"),
        (codegen.AOTCodeLibrary, "emit_native_object"),
        (cpu.CPUContext, "load_additional_registries"),
        (compiler, "compile_extra"),
        (compiler, "Flags"),
        (typing, "Context"),
    ):
        getattr(owner, name)

    class Library(codegen.AOTCodeLibrary):
        """Code that one run of LLVM's standard pipeline optimises.

        Numba's three runs serve reference counting, which kernels have none of. The vectorisers are off: kernels
        state their vectors.
        """

        def _optimize_functions(self, ll_module: Any) -> None:
            ll_module.data_layout = self._codegen._data_layout

        def _optimize_final_module(self) -> None:
            machine = self._codegen._tm
            options = llvm.create_pipeline_tuning_options(speed_level=3)
            options.loop_vectorization = options.slp_vectorization = False
            builder = llvm.create_pass_builder(machine, options)
            builder.getModulePassManager().run(self._final_module, builder)

    class Codegen(codegen.AOTCPUCodegen):
        """Generates position-independent objects for a chosen CPU."""

        _library_class = Library

        def __init__(self, target: CpuTarget) -> None:
            self._target_cpu = target
            super().__init__("tileops", cpu_name=target.cpu)

        def _customize_tm_features(self) -> str:
            return self._target_cpu.features

    class TypingContext(typing.Context):
        """Numba's typing context, which remembers how calls on numbers and vectors resolve.

        Kernels repeat a few operators on a few types thousands of times, and Numba tries every template each time.
        """

        def __init__(self) -> None:
            super().__init__()
            self._resolved: dict[Any, Any] = {}

        def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
            if kws or not all(type(arg) in _REMEMBERED for arg in args):
                return super().resolve_function_type(func, args, kws)
            key = (func, args)
            signature = self._resolved.get(key)
            if signature is None:
                signature = super().resolve_function_type(func, args, kws)
                if signature is not None:
                    self._resolved[key] = signature
            return signature

    class TargetContext(cpu.CPUContext):
        """Numba's CPU context, with the small part of the language that kernels use."""

        def __init__(self, typing_context: Any, target: CpuTarget) -> None:
            self._compile_target = target
            super().__init__(typing_context)

        def init(self) -> None:
            self.is32bit = False
            self._internal_codegen: Any = Codegen(self._compile_target)

        def load_additional_registries(self) -> None:
            # Importing these registers the implementations of numbers, ranges, tuples and `math`.
            from numba.core import optional  # noqa: F401
            from numba.cpython import builtins, iterators, mathimpl, numbers, rangeobj, tupleobj  # noqa: F401

            self.install_registry(mathimpl.registry)

        def get_function(self, fn: Any, sig: Any, _firstcall: bool = True) -> Any:
            try:
                return super().get_function(fn, sig, _firstcall)
            except NotImplementedError:
                # Functions that are themselves Python (`int`, anything under `njit`) were compiled by Numba's
                # global context, and are linked from there.
                from numba.core.registry import cpu_target

                key = fn.get_impl_key(sig) if isinstance(fn, types.Callable) else fn
                elsewhere = cpu_target.target_context._defns
                if key not in elsewhere:
                    raise
                self._defns[key] = elsewhere[key]
                return super().get_function(fn, sig, False)

    class Compiler:
        def __init__(self, target: CpuTarget) -> None:
            self.typing = TypingContext()
            self.target = TargetContext(self.typing, target)
            self.flags = compiler.Flags()
            for name, value in (
                ("no_cpython_wrapper", True),
                ("no_cfunc_wrapper", True),
                ("no_compile", True),  # code is emitted, not executed
                ("nrt", False),
                ("error_model", "numpy"),
                ("boundscheck", False),
            ):
                setattr(self.flags, name, value)

        def compile(self, function: Callable[..., Any], signature: tuple[Any, ...]) -> CompiledFunction:
            self.target.refresh()
            result = compiler.compile_extra(self.typing, self.target, function, signature, types.none, self.flags, {})
            library = result.library
            library.finalize()
            library.get_function(result.fndesc.llvm_func_name).name = BODY
            code = library.emit_native_object()
            return CompiledFunction(code, "numba", undefined_symbols(code))

    return Compiler


@functools.cache
def _compiler(target: CpuTarget) -> Any:
    return _private_names()(target)


def _compile_privately(function: Callable[..., Any], signature: tuple[Any, ...], target: CpuTarget) -> CompiledFunction:
    from numba.core.compiler_lock import global_compiler_lock

    with global_compiler_lock:
        return _compiler(target).compile(function, signature)


# -- public route --------------------------------------------------------------------------------------------

_public_target: CpuTarget | None = None


def _compile_publicly(function: Callable[..., Any], signature: tuple[Any, ...], target: CpuTarget) -> CompiledFunction:
    """Through `numba.cfunc`, whose typing is process-wide: one CPU target per process."""
    global _public_target
    if _public_target is None:
        _public_target = target
    if _public_target != target:
        raise NotImplementedError(
            f"kernels were already compiled for {_public_target} in this process; with Numba "
            f"{numba.__version__} a second target ({target}) needs a process of its own"
        )
    compiled = numba.cfunc(types.void(*signature), error_model="numpy")(function)
    module = llvm.parse_assembly(compiled.inspect_llvm())
    module.get_function(compiled.native_name).name = BODY
    machine = target_machine(target)
    code = machine.emit_object(module)
    return CompiledFunction(code, "c", undefined_symbols(code))
