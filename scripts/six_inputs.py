"""An operator with six tensors, for `bench_overhead`: no operator of the manifest takes as many on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import yaml

from tileops.jit import Program, direct, parallel
from tileops.jit.cpu.direct import Address
from tileops.kernels.base import CallSpec, Config, Kernel, KernelInterface, TensorSpec
from tileops.manifest.entry import Entry, parse_entry
from tileops.manifest.loading import RawEntry
from tileops.ops.base import Op
from tileops.ops.facts import CallFacts

NAMES = ("a", "b", "c", "d", "e", "f")
ENTRY = """
family: measurements
status: implemented
signature:
  forall: {S: Shape, T: "DType[float32]"}
  inputs: {INPUTS}
  outputs:
    output: {dtype: T, shape: "[*S]"}
workloads:
- {S: [64], dtype_cases: [{T: float32}], label: tiny}
roofline: {flops: "5 * prod(S)"}
""".replace("INPUTS", ", ".join(f'{name}: {{dtype: T, shape: "[*S]"}}' for name in NAMES))


def _entry() -> Entry:
    fields = yaml.safe_load(ENTRY)
    parsed = parse_entry(RawEntry("SumOfSixFwdOp", fields["family"], "six_inputs.py", fields))
    if parsed.problems:
        raise ValueError(f"SumOfSixFwdOp: {parsed.problems}")
    return parsed


@dataclass(frozen=True)
class SumOfSixCall(CallSpec):
    """``output = a + b + c + d + e + f``, all contiguous and of one shape."""

    a: TensorSpec
    b: TensorSpec
    c: TensorSpec
    d: TensorSpec
    e: TensorSpec
    f: TensorSpec
    output: TensorSpec


class SumOfSixFwdInterface(KernelInterface):
    """``launch(a, b, c, d, e, f, output)``."""

    call_spec = SumOfSixCall
    tensors = (*NAMES, "output")


def sums() -> Callable[..., None]:
    """``body(begin, end, tid, a, b, c, d, e, f, output)``: a unit is an element."""
    from tileops.jit import lang

    load, store = lang.load_scalar("f32"), lang.store_scalar("f32")

    def body(begin, end, tid, a, b, c, d, e, f, output):
        for i in range(begin, end):
            at = 4 * i
            store(output + at, load(a + at) + load(b + at) + load(c + at) + load(d + at) + load(e + at) + load(f + at))

    return body


class SumOfSixCpuKernel(Kernel, SumOfSixFwdInterface):
    """One loop."""

    devices = frozenset({"cpu"})

    @classmethod
    def refusal(cls, call: SumOfSixCall) -> str | None:
        strided = [name for name, spec in call.tensors().items() if not spec.is_contiguous]
        return f"{', '.join(strided)} have elements apart" if strided else super().refusal(call)

    @classmethod
    def programs(cls, call: SumOfSixCall, config: Config) -> dict[str, Program]:
        return {"main": Program.of(f"{__name__}:sums", ["ptr"] * 7)}

    def bind(self, call: SumOfSixCall) -> Callable[..., None]:
        size = call.output.numel
        arguments = [Address(place) for place in range(7)]
        return direct.launcher(self.entries["main"], parallel.limit(1.0 * size), size, arguments, 7)


class SumOfSixFwdOp(Op):
    """The sum of six tensors."""

    entry = _entry()
    kernel_types: ClassVar = {"cpu": SumOfSixCpuKernel}
    interfaces: ClassVar = {"sum": SumOfSixFwdInterface}

    def _call_spec(self, facts: CallFacts) -> SumOfSixCall:
        return SumOfSixCall(**facts, device=facts.device)


def reference(*tensors: torch.Tensor) -> Any:
    """The same with PyTorch."""
    return sum(tensors)
