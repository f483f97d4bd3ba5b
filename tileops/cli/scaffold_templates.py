"""The texts that `tileops new` fills in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tileops.cli.scaffold import Reference

FUNCTION = """

def {function}({arguments}) -> Any:
    raise NotImplementedError("{function}: write its formula over the words of tileops.jit.lang")
"""

_HALVES = "[{T: bfloat16}, {T: float16}]"
_FLOATS = "[{T: float32}, {T: bfloat16}, {T: float16}]"
#: Bytes of an element and its dtypes; bytes of an output and their name.
_WIDTHS = ((4, "[{T: float32}]"), (2, _HALVES))
_SIZES = ((4 << 10, "4KiB"), (1 << 20, "1MiB"), (16 << 20, "16MiB"))


def _params(reference: Reference) -> list[str]:
    if not reference.params:
        return []
    lines = ["    params:"]
    for param in reference.params:
        written = "" if param.required else f", default: {json.dumps(param.default)}"
        kind = f'"{param.type}"' if "|" in param.type else param.type
        lines.append(f"      {param.name}: {{type: {kind}{written}}}")
    return lines


def pointwise_entry(name: str, ref_api: str, reference: Reference) -> str:
    """The entry of an operator whose tensors broadcast."""
    axes = ["S"] if len(reference.tensors) == 1 else ["A", "B", "C"][: len(reference.tensors)]
    shape = "[*S]" if axes == ["S"] else f"[*broadcast({', '.join(axes)})]"
    indices = ", ".join(f"{axis}: Shape" for axis in axes)
    total = "prod(S)" if axes == ["S"] else f"prod(broadcast({', '.join(axes)}))"
    rows = [
        f"  - {{{', '.join(f'{axis}: [{nbytes // width}]' for axis in axes)}, dtype_cases: {dtypes}, "
        f"label: sweep-{label}-{8 * width}bit}}"
        for nbytes, label in _SIZES
        for width, dtypes in _WIDTHS
    ]
    lines = [
        "",
        f"{name}:",
        "  family: elementwise",
        "  status: spec-only",
        f"  ref_api: {ref_api}",
        "  signature:",
        f'    forall: {{{indices}, T: "DType[float16 | bfloat16 | float32]"}}',
        *_params(reference),
        "    inputs:",
        *(
            f'      {item}: {{dtype: T, shape: "[*{axis}]"}}'
            for item, axis in zip(reference.tensors, axes, strict=True)
        ),
        "    outputs:",
        f'      output: {{dtype: T, shape: "{shape}"}}',
        "  workloads:",
        *rows,
        "  roofline:",
        f'    flops: "{total}"',
    ]
    return "\n".join(lines) + "\n"


def entry(name: str, ref_api: str, reference: Reference, family: str) -> str:
    """The entry of any other operator: two axes for each tensor, to be replaced by what the reference says."""
    lines = [
        "",
        f"{name}:",
        f"  family: {family}",
        "  status: spec-only",
        f"  ref_api: {ref_api}",
        "  signature:",
        '    forall: {M: Dim, N: Dim, T: "DType[float16 | bfloat16 | float32]"}',
        *_params(reference),
        "    inputs:",
        *(f'      {item}: {{dtype: T, shape: "[M, N]"}}' for item in reference.tensors),
        "    outputs:",
        '      output: {dtype: T, shape: "[M, N]"}',
        "  workloads:",
        f"  - {{M: 512, N: 4096, dtype_cases: {_FLOATS}, label: hidden-512}}",
        "  roofline:",
        '    flops: "M * N"',
    ]
    return "\n".join(lines) + "\n"


def pieces(reference: Reference) -> dict[str, str]:
    """The parts of the texts below that depend on tensors and parameters."""
    return {
        "fields": "\n".join(f"    {item}: TensorSpec" for item in reference.tensors),
        "tensor_names": "".join(f'"{item}", ' for item in reference.tensors) + '"output"',
        "facts": ", ".join(f'{item}=facts["{item}"]' for item in (*reference.tensors, "output")),
        "pointers": ", ".join((*reference.tensors, "output")),
        "addresses": ", ".join(f"{item}.data_ptr()" for item in (*reference.tensors, "output")),
        "launch_parameters": ", ".join(f"{item}: Any" for item in (*reference.tensors, "output")),
        "count": str(len(reference.tensors) + 1),
        "call": ", ".join(reference.tensors),
        "first": reference.tensors[0],
        "init": "".join(
            f", {param.name}: {param.type}{'' if param.required else f' = {param.default!r}'}"
            for param in sorted(reference.params, key=lambda param: not param.required)
        ),
        "assign": "".join(f"        self.{param.name} = {param.name}\n" for param in reference.params),
    }


CALL = '''"""Calls of {name}."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tileops.kernels.base import CallSpec, KernelInterface, TensorSpec


@dataclass(frozen=True, kw_only=True)
class {short}Call(CallSpec):
    """One call: its tensors, and the parameters that a kernel needs."""

{fields}
    output: TensorSpec


class {title}Interface(KernelInterface):
    """``launch({pointers})``."""

    call_spec = {short}Call
    tensors = ({tensor_names})
'''

HOST = '''"""{name} on the CPU: what is compiled, and how it is launched."""

from __future__ import annotations

import json
from typing import Any

from tileops.jit import parallel
from tileops.jit.program import Program
from tileops.kernels.base import Config, Kernel, Launch
from tileops.kernels.{family}.{stem}_call import {short}Call, {title}Interface


class {short}CpuKernel(Kernel, {title}Interface):
    """Rows, one unit of work each."""

    devices = frozenset({{"cpu"}})

    @classmethod
    def refusal(cls, call: {short}Call) -> str | None:
        if not all(spec.is_contiguous for spec in call.tensors().values()):
            return "the tensors must be contiguous"
        return super().refusal(call)

    @classmethod
    def programs(cls, call: {short}Call, config: Config) -> dict[str, Program]:
        pointers = ["ptr"] * {count}
        place = "tileops.kernels.{family}._{stem}_cpu:rows"
        return {{"main": Program.of(place, [*pointers, "i64"], dtype=call.output.short)}}

    def bind(self, call: {short}Call) -> Launch:
        *rows, size = call.output.shape
        units = call.output.numel // max(size, 1)
        entry, team = self.entries["main"].launch, parallel.team
        limit = parallel.limit(call.output.numel * 1.0)

        def launch({launch_parameters}) -> None:
            entry(team(limit), units, {addresses}, size)

        return launch
'''

DEVICE = '''"""Device body of {name} on the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable

from tileops.jit import lang


def rows(dtype: str) -> Callable[..., None]:
    """``body(begin, end, tid, {pointers}, size)``: one unit is a row of `size` elements."""
    raise NotImplementedError("{stem}: write its body over the words of tileops.jit.lang")
'''

OP = '''"""{name}."""

from __future__ import annotations

import json
from typing import ClassVar

from tileops.kernels.{family}.{stem}_call import {short}Call, {title}Interface
from tileops.kernels.{family}.{stem}_cpu import {short}CpuKernel
from tileops.ops.base import Op
from tileops.ops.facts import CallFacts


class {name}(Op):
    """Follows ``{ref_api}``.

    Args:
        target: which set of kernels serves the op; None decides by the device of each call.
    """

    kernel_types: ClassVar = {{"cpu": {short}CpuKernel}}
    interfaces: ClassVar = {{"{stem}": {title}Interface}}

    def __init__(self{init}, *, target: str | None = None) -> None:
{assign}        super().__init__(target=target)

    def _call_spec(self, facts: CallFacts) -> {short}Call:
        return {short}Call({facts}, device=facts.device)
'''

TEST = '''"""{name} against its reference."""

from __future__ import annotations

import json
import torch

from tileops.{family} import {name}
from tileops.testing import calls
from tileops.workloads.device import run_device


def test_rows_of_the_manifest() -> None:
    for dtypes, call in calls.by_dtype("{name}").items():
        example = calls.example(call, torch.device(run_device()))
        assert isinstance(example.op, {name})
        calls.verify(example.op(*example.tensors), example.expected(), f"{name} {{dtypes}}")
'''
