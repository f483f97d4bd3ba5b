"""Which kernel a call would take, and why each other one would not: without tensors, without compiling.

found = explain(GemmFwdOp, parse_call(GemmFwdOp, "a=bf16[4,4096] b=bf16[14336,4096]"), device_for(None))
found.sites[0].verdicts      one for each kernel: chosen, unavailable, refused (why) or outranked (by what)
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tileops import backend
from tileops.backend import registry
from tileops.errors import CheckError, TileOpsError
from tileops.jit.program import Program
from tileops.kernels.base import DTYPES, CallSpec, DeviceFacts, TensorSpec, contiguous_strides
from tileops.manifest.workload import cases
from tileops.ops import selection, tuning
from tileops.ops.base import Op
from tileops.ops.dtypes import dtype_of, torch_parameters
from tileops.ops.facts import CallFacts, allocated_spec, spec_of

_SHORT = {short: name for name, (_, short) in DTYPES.items()}
_TENSOR = re.compile(r"(?P<dtype>\w+)\[(?P<shape>[\d,\s]*)\](?:\((?P<strides>[\d,\s]*)\))?")


@dataclass(frozen=True)
class WrittenCall:
    """A call as a person writes it.

    Attributes:
        params: construction parameters.
        tensors: facts of the tensors that are passed, by name; their device is not meant.
    """

    params: Mapping[str, Any]
    tensors: Mapping[str, TensorSpec]


@dataclass(frozen=True)
class Site:
    """One place where the op calls a kernel.

    Attributes:
        name: the call site.
        call: the call spec, in one line.
        verdicts: what became of each implementation.
        chosen: name of the kernel that serves the call; None where none or several do.
        config: its tile parameters.
        config_source: "default" or "record".
        programs: what it compiles.
    """

    name: str
    call: str
    verdicts: tuple[selection.Verdict, ...]
    chosen: str | None = None
    config: Mapping[str, Any] | None = None
    config_source: str = "default"
    programs: tuple[Program, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """What would become of a call.

    Attributes:
        op: name of the op.
        construction: the op as it would be written.
        outputs: name, dtype and shape of each output.
        flops: arithmetic of the call; None where the formula needs the contents of tensors.
        bytes: its traffic, likewise.
        target: which target serves it.
        note: why no kernel is asked, where none is.
        sites: the call sites.
    """

    op: str
    construction: str
    outputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    flops: int | None
    bytes: int | None
    target: str
    note: str = ""
    sites: tuple[Site, ...] = ()


def parse_call(op: type[Op], text: str) -> WrittenCall:
    """Reads a call: a case of the op's rows by its id, or ``name=value`` separated by blanks.

    A tensor is ``x=bf16[4,4096]``, with strides ``x=f32[4,6](1,4)``; a parameter is a Python literal or a dtype,
    ``eps=1e-5 out_dtype=bfloat16``.

    Raises:
        TileOpsError: the text cannot be read, or names something that the op does not have.
    """
    for row in cases(op.entry):
        if row.case_id == text.strip():
            tensors = {name: TensorSpec.contiguous(item.dtype, item.shape) for name, item in row.inputs.items()}
            return WrittenCall(torch_parameters(row.params), tensors)
    name = op.__name__
    if "=" not in text:
        raise TileOpsError(
            f"{name}: {text!r} is no case of the op and no call; write for example "
            f'"{_example(op)}", or a case id that `tileops show {name}` lists'
        )
    params: dict[str, Any] = {}
    found: dict[str, TensorSpec] = {}
    signature = op.entry.signature
    for part in _split(text):
        key, equals, value = part.partition("=")
        if not equals:
            raise TileOpsError(f"{name}: {part!r} is no name=value; write for example {_example(op)!r}")
        if key in op._input_names:
            found[key] = _tensor(name, key, value)
        elif key in signature.params:
            params[key] = _parameter(value)
        else:
            known = ", ".join((*signature.params, *op._input_names))
            raise TileOpsError(f"{name}: there is no parameter or tensor {key!r}; it has {known}")
    return WrittenCall(params, found)


def _split(text: str) -> list[str]:
    """Parts at blanks outside of brackets."""
    joined, depth = "", 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        joined += "" if letter == " " and depth > 0 else letter
    return shlex.split(joined, posix=False)


def _example(op: type[Op]) -> str:
    row = cases(op.entry)[0]
    params = [f"{name}={value!r}".replace(" ", "") for name, value in row.params.items()]
    tensors = [f"{name}={DTYPES[item.dtype][1]}[{','.join(map(str, item.shape))}]" for name, item in row.inputs.items()]
    return " ".join([*params, *tensors])


def _tensor(op: str, name: str, text: str) -> TensorSpec:
    match = _TENSOR.fullmatch(text)
    dtype = None if match is None else _SHORT.get(match["dtype"], match["dtype"])
    if match is None or dtype not in DTYPES:
        known = ", ".join(_SHORT)
        raise TileOpsError(f"{op}: {name}={text!r} is no tensor; write dtype[sizes], with a dtype of {known}")
    shape = _integers(match["shape"])
    strides = contiguous_strides(shape) if match["strides"] is None else _integers(match["strides"])
    if len(strides) != len(shape):
        raise TileOpsError(f"{op}: {name}={text!r}: there are {len(shape)} sizes and {len(strides)} strides")
    return TensorSpec("cpu", dtype, shape, strides, DTYPES[dtype][0])


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(item) for item in text.split(",") if item.strip())


def _parameter(text: str) -> Any:
    name = text.removeprefix("torch.")
    if _SHORT.get(name, name) in DTYPES:
        return dtype_of(_SHORT.get(name, name))
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text  # an enum value without quotes


def explain(op: type[Op], written: WrittenCall, device: DeviceFacts) -> Explanation:
    """What would become of a call on `device`.

    Raises:
        CheckError: the call, or the construction, violates the entry.
    """
    try:
        instance = op(**written.params)
    except TypeError as error:  # a required parameter is missing
        raise CheckError(op.__name__, "signature.params", str(error)) from None
    tensors = tuple(_stand_in(written.tensors.get(slot.name), slot.cpu) for slot in op._slots)
    instance._require_tensors(tensors)
    checked = op._signature.check_call(instance._construction, tensors)
    place = torch.device(device.type, device.index) if device.type != "cpu" else torch.device("cpu")
    outputs = tuple(
        (item.name, str(item.dtype).removeprefix("torch."), tuple(item.shape))
        for item in checked.outputs
        if item is not None
    )
    flops, moved = _cost(instance, checked)
    target = registry.select_target(op.__name__, instance.target, place)
    found = Explanation(op.__name__, repr(instance), outputs, flops, moved, target)
    if not checked.written and all(0 in shape for _, _, shape in outputs):
        return _noted(found, "every output is empty, so nothing runs")
    if target != backend.BUILTIN:
        return _noted(found, f"target {target!r} brings its own kernel")
    if op.entry.composition:
        stages = ", ".join(f"{stage.name} ({stage.op or stage.kernel})" for stage in op.entry.composition)
        return _noted(found, f"a composition: {stages}; ask about its stages")
    facts: dict[str, TensorSpec | None] = {
        slot.name: _moved(written.tensors.get(slot.name), slot.cpu, device, place) for slot in op._slots
    }
    for slot in op._held_slots:
        tensor = instance._held[slot.name]
        facts[slot.name] = None if tensor is None else _moved(spec_of(tensor), slot.cpu, device, place)
    for name, output in zip(op.entry.signature.outputs, checked.outputs, strict=True):
        facts[name] = None if output is None else allocated_spec(output.shape, output.dtype, place)
    return _noted(found, "", _sites(instance, CallFacts(device, facts, checked.indices)))


def _noted(found: Explanation, note: str, sites: tuple[Site, ...] = ()) -> Explanation:
    return Explanation(**{**vars(found), "note": note, "sites": sites})


def _cost(instance: Op, checked: Any) -> tuple[int | None, int | None]:
    try:
        return instance._signature.roofline(checked)
    except TileOpsError:
        return None, None


def _stand_in(spec: TensorSpec | None, cpu: bool) -> torch.Tensor | None:
    if spec is None:
        return None
    return torch.empty_strided(spec.shape, spec.strides, dtype=dtype_of(spec.dtype), device="cpu" if cpu else "meta")


def _moved(spec: TensorSpec | None, cpu: bool, device: DeviceFacts, place: torch.device) -> TensorSpec | None:
    if spec is None or cpu or device.type == "cpu":
        return spec
    return TensorSpec(str(place), spec.dtype, spec.shape, spec.strides, 16)


class _Asked:
    """Stands for a kernel that is not built."""

    def bind(self, call: CallSpec) -> Callable[..., None]:
        return lambda *tensors: None


def _sites(instance: Op, facts: CallFacts) -> tuple[Site, ...]:
    asked: list[tuple[str, CallSpec]] = []

    def kernel_for(site: str, call: CallSpec) -> Any:
        asked.append((site, call))
        return _Asked()

    object.__setattr__(instance, "kernel_for", kernel_for)
    instance._bind(facts)
    return tuple(_site(instance, name, call) for name, call in asked)


def _site(instance: Op, name: str, call: CallSpec) -> Site:
    verdicts = tuple(selection.explain(instance._sites[name], call))
    chosen = [verdict.kernel for verdict in verdicts if verdict.outcome == "chosen"]
    if len(chosen) != 1:
        return Site(name, call.describe(), verdicts)
    (kernel,) = chosen
    default = kernel.default_config(call)
    config = tuning.config_for(instance, kernel, call)
    source = "default" if config == default else "record"
    programs = tuple(kernel.programs(call, config).values())
    return Site(name, call.describe(), verdicts, kernel.__name__, config, source, programs)
