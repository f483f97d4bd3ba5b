"""Small ops of the test suite's own: the runtime is tested without any kernel being compiled.

`ToyScaleFwdOp` has a required and an optional input and one kernel for the CPU; `make_op` makes further
classes, each with an entry, kernels and interface of its own.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import yaml

from tileops.kernels.base import CallSpec, Kernel, KernelInterface, TensorSpec
from tileops.manifest.entry import Entry, parse_entry
from tileops.manifest.loading import RawEntry
from tileops.ops.base import Op
from tileops.ops.facts import CallFacts

SCALE_ENTRY = """
family: toys
status: implemented
signature:
  forall: {S: Shape, T: "DType[float32 | bfloat16]"}
  params:
    factor: {type: float, default: 2.0}
    axes: {type: "tuple[int, ...]", default: []}
  inputs:
    x: {dtype: T, shape: "[*S]"}
    bias: {dtype: T, shape: "[*S]", optional: true}
  outputs:
    output: {dtype: T, shape: "[*S]"}
  shape_rules:
  - "factor > 0"
workloads:
- {S: [4], dtype_cases: [{T: float32}], label: tiny}
roofline:
  flops: "prod(S) * (2 if present(bias) else 1)"
"""

_numbers = itertools.count()


@dataclass(frozen=True)
class ScaleCall(CallSpec):
    """``output = x * factor + bias``."""

    x: TensorSpec
    bias: TensorSpec | None
    output: TensorSpec
    factor: float


class ScaleFwdInterface(KernelInterface):
    """``launch(x, bias, output)``."""

    call_spec = ScaleCall
    tensors = ("x", "bias", "output")


class ScaleKernel(Kernel, ScaleFwdInterface):
    """Computes with torch, and counts what the runtime does with it."""

    devices = frozenset({"cpu"})
    builds: ClassVar[list[Any]] = []
    binds: ClassVar[list[Any]] = []
    lock: ClassVar[Any] = threading.Lock()

    @classmethod
    def programs(cls, call: ScaleCall, config: Any) -> dict[str, Any]:
        return {}

    @classmethod
    def identity(cls, call: ScaleCall, config: Any) -> Any:
        return cls, call.x.dtype

    def __init__(self, config: Any, entries: Any) -> None:
        super().__init__(config, entries)
        with self.lock:
            type(self).builds.append(config)

    def bind(self, call: ScaleCall) -> Callable[..., None]:
        with self.lock:
            type(self).binds.append(call)

        def launch(x: torch.Tensor, bias: torch.Tensor | None, output: torch.Tensor) -> None:
            assert output.is_contiguous()
            torch.mul(x.detach(), call.factor, out=output)
            if bias is not None:
                output += bias.detach()

        return launch


def entry(name: str, text: str = SCALE_ENTRY) -> Entry:
    """A manifest entry from YAML text."""
    fields = yaml.safe_load(text)
    parsed = parse_entry(RawEntry(name, fields["family"], "toys.yaml", fields))
    assert not parsed.problems, parsed.problems
    return parsed


class ToyScaleFwdOp(Op):
    """``x * factor + bias`` on the CPU."""

    entry = entry("ToyScaleFwdOp")
    kernel_types: ClassVar = {"cpu": ScaleKernel}
    interfaces: ClassVar = {"scale": ScaleFwdInterface}

    def __init__(self, factor: float = 2.0, axes: tuple[int, ...] = (), *, target: str | None = None) -> None:
        self.factor = factor
        self.axes = axes
        super().__init__(target=target)

    def _call_spec(self, facts: CallFacts) -> ScaleCall:
        return ScaleCall(
            x=facts["x"], bias=facts["bias"], output=facts["output"], factor=self.factor, device=facts.device
        )


def fresh_kernel(**attributes: Any) -> type[ScaleKernel]:
    """A kernel class like `ScaleKernel` with its own counters."""
    return type(f"Kernel{next(_numbers)}", (ScaleKernel,), {"builds": [], "binds": [], **attributes})


def make_op(*kernels: type[Kernel], text: str = SCALE_ENTRY, **attributes: Any) -> type[ToyScaleFwdOp]:
    """An op class like `ToyScaleFwdOp` with these kernels and an operator of its own."""
    name = f"Toy{next(_numbers)}FwdOp"
    types = {f"kernel{i}": kernel for i, kernel in enumerate(kernels)}
    namespace = {"entry": entry(name, text), "kernel_types": types, **attributes}
    return type(name, (ToyScaleFwdOp,), namespace)
