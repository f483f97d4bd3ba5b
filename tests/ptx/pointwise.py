"""Elementwise operators in the PTX interpreter: examples of each operator, and one way to run them."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tests.ptx.harness import DEVICE, NUMPY, Device, FakeTensor, facts_of, parsed
from tileops import manifest
from tileops.jit.program import Program
from tileops.kernels.base import interface_of
from tileops.kernels.elementwise.call_spec import GatedCall, PointwiseCall
from tileops.ops import elementwise
from tileops.ops.facts import CallFacts
from tileops.workloads import numerics, workload

#: How far a result may be from the float64 reference, in units of its last place: float32 functions 2, and half a unit
#: where one is multiplied by an operand.
ULPS = {torch.float32: 2.5, torch.bfloat16: 0.52, torch.float16: 0.6}
#: Parameters of the examples of an operator, where its defaults are none or do not say enough.
PARAMS: Mapping[str, tuple[dict[str, Any], ...]] = {
    "AddFwdOp": ({"alpha": 3},),
    "SubFwdOp": ({"alpha": -2},),
    "LerpFwdOp": ({"weight": 0.3},),
    "MaskedFillScalarFwdOp": ({"value": 1},),
    "ClampScalarFwdOp": ({"min": 1, "max": 3}, {"min": None, "max": 1}, {"min": 1, "max": None}),
    "GeluFwdOp": ({"approximate": "none"}, {"approximate": "tanh"}),
    "DivFwdOp": ({"rounding_mode": None}, {"rounding_mode": "trunc"}, {"rounding_mode": "floor"}),
    # The largest value of float64, the default, is none of the dtype under test.
    "NanToNumFwdOp": ({"nan": 2.0, "posinf": 1.0, "neginf": -1.0},),
    "RoundFwdOp": ({}, {"decimals": 2}),
}
#: Absolute errors that are allowed besides: of sums that cancel, and of the reference itself.
SLACK = {
    **dict.fromkeys(("LerpFwdOp", "LerpTensorFwdOp"), 2e-6),
    **dict.fromkeys(("GeluFwdOp", "GeluAndMulFwdOp", "GeluTanhAndMulFwdOp"), 1e-12),
}
_WHOLE = ("uint8", "int8", "int16", "int32", "int64", "bool")


@dataclass(frozen=True)
class Example:
    """One call of an operator.

    Attributes:
        op: its name.
        dtype: of its values.
        params: construction parameters.
        absent: inputs that the call lacks.
    """

    op: str
    dtype: str
    params: Mapping[str, Any] = field(default_factory=dict)
    absent: tuple[str, ...] = ()

    def __str__(self) -> str:
        shown = [f"{name}={value}" for name, value in self.params.items()]
        return "-".join([self.op.removesuffix("FwdOp"), self.dtype, *shown, *(f"no-{name}" for name in self.absent)])


def served(op: str) -> bool:
    """Whether the operator is a scalar function of its tensors, or of the halves of one."""
    kernel = next(iter(getattr(elementwise, op).kernel_types.values()))
    return issubclass(interface_of(kernel).call_spec, PointwiseCall | GatedCall)


def examples(*, every_dtype: bool) -> Iterator[Example]:
    """Examples of every operator: of each dtype that it takes, or of one float and one other, in turn."""
    turn = 0
    for op in manifest.implemented_names("elementwise"):
        if not served(op):
            continue
        taken = _dtypes(op)
        groups = [[name for name in taken if name not in _WHOLE], [name for name in taken if name in _WHOLE]]
        for params in PARAMS.get(op, ({},)):
            turn += 1
            for group in groups:
                # The variations beyond the first need no other dtypes: those share their code.
                picked = group if every_dtype else group[turn % len(group) :][:1] if group else []
                for dtype in picked:
                    if dtype not in _WHOLE or _takes(op, params, dtype):
                        yield Example(op, dtype, params)
        if op == "ClampTensorFwdOp":
            yield from (Example(op, "bfloat16", {}, (name,)) for name in ("min", "max"))


def _takes(op: str, params: Mapping[str, Any], dtype: str) -> bool:
    """Whether there is a reference for integers: PyTorch rounds none, and booleans are only 0 and 1."""
    return op != "RoundFwdOp" and (dtype != "bool" or all(value in (0, 1) for value in params.values()))


@functools.cache
def _dtypes(op: str) -> tuple[str, ...]:
    index = manifest.load_entry(op).raw["signature"]["forall"]["T"]
    return tuple(name.strip() for name in re.search(r"DType\[(.*)\]", index)[1].split("|"))


def inputs_of(example: Example, shapes: Sequence[Sequence[int]], seed: int = 0) -> dict[str, torch.Tensor | None]:
    """Inputs by name: one shape for each, or one for all of them that are not single numbers."""
    declared = manifest.load_entry(example.op).raw["signature"]["inputs"]
    if len(shapes) == 1:
        shapes = [() if item["shape"] == "[]" else shapes[0] for item in declared.values()]
    return {
        name: None
        if name in example.absent
        else draw(shape, example.dtype if item["dtype"] == "T" else item["dtype"], seed + place)
        for place, ((name, item), shape) in enumerate(zip(declared.items(), shapes, strict=True))
    }


def draw(shape: Sequence[int], dtype: str, seed: int = 0) -> torch.Tensor:
    """Values of moderate size, with the special ones of the dtype among them."""
    rng, count = np.random.default_rng(seed), math.prod(shape)
    kind = getattr(torch, dtype)
    special: list[float] = []
    if dtype == "bool":
        values = torch.from_numpy(rng.integers(0, 2, count).astype(bool))
    elif kind.is_floating_point:
        values = torch.from_numpy(3 * rng.standard_normal(count)).to(kind)
        info = torch.finfo(kind)
        special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, info.tiny / 4, info.max / 128, 0.5, 2.5]
    else:
        limits = torch.iinfo(kind)
        values = torch.from_numpy(rng.integers(max(limits.min, -9), 10, count)).to(kind)
        special = [limits.min, limits.max, 0, 1, limits.max - 1]
    several = torch.tensor(special * 3, dtype=kind)[rng.permutation(3 * len(special))]
    values[: len(several)] = several[:count]
    return values.reshape(tuple(shape))


def as_array(x: torch.Tensor) -> np.ndarray:
    """The memory of a tensor, with its strides."""
    if x.dtype == torch.bfloat16:
        return x.view(torch.int16).numpy().view(NUMPY["bfloat16"])
    return x.numpy()


def as_tensor(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bfloat16:
        return torch.from_numpy(values.view(np.int16)).view(dtype)
    return torch.from_numpy(values)


def run(
    example: Example,
    tensors: Mapping[str, torch.Tensor | None],
    arch: str,
    *,
    offsets: Sequence[int] = (0, 0, 0, 0),
    max_grid: int | None = None,
    in_place: bool = False,
) -> tuple[Program, Device]:
    """Runs an example, its inputs (and then its output) so many elements past an aligned address, and checks it.

    With `in_place`, the output is the first input.
    """
    op = getattr(elementwise, example.op)(**example.params)
    expected, dtype = _reference(example, tensors)
    device = Device(arch, max_grid)
    placed: dict[str, FakeTensor | None] = {}
    for place, (name, x) in enumerate(tensors.items()):
        writable = in_place and place == 0
        given = None if x is None else as_array(x)
        placed[name] = (
            given
            if given is None
            else device.tensor(
                given, str(x.dtype).removeprefix("torch."), storage_offset=offsets[place], output=writable
            )
        )
    if in_place:
        out = placed[next(iter(placed))]
    else:
        out = device.empty(expected.shape, str(dtype).removeprefix("torch."), storage_offset=offsets[-1])
    assert out is not None
    described = {name: None if tensor is None else tensor.spec for name, tensor in placed.items()}
    described[next(iter(manifest.load_entry(example.op).signature.outputs))] = out.spec
    call = op._call_spec(CallFacts(DEVICE[arch], described, {}))
    program = device.run(op.kernel_types["cuda"], call, *placed.values(), out)
    if device.machines:
        facts = facts_of(program, arch)
        assert facts["spill_bytes"] == facts["stack_bytes"] == 0, f"{program} spills on {arch}"
    check(device.fetch(out), dtype, expected, SLACK.get(example.op, 0.0))
    return program, device


def _reference(example: Example, tensors: Mapping[str, torch.Tensor | None]) -> tuple[torch.Tensor, torch.dtype]:
    """The result of the reference, and the dtype that PyTorch gives it."""
    found = workload(example.op)
    op = getattr(elementwise, example.op)(**example.params)
    params = {name: getattr(op, name) for name in op.entry.signature.params}
    given = [None if x is None else x.clone() for x in tensors.values()]
    params.pop("inplace", None)
    dtype = next(iter(found.torch.values()))(*given, **params).dtype
    return found.reference(*tensors.values(), **params), dtype


def check(got: np.ndarray, dtype: torch.dtype, expected: torch.Tensor, slack: float = 0.0) -> None:
    """Fails unless `got` is what rounding `expected` once would give, nearly; or within `slack` of it."""
    if dtype == torch.bool:
        np.testing.assert_array_equal(got.view(np.uint8), expected.to(torch.uint8).numpy())
        return
    actual = as_tensor(got, dtype)
    if not dtype.is_floating_point:
        assert torch.equal(actual, expected)
        return
    rounded = expected.to(dtype)
    same = (actual == rounded) | (actual.isnan() & rounded.isnan()) | ((actual.double() - expected).abs() < slack)
    off = torch.where(same, 0.0, numerics.ulp_error(actual, expected)).nan_to_num(math.inf, math.inf).reshape(-1)
    if off.numel() and off.max() > ULPS[dtype]:
        worst = int(off.argmax())
        pair = f"{actual.reshape(-1)[worst].item()}, expected {expected.reshape(-1)[worst].item()}"
        raise AssertionError(f"off by {off[worst]:.3f} units at {worst}: {pair}")


def forms(program: Program, arch: str) -> set[str]:
    """The instruction forms of a program."""
    return parsed(program, arch).forms()
