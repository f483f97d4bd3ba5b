"""What calls of one kind have in common: which tensors are present, their dtypes, layouts and devices.

Programs with growing sequences or ragged batches make calls of ever new sizes and of few kinds. All that does not
depend on sizes is found out once for each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from tileops.kernels.base import DeviceFacts
from tileops.ops.effects import Effects
from tileops.ops.facts import device_facts

#: Kinds that an op remembers; a program has a few.
LIMIT = 256


class CallKind:
    """One kind of calls of one op.

    Attributes:
        check: ``check(*tensors)`` holds a call to the manifest entry, see `signature_codegen`.
        effects: what such calls write, None for an op that writes nothing.
        device: the call device.
        facts: its facts, None for meta tensors.
        dtype: dtype of the first tensor, None without any.
        on_cpu: the call device is the CPU.
    """

    __slots__ = ("check", "device", "dtype", "effects", "facts", "on_cpu")

    def __init__(
        self,
        check: Callable[..., Any],
        effects: Effects | None,
        device: torch.device,
        dtype: torch.dtype | None,
    ) -> None:
        self.check = check
        self.effects = effects
        self.device = device
        self.dtype = dtype
        self.facts: DeviceFacts | None = None if device.type == "meta" else device_facts(device)
        self.on_cpu = device.type == "cpu"


def kind_key(tensors: Sequence[torch.Tensor | None]) -> Hashable:
    """What tells kinds apart. A sparse or quantised tensor has a layout of its own."""
    return tuple([None if tensor is None else (tensor.dtype, tensor.layout, tensor.device) for tensor in tensors])
