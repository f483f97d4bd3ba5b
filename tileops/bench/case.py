"""The cases of an operator: its workload rows as tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tileops import settings
from tileops.manifest import load_entry
from tileops.manifest import workload as manifest_workload
from tileops.ops.dtypes import torch_parameters
from tileops.workloads import inputs, workload

#: Inputs smaller than this stay in some cache in a real model too, and are not cycled.
COLD_BYTES = 1 << 20
#: Memory that copies of one input may take, however large the caches are.
MAX_CYCLED_BYTES = 1 << 30

Inputs = tuple[torch.Tensor | None, ...]


@dataclass(frozen=True, eq=False)
class Case:
    """One call of an operator, from a row of its manifest entry.

    Attributes:
        call: the abstract call.
    """

    call: manifest_workload.Call

    @property
    def op(self) -> str:
        """Name of the operator."""
        return self.call.op

    @property
    def id(self) -> str:
        """Label of the row and its dtypes; the key of stored history."""
        return self.call.case_id

    @property
    def dtype(self) -> str:
        """Name of the first input's dtype; the first output's where there is none."""
        return next(iter((*self.call.inputs.values(), *self.call.outputs.values()))).dtype

    @property
    def params(self) -> dict[str, Any]:
        """Every construction parameter, defaults included, dtypes as torch's, tensors on the CPU."""
        return {**torch_parameters(self.call.values), **inputs.held(self.call)}

    def __str__(self) -> str:
        return f"{self.op} {self.id}"

    def inputs(self, device: str | torch.device = "cpu") -> Inputs:
        """Fresh tensors in forward order, None where the call has none; equal values at every call."""
        tensors = inputs.materialize(self.call, device)
        replace = workload(self.op).gen_inputs
        if replace is not None:
            tensors.update(replace(dict(tensors), self.params))
        return tuple(tensors.get(name) for name in self.call.forward_order)

    def input_sets(self, device: str | torch.device = "cpu", *, cold: Sequence[str] = ()) -> list[Inputs]:
        """`inputs`, and copies in which the `cold` ones lie elsewhere, enough of them to exceed the cache.

        Cycling through them reads weights from memory, as a model does that has many layers.

        Raises:
            ValueError: `cold` names something that is no input.
        """
        first = self.inputs(device)
        names = self.call.forward_order
        unknown = sorted(set(cold) - set(names))
        if unknown:
            raise ValueError(
                f"{self.op} has no input {unknown[0]!r} to keep out of the cache; it has {', '.join(names)}"
            )
        wanted = [
            index
            for index, tensor in enumerate(first)
            if tensor is not None and names[index] in cold and _nbytes(tensor) >= COLD_BYTES
        ]
        if not wanted:
            return [first]
        nbytes = sum(_nbytes(first[index]) for index in wanted)
        copies = max(2, min(math.ceil(1.25 * cache_bytes() / nbytes) + 1, MAX_CYCLED_BYTES // nbytes))
        return [
            first,
            *(
                tuple(
                    tensor.clone() if tensor is not None and index in wanted else tensor
                    for index, tensor in enumerate(first)
                )
                for _ in range(copies - 1)
            ),
        ]


def cases(op: Any) -> list[Case]:
    """Every case of an operator, given its class, an instance or its name."""
    name = op if isinstance(op, str) else op.__name__ if isinstance(op, type) else type(op).__name__
    return [Case(call) for call in manifest_workload.cases(load_entry(name))]


def cache_bytes() -> int:
    """Bytes of the last-level cache; 32 MiB where the system does not say."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((settings.parse_size(path.read_text()) for path in sizes), default=32 << 20)


def _nbytes(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.numel() * tensor.element_size()
