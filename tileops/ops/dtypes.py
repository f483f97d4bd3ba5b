"""torch dtypes and their names: the manifest and the kernels speak in names, tensors in objects."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from tileops.kernels.base import DTYPES
from tileops.manifest.adts import ADTValue, to_object
from tileops.manifest.kinds import DType

_BY_NAME: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES if hasattr(torch, name)}
_BY_DTYPE = {dtype: name for name, dtype in _BY_NAME.items()}


def name_of(dtype: torch.dtype) -> str:
    """ "bfloat16" for ``torch.bfloat16``; also for dtypes that no kernel knows."""
    name = _BY_DTYPE.get(dtype)
    return str(dtype).removeprefix("torch.") if name is None else name


def dtype_of(name: str) -> torch.dtype:
    """``torch.bfloat16`` for "bfloat16".

    Raises:
        ValueError: torch has no such dtype.
    """
    dtype = _BY_NAME.get(name) or getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is no dtype of torch {torch.__version__}; known are {', '.join(_BY_NAME)}")
    return dtype


_TENSOR_CORE_KEYS = {
    torch.float16: "tensor_core.fp16",
    torch.bfloat16: "tensor_core.bf16",
    torch.float8_e4m3fn: "tensor_core.fp8",
    torch.float8_e5m2: "tensor_core.fp8",
}


def tensor_core_key(dtype: torch.dtype | None) -> str:
    """The unit of a device profile that multiplies matrices of `dtype` exactly as the op states."""
    return "cuda_core.fp32" if dtype is None else _TENSOR_CORE_KEYS.get(dtype, "cuda_core.fp32")


def torch_parameters(values: Mapping[str, Any]) -> dict[str, Any]:
    """Construction parameters of a manifest row, which names dtypes and writes ADT values, as an op takes them."""
    return {name: _argument(value) for name, value in values.items()}


def _argument(value: Any) -> Any:
    if isinstance(value, ADTValue):
        return to_object(value)
    return dtype_of(value) if isinstance(value, str) and value in DTYPES else value


def candidate_dtypes(entry: Any, values: Mapping[str, Any]) -> Iterator[dict[str, torch.dtype]]:
    """Every assignment of dtypes to the inputs of an entry, for a caller that knows only shapes.

    Args:
        entry: the manifest entry.
        values: construction parameters by name, dtypes by name.
    """
    signature = entry.signature
    sets = {name: kind.names for name, kind in signature.indices.items() if isinstance(kind, DType)}
    rows = signature.combos or [dict(zip(sets, chosen, strict=True)) for chosen in itertools.product(*sets.values())]
    for row in rows:
        known = {**values, **row}
        yield {
            name: dtype_of(str(known.get(decl.dtype.source, decl.dtype.source)).strip("'\""))
            for name, decl in signature.inputs.items()
        }
