"""torch dtypes and their names: the manifest and the kernels speak in names, tensors in objects."""

from __future__ import annotations

import torch

from tileops.kernels.base import DTYPES

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
        raise ValueError(
            f"{name!r} is no dtype of torch {torch.__version__}; known are {', '.join(_BY_NAME)}"
        )
    return dtype
