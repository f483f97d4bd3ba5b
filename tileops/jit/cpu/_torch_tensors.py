"""How native code makes a tensor and reads its address. The one module of `tileops.jit` that knows private names of
torch.

Torch's C shim, made for compiled models that must outlive a version of torch, allocates tensors and gives addresses;
it works on pointers to ``at::Tensor``. A Python tensor holds one right after its object header, and one exported C++
function makes a Python tensor of one. All were read in torch 2.13 and are checked at the first use: if anything is
missing or answers wrongly, or torch is outside `SUPPORTED`, small calls go through Python, which takes about half a
microsecond more.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Versions of torch, first inclusive and last exclusive, in which these names were checked.
SUPPORTED = ((2, 13), (2, 15))
#: Bytes from the start of a Python object to the pointer to its type, and of a Python tensor to its ``at::Tensor``.
TYPE_OFFSET = 8
HANDLE_OFFSET = 16
#: Bytes from the start of a bytes object to its contents: its size without the zero that follows them.
_CONTENTS = bytes.__basicsize__ - 1

#: What is used -> library and symbol.
_NAMES = {
    "empty_strided": ("libtorch_cpu.so", "aoti_torch_empty_strided"),
    # Fails for tensors without storage, as `Tensor.data_ptr` does. The shim's older function answers for those of
    # MKLDNN, whose elements may lie in any order.
    "data_ptr": ("libtorch_cpu.so", "torch_get_mutable_data_ptr"),
    "delete": ("libtorch_cpu.so", "aoti_torch_delete_tensor_object"),
    "get_num_threads": ("libtorch_cpu.so", "torch_get_num_threads"),
    "wrap": ("libtorch_python.so", "_Z16THPVariable_WrapRKN2at10TensorBaseE"),
}
_DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")

_log = logging.getLogger("tileops.jit")


@dataclass(frozen=True)
class TensorFunctions:
    """Addresses of functions and types.

    Attributes:
        empty_strided: ``int(i64 rank, i64* sizes, i64* strides, i32 dtype, i32 device, i32 index, at::Tensor** made)``.
        data_ptr: ``int(at::Tensor*, void** address)``.
        delete: ``int(at::Tensor*)``.
        get_num_threads: ``int(u32* threads)``.
        wrap: ``PyObject*(at::Tensor&)``.
        tensor: the type ``torch.Tensor``.
        parameter: the type ``torch.nn.Parameter``.
        dtypes: the shim's numbers of dtypes.
    """

    empty_strided: int
    data_ptr: int
    delete: int
    get_num_threads: int
    wrap: int
    tensor: int
    parameter: int
    dtypes: dict[Any, int]


def address_of(data: bytes) -> int:
    """The address of the contents of `data`, which a zero follows."""
    return id(data) + _CONTENTS


def functions() -> TensorFunctions | None:
    """The functions of this process; looked up and checked once. None where they cannot be used."""
    return _found()[0]


def reason() -> str | None:
    """Why there are none, or None."""
    return _found()[1] or None


@functools.cache
def _found() -> tuple[TensorFunctions | None, str]:
    try:
        found, why = _load()
    except (OSError, AttributeError) as error:
        found, why = None, str(error)
    if found is None:
        _log.info("small calls go through Python: %s", why)
    return found, why


def outside(supported: tuple[tuple[int, int], tuple[int, int]]) -> str | None:
    """Why the running torch is none of these versions, first inclusive and last exclusive; None where it is one."""
    import torch

    match = re.match(r"(\d+)\.(\d+)", torch.__version__)
    first, last = supported
    if match is not None and first <= (int(match[1]), int(match[2])) < last:
        return None
    return f"torch {torch.__version__} is outside {first} <= version < {last}"


def _load() -> tuple[TensorFunctions | None, str]:
    import torch

    other = outside(SUPPORTED)
    if other is not None:
        return None, other
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None, f"the objects of {sys.implementation.name} without a GIL are laid out in another way"
    if object.__basicsize__ != HANDLE_OFFSET or torch.Tensor.__basicsize__ < HANDLE_OFFSET + 8:
        return None, "Python objects are laid out in another way"
    folder = Path(torch.__file__).parent / "lib"
    libraries = {name: ctypes.PyDLL(str(folder / name)) for name, _ in _NAMES.values()}
    calls = {name: getattr(libraries[library], symbol) for name, (library, symbol) in _NAMES.items()}
    numbers = {
        getattr(torch, name): getattr(libraries["libtorch_cpu.so"], f"aoti_torch_dtype_{name}")() for name in _DTYPES
    }
    wrong = _self_check(calls, numbers)
    if wrong is not None:
        return None, f"torch {torch.__version__}: {wrong}"
    addresses = {name: ctypes.cast(call, ctypes.c_void_p).value or 0 for name, call in calls.items()}
    return TensorFunctions(**addresses, tensor=id(torch.Tensor), parameter=id(torch.nn.Parameter), dtypes=numbers), ""


def _self_check(calls: dict[str, Any], numbers: dict[Any, int]) -> str | None:
    """What answers wrongly, or None: a tensor of each dtype is made and compared with torch's own."""
    import torch

    calls["wrap"].restype = ctypes.py_object
    calls["wrap"].argtypes = [ctypes.c_void_p]
    sizes, strides = (ctypes.c_int64 * 2)(3, 5), (ctypes.c_int64 * 2)(5, 1)
    for dtype, number in numbers.items():
        made = ctypes.c_void_p()
        if calls["empty_strided"](ctypes.c_int64(2), sizes, strides, number, 0, 0, ctypes.byref(made)) != 0:
            return f"{_NAMES['empty_strided'][1]} makes no tensor of {dtype}"
        tensor = calls["wrap"](made)
        if calls["delete"](made) != 0:
            return f"{_NAMES['delete'][1]} fails"
        facts = (type(tensor), tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device, tensor.requires_grad)
        if facts != (torch.Tensor, dtype, (3, 5), (5, 1), torch.device("cpu"), False):
            return f"a tensor of {dtype} came out as {facts}"
    threads = ctypes.c_uint32()
    if calls["get_num_threads"](ctypes.byref(threads)) != 0 or threads.value != torch.get_num_threads():
        return f"{_NAMES['get_num_threads'][1]} gives another number"
    base = torch.arange(6.0, device="cpu")
    for tensor in (base, base[2:], torch.nn.Parameter(base, requires_grad=False)):
        address = ctypes.c_void_p()
        status = calls["data_ptr"](ctypes.c_void_p(id(tensor) + HANDLE_OFFSET), ctypes.byref(address))
        if status != 0 or address.value != tensor.data_ptr():
            return f"{_NAMES['data_ptr'][1]} gives another address"
    return None
