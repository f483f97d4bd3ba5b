"""Loading object code with llvmlite's ORC interface; Numba is not needed, nor any compiler."""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import llvmlite.binding as llvm

from tileops.errors import KernelCompileError

_lock = threading.Lock()
_numbers = itertools.count()

#: C library functions that LLVM may call on its own.
LIBC_SYMBOLS = ("memcpy", "memmove", "memset")


class Loaded:
    """Object code in memory; its addresses are valid as long as this lives.

    Attributes:
        addresses: address of each exported symbol.
    """

    def __init__(self, tracker: Any, exports: Sequence[str]) -> None:
        self._tracker = tracker
        self.addresses = {name: tracker[name] for name in exports}


@functools.cache
def _linker() -> Any:
    # JITLink keeps the sections of an object together. RuntimeDyld, which takes half a millisecond less, puts them
    # wherever there is room, and ends the process where gigabytes of weights lie between code and its constants.
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_lljit_compiler(use_jit_link=True, suppress_errors=True)


def load(objects: Iterable[bytes], exports: Sequence[str], symbols: Mapping[str, int]) -> Loaded:
    """Links `objects` into one library in memory.

    Args:
        objects: ELF objects.
        exports: symbols whose addresses are wanted.
        symbols: addresses of everything that the objects use and do not define.

    Raises:
        KernelCompileError: a symbol is missing or an object is damaged.
    """
    builder = llvm.JITLibraryBuilder()
    for code in objects:
        builder.add_object_img(code)
    for name, address in symbols.items():
        builder.import_symbol(name, address)
    for name in exports:
        builder.export_symbol(name)
    with _lock:
        try:
            tracker = builder.link(_linker(), f"kernel{next(_numbers)}")
        except RuntimeError as error:
            raise KernelCompileError(f"the loader refused the object code: {error}") from error
    return Loaded(tracker, exports)


@functools.cache
def python_symbol(name: str) -> int:
    """The address of a symbol of the C API of Python or of the C library in this process.

    Raises:
        AttributeError: there is no such symbol.
    """
    api = ctypes.pythonapi
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(api, name))
    except ValueError as error:
        raise AttributeError(f"the process has no symbol {name!r}") from error
