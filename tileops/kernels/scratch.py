"""Memory for what a kernel hands from one of its launches to the next."""

from __future__ import annotations

import torch


def floats(count: int, like: torch.Tensor) -> torch.Tensor:
    """`count` uninitialised float32 on the device of `like`. On CUDA from torch's allocator, which hands memory out in
    the order of the current stream, so it may be dropped as soon as the last launch is queued.
    """
    return torch.empty(count, dtype=torch.float32, device=like.device)
