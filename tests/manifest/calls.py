"""Calls of generated checks. Apart from `helpers`, which does without torch."""

from __future__ import annotations

from typing import Any

import torch

from tileops.manifest import load_entry
from tileops.ops.signature_codegen import signature_for


def empty(*shape: int, dtype: torch.dtype = torch.float32, device: str = "meta") -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


def check(name: str, *tensors: torch.Tensor | None, **params: Any) -> Any:
    signature = signature_for(load_entry(name))
    return signature.check_call(signature.construct(**params), tensors)
