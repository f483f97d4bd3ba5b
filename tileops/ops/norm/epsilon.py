"""What ``eps=None`` stands for."""

from __future__ import annotations

import torch

#: The mean square is taken in float32 for every dtype, and None means its machine epsilon, as in torch.
_DEFAULT = torch.finfo(torch.float32).eps


def resolved_eps(eps: float | None) -> float:
    """`eps` as kernels take it."""
    return _DEFAULT if eps is None else float(eps)
