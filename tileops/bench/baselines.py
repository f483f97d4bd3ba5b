"""The registered baselines of an operator, made ready for one case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from tileops.bench.runner import Implementation, Runner
from tileops.workloads import workload

#: Names with a meaning of their own; others are looked up in the operator's workload.
TORCH = "torch"
TORCH_COMPILE = "torch-compile"


def registered(op: str) -> list[str]:
    """Names that ``--against`` accepts for an operator."""
    item = workload(op)
    return [TORCH, TORCH_COMPILE, *item.baselines] if item.torch else list(item.baselines)


def select(
    runner: Runner, names: Sequence[str]
) -> tuple[dict[str, Implementation], dict[str, list[str]], dict[str, str]]:
    """Implementations for the wanted baselines of a runner's case.

    Returns:
        The implementations by name; the groups of them that one name stands for; and why a wanted baseline is
        missing.
    """
    item = workload(runner.case.op)
    found: dict[str, Implementation] = {}
    formulated = partial(Implementation, noncomparable_reason=item.unlike)
    groups: dict[str, list[str]] = {}
    missing: dict[str, str] = {}
    for name in names:
        if name == TORCH:
            groups[TORCH] = list(item.torch)
            for label, formulation in item.torch.items():
                found[label] = formulated(partial(formulation, **runner.case.params))
        elif name == TORCH_COMPILE:
            first = next(iter(item.torch.values()), None)
            if first is None:
                missing[name] = "no torch formulation is registered"
            else:
                found[name] = formulated(compiled(partial(first, **runner.case.params)))
        elif name in item.baselines:
            try:
                found[name] = _prepared(runner, item.baselines[name])
            except NotImplementedError as error:
                missing[name] = str(error)
        else:
            missing[name] = "not registered for this operator"
    return found, groups, missing


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` through torch.compile with static shapes, with nothing left of earlier compiles.

    Without the reset Dynamo stops compiling after eight variants of one code object, and times eager code
    instead.
    """
    torch._dynamo.reset()

    def call(*tensors: Any) -> Any:
        return function(*tensors)

    return torch.compile(call, dynamic=False)


def _prepared(runner: Runner, prepare: Callable[..., Callable[[], Any]]) -> Implementation:
    calls = [prepare(*tensors, **runner.case.params) for tensors in runner.input_sets]
    return Implementation(lambda call: call(), args=[(call,) for call in calls])
