"""The one place that touches numba-cuda, so that another compiler can take its place.

Only documented names are used: `numba.cuda.compile`, `numba.cuda.types` and `numba.cuda.extending.intrinsic`,
all of which work without a driver and without a GPU. What has to hold beyond their documentation (an
intrinsic is inlined, a kernel gets a plain parameter per argument, launch bounds reach the PTX) is checked
once per process on a kernel of three lines.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

from tileops.errors import KernelCompileError

#: Versions of numba-cuda that this module is written for: from the first, below the second.
SUPPORTED = ((0, 30), (0, 31))

_REMEDY = "install the CUDA compilers with: pip install 'tileops[cuda13]'"
_SIGNATURE = {"ptr": "int64", "i64": "int64", "f32": "float32", "f64": "float64"}


def version() -> str | None:
    """Version of the installed numba-cuda, or None."""
    try:
        return metadata.version("numba-cuda")
    except metadata.PackageNotFoundError:
        return None


def unavailable() -> str | None:
    """Why CUDA kernels cannot be compiled here, remedy included; None if they can. Imports nothing."""
    found = version()
    if found is None:
        return f"numba-cuda is not installed; {_REMEDY}"
    release = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
    if not SUPPORTED[0] <= release < SUPPORTED[1]:
        low, high = (".".join(map(str, bound)) for bound in SUPPORTED)
        return f"numba-cuda {found} is installed, {low} or newer below {high} is needed; {_REMEDY}"
    return None


def compile_ptx(
    function: Callable[..., Any], args: Sequence[str], capability: tuple[int | str, ...], block: int
) -> str:
    """PTX of a kernel.

    Args:
        function: ``kernel(a, b, ..., *rest)`` over the vocabulary of `tileops.jit.lang.cuda`; `rest` is a
            tuple of the arguments that remain.
        args: kinds of the arguments: "ptr", "i64", "f32" or "f64".
        capability: compute capability, ``(8, 0)`` or ``(9, 0, "a")``.
        block: threads per block, the launch bound.

    Raises:
        KernelCompileError: the compilers are not installed or not as expected.
    """
    _check()
    return _compile(function, args, capability, block)


def _compile(function: Callable[..., Any], args: Sequence[str], capability: tuple[int | str, ...], block: int) -> str:
    from numba import cuda

    types, _ = intrinsic_tools()
    kinds = [getattr(types, _SIGNATURE[kind]) for kind in args]
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[-1].kind is inspect.Parameter.VAR_POSITIONAL:
        # numba-cuda has no variadic kernels, but it flattens a tuple into plain parameters.
        fixed = len(parameters) - 1
        kinds = [*kinds[:fixed], types.Tuple(kinds[fixed:])]
    signature = types.void(*kinds)
    ptx, _ = cuda.compile(function, signature, device=False, abi="numba", cc=capability, launch_bounds=block)
    return str(ptx)


@functools.cache
def intrinsic_tools() -> tuple[Any, Any]:
    """``(numba.cuda.types, numba.cuda.extending.intrinsic)``.

    Raises:
        KernelCompileError: numba-cuda is not installed, or in a version that this module does not know.
    """
    reason = unavailable()
    if reason is not None:
        raise KernelCompileError(f"CUDA kernels cannot be compiled: {reason}")
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    return types, intrinsic


@functools.cache
def _check() -> None:
    """Compiles a probe and looks at what this module relies on.

    Raises:
        KernelCompileError: something is missing or not as expected.
    """
    types, intrinsic = intrinsic_tools()

    @intrinsic
    def lane(typing_context: Any) -> Any:
        from llvmlite import ir

        def emit(_context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
            asm = ir.InlineAsm(ir.FunctionType(ir.IntType(32), []), "mov.u32 $0, %laneid;", "=r")
            return builder.zext(builder.call(asm, []), ir.IntType(64))

        return types.int64(), emit

    def probe(n: int, _scale: float) -> None:
        while lane() < n:
            n -= 1

    try:
        ptx = _compile(probe, ("i64", "f32"), (8, 0), 64)
    except Exception as error:  # whatever numba-cuda, NVVM or a missing library raises
        raise KernelCompileError(
            f"numba-cuda {version()} failed on a probe kernel: {type(error).__name__}: {error}; {_REMEDY}"
        ) from error
    params = re.findall(r"\.param \.(\w+)", ptx)
    if params != ["u64", "f32"] or "%laneid" not in ptx or ".maxntid 64" not in ptx:
        raise KernelCompileError(
            f"numba-cuda {version()} gives unexpected PTX for a probe kernel (parameters {params}); {_REMEDY}"
        )
