"""A call signature that was not seen before: checking it, and making the plan that serves it from now on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch

from tileops import backend, settings
from tileops.backend import registry
from tileops.kernels.base import TensorSpec, contiguous_strides
from tileops.ops import call_kinds, calling, contents, effects, observing, recording, targets, tuning
from tileops.ops.call_kinds import CallKind, SizedCalls, SizedRecord, kind_key
from tileops.ops.effects import FRESH, Effects
from tileops.ops.facts import CallFacts, allocated_spec, device_facts, spec_of
from tileops.ops.plans import (
    CallRecord,
    Plan,
    PlanCache,
    Run,
    allocate_and_launch,
    allocate_and_launch_once,
    allocate_only,
)

if TYPE_CHECKING:
    from tileops.ops.base import Op
    from tileops.ops.selection import KnownKernels


class Planning:
    """The part of `Op` that plans calls. Everything that a plan does is settled here; running it looks at nothing."""

    target: str | None
    entry: ClassVar[Any]
    _signature: ClassVar[Any]
    _plain: ClassVar[bool]
    _held_slots: ClassVar[tuple[calling.Slot, ...]]
    _packed_input: ClassVar[str | None]
    _input_names: ClassVar[tuple[str, ...]]
    _construction: Any
    _lock: Any
    _plans: PlanCache
    _plan_of: Callable[[Hashable], Plan | None]
    _kinds: dict[Hashable, CallKind]
    _require_tensors: Callable[..., None]
    _call_device: Callable[..., torch.device]
    _held_on: Callable[..., list[torch.Tensor | None]]
    _target_kernel: Callable[..., Callable[..., Any]]
    _bind: Callable[[CallFacts], Callable[..., None]]
    _call_spec: Callable[[CallFacts], Any]
    _known_at: Callable[..., KnownKernels]
    #: A call launches the kernel of one call site on its tensors, as `Op._bind` says.
    _one_site: ClassVar[bool]
    interfaces: ClassVar[Mapping[str, Any]]
    tune: bool

    def _make_plan(
        self, key: Any, tensors: tuple[Any, ...], token: Any = None, calls: SizedCalls | None = None
    ) -> tuple[Plan, Run]:
        """Checks a call of a signature that was not seen before, chooses and builds its kernel, and remembers
        how to run it. Gives what runs this call besides: a plan may have something else for later ones.

        Args:
            key: the call signature, see `calling`.
            tensors: of the call, None where absent.
            token: the packed operand, if there is one.
            calls: what is known of its kind, where the call was recognised.
        """
        with self._lock:
            plan = self._plan_of(key)
            if plan is not None:
                return plan, plan.run or plan.again()
            made = self._plan_call(key, tensors, token, calls)
            self._plans.insert(key, made[0])
            return made

    def _plan_call(self, key: Any, tensors: tuple[Any, ...], token: Any, calls: SizedCalls | None) -> tuple[Plan, Run]:
        kind = self._kind_of(tensors) if calls is None else calls.kind
        if kind.sized is not None:
            made = self._plan_sizes(kind.sized, key, tensors, token)
            if made is not None:
                return made
        device, found = kind.device, kind.effects
        checked = kind.check(*tensors)
        if kind.repeated and kind.sized is None and kind.only_makes and not self._held_slots:
            self._know_sizes(kind, checked, tensors)
        kind.repeated = True
        outputs = effects.output_specs(checked, found)
        dtype = kind.dtype
        if dtype is None:
            dtype = next(item.dtype for item in checked.outputs if item is not None)
        if kind.facts is None:
            run = allocate_only(outputs, device)
            return Plan(run, CallRecord(checked, dtype, device, None)), run
        name = type(self).__name__
        facts = self._facts(tensors, kind, checked, token)
        record = CallRecord(checked, dtype, device, facts)
        recording.record(cast("Op", self), facts)
        target = registry.select_target(name, self.target, device)
        settle: Callable[[], Any] | None = None
        if self._writes_nothing(tensors, outputs, found):
            run = allocate_only(outputs, device)
        elif target != backend.BUILTIN:
            kernel = self._target_kernel(target, tensors, facts)
            declared = self.entry.signature.outputs
            run = targets.runner(name, target, kernel, declared, checked, device, self._input_names, found)
        elif kind.on_cpu and self._plain:
            launch = self._bind(facts)
            run = allocate_and_launch_once(outputs, device, launch)
            settle = partial(allocate_and_launch, self._input_names, outputs, device, launch)
        else:
            with current_device(device):
                launch = self._bind(facts)
            held = self._held_on(device, checked)
            run = allocate_and_launch(self._input_names, outputs, device, launch, held)
        if contents.validates(self._construction):
            run, settle = contents.validated(name, self._input_names, self._construction, checked, run), None
        if found is not None and found.writes:
            run = effects.writing(name, self._input_names, found, run)
        return Plan(run if settle is None else None, record, facts.packed, settle), run

    def _know_sizes(self, kind: CallKind, checked: Any, tensors: tuple[Any, ...]) -> None:
        """Has further calls of a kind planned by `_plan_sizes`."""
        if not contents.validates(self._construction):
            presence = [tensor is not None for tensor in tensors]
            check = self._signature.sizes_of(self._construction, checked, presence)
            kind.sized = SizedCalls(type(self).__name__, kind, check, self._input_names, self._plan_call)

    def _plan_sizes(self, calls: SizedCalls, key: Any, tensors: tuple[Any, ...], token: Any) -> tuple[Plan, Run] | None:
        """The plan of a call of a kind of which some are known: what depends on its sizes is found out, and no more.

        None where that is not enough: the call is wrong, has an output without elements, is to be recorded, or runs on
        another target.
        """
        found = calls.accept(*key)
        device, now = calls.device, settings.current()
        if (
            found is None
            or now.record is not None
            or registry.select_target(calls.op, self.target, device) != backend.BUILTIN
        ):
            return None
        for shape in found[2]:
            if shape is None or 0 in shape:
                return None
        if now is not calls.settings:
            calls.forget_resizes(now)
        if calls.resizes and token is None and not (self.tune or tuning.may_differ(cast("Op", self))):
            launch = calls.resized(found)
            if launch is not None:
                observing.count(calls.op, "hits")
                return Plan(None, None, None, None, calls, key), calls.run_once(found, launch)
        facts = calls.facts_of(tensors, found, None if token is None else token.layout)
        record = SizedRecord(calls, found, facts)
        if not calls.once:
            with current_device(device):
                launch = self._bind(facts)
            outputs = calls.output_specs(found)
            run = allocate_and_launch(self._input_names, outputs, device, launch)
            return Plan(run, record, facts.packed, calls=calls), run
        launch = self._bind(facts)
        if calls.tries and token is None:
            calls.tries -= 1
            self._learn_to_resize(calls, facts)
        outputs = calls.output_specs(found)
        settle = partial(allocate_and_launch, self._input_names, outputs, device, launch)
        plan = Plan(None, record, facts.packed, settle, calls)
        return plan, allocate_and_launch_once(outputs, device, launch)

    def _learn_to_resize(self, calls: SizedCalls, facts: CallFacts) -> None:
        """Asks the kernel of a call how to serve others of its kind, if all its tensors are dense."""
        if not (self._one_site and all(spec is None or spec.is_contiguous for spec in facts.values())):
            return
        (site,) = self.interfaces
        call = self._call_spec(facts)
        known = self._known_at(site, call.device)
        compile_class = known.classify(call)
        kernel = known.kernels.get(compile_class)
        resize = None if kernel is None else kernel.resized(call)
        if kernel is not None and resize is not None:
            calls.resizes[compile_class] = resize

    def _kind_of(self, tensors: tuple[Any, ...]) -> CallKind:
        """The kind of a call: its devices, dtypes and presence are checked when the first of its kind comes.

        Raises:
            CheckError: the tensors violate the manifest entry whatever their sizes.
        """
        key = kind_key(tensors)
        kind = self._kinds.get(key)
        if kind is None:
            self._require_tensors(tensors)
            device = self._call_device(tensors)
            check = self._signature.check_of(self._construction, tensors)
            dtype = next((tensor.dtype for tensor in tensors if tensor is not None), None)
            found = None
            if not self._plain:
                branch = self._signature.branch(self._construction, [tensor is not None for tensor in tensors])
                found = effects.effects_at(self.entry, branch)
            kind = CallKind(check, found, device, dtype)
            if dtype is not None:  # else the device may be another next time
                if len(self._kinds) >= call_kinds.LIMIT:
                    self._kinds.clear()
                self._kinds[key] = kind
        return kind

    def _writes_nothing(self, tensors: Sequence[Any], outputs: Sequence[Any], found: Effects | None) -> bool:
        """Whether every tensor that a call writes, each output and each written input, has no elements."""
        for output in outputs:
            if output is not None and not isinstance(output, int) and 0 not in output[0]:
                return False
        return found is None or all(tensors[place].numel() == 0 for place in found.writes)

    def _facts_of(self, tensors: Sequence[Any]) -> CallFacts:
        """Checks a call without running it."""
        self._require_tensors(tensors)
        tensors = tuple(tensors)
        kind = self._kind_of(tensors)
        return self._facts(tensors, kind, kind.check(*tensors))

    def _facts(self, tensors: Sequence[Any], kind: CallKind, checked: Any, token: Any = None) -> CallFacts:
        device, found = kind.device, kind.effects
        facts: dict[str, Any] = {}
        for name, tensor in zip(self._input_names, tensors, strict=True):
            facts[name] = None if tensor is None else spec_of(tensor)
        if self._held_slots:
            for slot, tensor in zip(self._held_slots, self._held_on(device, checked), strict=True):
                facts[slot.name] = None if tensor is None else spec_of(tensor)
        first = next(iter(facts.values()), None)
        for number, (name, output) in enumerate(zip(self.entry.signature.outputs, checked.outputs, strict=True)):
            if output is None:
                facts[name] = None
            elif found is None or found.results[number] == FRESH:
                facts[name] = like(first, output, kind) or allocated_spec(output.shape, output.dtype, device)
            else:
                facts[name] = spec_of(tensors[found.results[number]])
        layout = None if token is None else token.layout
        return CallFacts(kind.facts or device_facts(device), facts, checked.indices, layout)


def like(spec: TensorSpec | None, output: Any, kind: CallKind) -> TensorSpec | None:
    """The facts of the first input where they are those of a new output as well, which is very common."""
    if (
        kind.on_cpu
        and spec is not None
        and output.dtype is kind.dtype
        and output.shape == spec.shape
        and spec.strides == contiguous_strides(spec.shape)
    ):
        return spec
    return None


def current_device(device: torch.device) -> AbstractContextManager[Any]:
    """Building and loading for a GPU happens with that GPU current."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
