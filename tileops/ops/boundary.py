"""A call as others see it: through torch's dispatcher, as fake tensors, or as the stages of a composite op."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch

from tileops.errors import CheckError
from tileops.ops import calling, dispatch, effects, targets
from tileops.ops.effects import ABSENT, FRESH, Effects
from tileops.ops.plans import CallRecord, Plan, PlanCache


class Boundary:
    """The part of `Op` that stands between a caller and the computation when the call is not a plain eager one."""

    entry: ClassVar[Any]
    gradient: ClassVar[Any]
    _signature: ClassVar[Any]
    _operator: ClassVar[Any]
    _operators: ClassVar[dict[Effects, Any]]
    _plain: ClassVar[bool]
    _slots: ClassVar[tuple[calling.Slot, ...]]
    _input_names: ClassVar[tuple[str, ...]]
    _call: str
    _construction: Any
    _held: dict[str, torch.Tensor | None]
    _branches: dict[tuple[bool, ...], tuple[Any, tuple[int, ...], tuple[int, ...]]]
    _thread: Any
    _lock: Any
    _plans: PlanCache
    _plan_of: Callable[[Hashable], Plan | None]
    _eager: Callable[..., Any]
    _require_tensors: Callable[..., None]
    _explain: Callable[..., None]
    _call_device: Callable[..., torch.device]
    forward: Callable[..., Any]

    def _dispatched(self, tensors: tuple[torch.Tensor | None, ...]) -> Any:
        """A call that something has to see: through torch's dispatcher, which comes back to `_eager_call`."""
        self._require_tensors(tensors)
        name = type(self).__name__
        dispatch.refuse_tangents(name, tensors)
        before = dispatch.calling.op
        dispatch.calling.op = self  # type: ignore[assignment]
        try:
            if self._plain:
                return dispatch.call(type(self)._operator, *tensors, self._call)
            return self._traced(tensors)
        except CheckError as error:
            dispatch.explain_autocast(error, tensors)
            raise
        except RuntimeError:
            self._explain(tensors)
            raise
        finally:
            dispatch.calling.op = before

    def _traced(self, tensors: tuple[torch.Tensor | None, ...]) -> Any:
        """A call through the torch operator of its effect branch, put together again from the new tensors that
        the operator returns and those of the caller that it wrote.
        """
        found = self._branches.get(tuple([tensor is not None for tensor in tensors]))
        if found is None:
            self._signature.branch(self._construction, [tensor is not None for tensor in tensors])
            raise AssertionError("a call with this presence has no effects")
        operator, writes, places = found
        if writes:
            dispatch.refuse_written_gradients(type(self).__name__, tensors, writes)
        run = operator if torch.compiler.is_dynamo_compiling() else partial(dispatch.call, operator)
        fresh = run(*tensors, *self._held.values(), self._call)
        if writes:
            fresh = dispatch.attach(type(self).__name__, fresh, tensors)
        results: list[torch.Tensor | None] = []
        new = 0
        for place in places:
            if place == ABSENT:
                results.append(None)
            elif place == FRESH:
                results.append(fresh if isinstance(fresh, torch.Tensor) else fresh[new])
                new += 1
            else:
                results.append(tensors[place])
        if not results:
            return None
        return results[0] if len(results) == 1 else tuple(results)

    def _effect_branches(self) -> dict[tuple[bool, ...], tuple[Any, tuple[int, ...], tuple[int, ...]]]:
        """For each presence that a call may have: its torch operator, what that writes, and what the results
        are.
        """
        found = {}
        choices = [(False, True) if slot.optional else (True,) for slot in self._slots]
        for presence in itertools.product(*choices):
            try:
                branch = self._signature.branch(self._construction, presence)
            except CheckError:
                continue  # such a call is refused
            at = effects.effects_at(self.entry, branch)
            if at in self._operators:
                found[presence] = (self._operators[at], at.writes, at.results)
        return found

    def _eager_call(self, tensors: Sequence[torch.Tensor | None]) -> Any:
        """The implementation of the torch operator: tensors without neg or conj bits, in forward order."""
        return self._eager(**dict(zip(self._input_names, tensors, strict=True)))

    def _fake(self, tensors: Sequence[torch.Tensor | None]) -> Any:
        """The operator's fake function: outputs without data, also for symbolic shapes."""
        device = self._call_device(tensors)
        checked = self._signature.check_call(self._construction, tuple(tensors))
        places = effects.effects_at(self.entry, checked.branch).results if not self._plain else None
        results = tuple(
            None
            if output is None
            else torch.empty(output.shape, dtype=output.dtype, device=device)
            if places is None or places[number] == FRESH
            else tensors[places[number]]
            for number, output in enumerate(checked.outputs)
        )
        return results[0] if len(results) == 1 else results

    def _composed(self, tensors: tuple[torch.Tensor | None, ...]) -> Any:
        """A call of a composite op: its check, then its own `forward`, which calls its stages, then the check of what
        that returned. A call like an earlier one has passed the first check.
        """
        if torch.compiler.is_dynamo_compiling():
            return self.forward(**dict(zip(self._input_names, tensors, strict=True)))  # the stages check their tensors
        key, plan = _composed_key(tensors), None
        if key is not None:
            plan = self._plan_of(key)
        if plan is None:
            plan = self._plan_composed(tensors)
            if key is not None:
                with self._lock:
                    self._plans.insert(key, plan)
        assert plan.run is not None
        result = plan.run(self, tensors)
        plan.used = True
        self._thread.plan = plan
        return result

    def _plan_composed(self, tensors: tuple[torch.Tensor | None, ...]) -> Plan:
        self._require_tensors(tensors)
        device = self._call_device(tensors)
        checked = self._signature.check_call(self._construction, tensors)
        dtype = next(tensor.dtype for tensor in tensors if tensor is not None)
        found = effects.effects_at(self.entry, checked.branch)

        def run(op: Any, tensors: tuple[torch.Tensor | None, ...]) -> Any:
            result = op.forward(**dict(zip(op._input_names, tensors, strict=True)))
            declared, source = op.entry.signature.outputs, "the composition"
            name = type(op).__name__
            targets.check_results(name, source, result, declared, checked.outputs, device, tensors, found)
            return result

        return Plan(run, CallRecord(checked, dtype, device, None))


def _composed_key(tensors: tuple[torch.Tensor | None, ...]) -> Hashable:
    """All that the check of a call looks at; None for tensors without such facts, which are nested or sparse or have
    symbolic sizes, and for what is no tensor.
    """
    try:
        key = tuple(
            [
                None if x is None else (x.shape, x.dtype, x.device, x.layout, x.is_contiguous() or x.stride())
                for x in tensors
            ]
        )
        hash(key)
    except (AttributeError, RuntimeError, TypeError):
        return None
    return key
