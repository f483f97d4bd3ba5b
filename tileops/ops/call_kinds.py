"""What calls of one kind have in common: which tensors are present, their dtypes, layouts and devices.

Programs with growing sequences or ragged batches make calls of ever new sizes and of few kinds. All that does not
depend on sizes is found out once for each kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import torch

from tileops import settings
from tileops.jit.cpu.direct import Member
from tileops.kernels import pages
from tileops.kernels.base import DTYPES, DeviceFacts, TensorSpec
from tileops.manifest.signature import OUT
from tileops.ops._torch_guards import tensor_check
from tileops.ops.codegen.runtime import Checked, SizeCheck, Sizes
from tileops.ops.dtypes import name_of
from tileops.ops.effects import FRESH, Effects
from tileops.ops.facts import CallFacts, allocated_spec, cpu_spec, device_facts, new_cpu_spec, spec_of
from tileops.ops.plans import CallRecord, Calls, Plan, Run, allocate_and_launch, one_output
from tileops.settings import Settings

#: Kinds that an op remembers; a program has a few.
LIMIT = 256
#: Tensors of a kind that differ in more than sizes (ranks, parameters or not) and are told apart by a check of their
#: own before the kind stops chasing them.
_CHANCES = 64


class CallKind:
    """One kind of calls of one op.

    Attributes:
        check: ``check(*tensors)`` holds a call to the manifest entry, see `signature_codegen`.
        effects: what such calls write, None for an op that writes nothing.
        device: the call device.
        facts: its facts, None for meta tensors.
        dtype: dtype of the first tensor, None without any.
        on_cpu: the call device is the CPU.
        sized: what a further call needs; None until there was one, and for calls that are always planned from scratch.
        repeated: a call of this kind has been planned.
    """

    __slots__ = ("check", "device", "dtype", "effects", "facts", "on_cpu", "repeated", "sized")

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
        self.repeated = False
        self.sized: SizedCalls | None = None

    @property
    def only_makes(self) -> bool:
        """Whether such calls compute new tensors and do nothing else."""
        if self.facts is None or self.dtype is None:
            return False
        return self.effects is None or (not self.effects.writes and set(self.effects.results) == {FRESH})


class SizedCalls(Calls):
    """What calls of a kind need besides their sizes.

    Attributes:
        op: name of the op.
        kind: theirs.
        device: the call device.
        dtype: dtype of the first tensor.
        accept: see `SizeCheck`.
        outputs: name, dtype and name of the dtype of each output.
        once: a run that is cheap to make will do for the first call.
        resizes: what `Kernel.resized` gave, by compile class, for calls whose tensors were all dense.
        tries: how many calls kernels may still be asked about.
        settings: in force when kernels were asked.
        itemsize: of the first output.
    """

    __slots__ = (
        "_absent",
        "_chances",
        "_check",
        "_facts",
        "_names",
        "_on_cpu",
        "_present",
        "_replan",
        "accept",
        "device",
        "dtype",
        "itemsize",
        "kind",
        "once",
        "op",
        "outputs",
        "resizes",
        "settings",
        "tries",
    )

    def __init__(
        self,
        op: str,
        kind: CallKind,
        check: SizeCheck,
        names: Sequence[str],
        replan: Callable[[Any, tuple[Any, ...], Any, SizedCalls], tuple[Plan, Run]],
    ) -> None:
        assert kind.facts is not None
        assert kind.dtype is not None
        super().__init__()
        self.op = op
        self.kind = kind
        self.accept = check.accept
        self.outputs = [(*output, name_of(output[1])) for output in check.outputs if output is not None]
        self._check, self._names, self._replan = check, names, replan
        self.once = kind.on_cpu and OUT not in names
        self.itemsize = self.outputs[0][1].itemsize
        self.device, self.dtype = kind.device, kind.dtype
        self._facts, self._on_cpu = kind.facts, kind.on_cpu
        self._present = [(name, names.index(name), dtype, DTYPES[dtype][0]) for name, dtype in check.inputs]
        self.forget_resizes(settings.current())
        self._chances = _CHANCES
        self._absent = dict.fromkeys(name for name in names if name not in dict(check.inputs))

    def forget_resizes(self, now: Settings) -> None:
        """Settings such as ``TILEOPS_CPU`` decide how kernels serve a call."""
        self.settings = now
        self.resizes: dict[Hashable, Callable[..., Callable[..., None] | Member | None]] = {}
        self.tries = 32 if self.once and len(self.outputs) == 1 else 0

    def look_alike(self, tensors: Sequence[torch.Tensor]) -> None:
        if self._chances and len({id(tensor) for tensor in tensors}) == len(tensors):
            self._chances -= 1
            self.alike = tensor_check(tensors, sizes=False), any(tensor.requires_grad for tensor in tensors)

    def resized(self, found: Sizes) -> Callable[..., None] | Member | None:
        """What launches a call that differs in its sizes from one that was planned; None for any other."""
        _, shapes, (shape,), dense = found
        assert shape is not None
        if dense and math.prod(shape) * self.itemsize < pages.MAPPED_FROM:
            for resize in self.resizes.values():
                launch = resize(*shapes, shape)
                if launch is not None:
                    return launch
        return None

    def run_once(self, found: Sizes, launch: Callable[..., None] | Member) -> Run:
        """The run that is cheapest to make."""
        shape, dtype = found[2][0], self.outputs[0][1]
        assert shape is not None
        if isinstance(launch, Member):
            return launch.family.once(launch, shape, dtype) or self.run_once(found, launch.launcher())
        return one_output(shape, dtype, self.device, launch)

    def run(self, key: Any) -> Run:
        found = self.accept(*key)
        assert found is not None
        launch = self.resized(found) if settings.current() is self.settings else None
        if launch is None:  # the settings are others than at the first call
            return lambda *tensors: self._replan(key, tensors, None, self)[1](*tensors)
        if isinstance(launch, Member):
            launch = launch.launcher()
        return allocate_and_launch(self._names, self.output_specs(found), self.device, launch)

    def record(self, key: Any) -> CallRecord:
        found = self.accept(*key)
        assert found is not None
        return SizedRecord(self, found, None)

    def checked(self, found: Sizes) -> Checked:
        """What the whole check says of a call that was accepted."""
        return self._check.checked(found)

    def output_specs(self, found: Sizes) -> list[Any]:
        """Shape and dtype of each output."""
        return [(shape, output[1]) for shape, output in zip(found[2], self.outputs, strict=True)]

    def dense_facts(self, found: Sizes) -> CallFacts:
        """The facts of a call that was accepted, all of whose tensors are dense."""
        names = [*self._check.inputs, *[(name, dtype) for name, _, dtype in self.outputs]]
        shapes = [shape for shape in (*found[1], *found[2]) if shape is not None]
        specs = {name: new_cpu_spec(shape, dtype) for (name, dtype), shape in zip(names, shapes, strict=True)}
        return CallFacts(self._facts, {**self._absent, **specs}, partial(self._check.indices, found))

    def facts_of(self, tensors: Sequence[Any], found: Sizes, layout: str | None) -> CallFacts:
        """The facts of a call that was accepted."""
        facts = CallFacts(self._facts, self._absent, partial(self._check.indices, found), layout)
        on_cpu = self._on_cpu
        like: TensorSpec | None = None
        for (name, place, dtype, itemsize), shape in zip(self._present, found[1], strict=True):
            tensor = tensors[place]
            facts[name] = spec = cpu_spec(tensor, shape, dtype, itemsize) if on_cpu else spec_of(tensor)
            if like is None:
                like = spec
        assert like is not None
        for (name, torch_dtype, dtype), result in zip(self.outputs, found[2], strict=True):
            assert result is not None
            if not on_cpu:
                facts[name] = allocated_spec(result, torch_dtype, self.device)
            elif result == like.shape and dtype == like.dtype and like.is_contiguous:
                facts[name] = like  # a new output that looks like the first input shares its description
            else:
                facts[name] = new_cpu_spec(result, dtype)
        return facts


class SizedRecord(CallRecord):
    """The facts of a call that was accepted: few ask for more than dtype and device, so the rest is made then."""

    __slots__ = ("_calls", "_facts", "_found")

    def __init__(self, calls: SizedCalls, found: Sizes, facts: CallFacts | None) -> None:
        self._calls = calls
        self._found = found
        self.dtype = calls.dtype
        self.device = calls.device
        self._facts = facts

    @property
    def facts(self) -> CallFacts:  # type: ignore[override]
        return self._facts or self._calls.dense_facts(self._found)

    @property
    def checked(self) -> Checked:
        return self._calls.checked(self._found)


def kind_key(tensors: Sequence[torch.Tensor | None]) -> Hashable:
    """What tells kinds apart. A sparse or quantised tensor has a layout of its own."""
    if len(tensors) == 1:
        (tensor,) = tensors
        return None if tensor is None else (tensor.dtype, tensor.layout, tensor.device)
    return tuple([None if tensor is None else (tensor.dtype, tensor.layout, tensor.device) for tensor in tensors])
