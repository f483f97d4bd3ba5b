"""What an operator's result should be, what it competes with, and what to feed it.

One `Workload` per operator, in the module of its family; tests, benchmarks, tuner and demo all read this one
registry. References are oracles in float64 and say nothing about tolerances; baselines are what a user would
otherwise write or install.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tileops.manifest import load_entry

if TYPE_CHECKING:
    from torch import Tensor

#: Called like the operator: tensors in forward order (None where absent), construction parameters by keyword.
Formulation = Callable[..., Any]


@dataclass(frozen=True)
class Workload:
    """Reference and baselines of one operator.

    Every callable is called as ``fn(*tensors, **params)``: the tensors in forward order, None where the call
    has none, and every construction parameter by keyword with its default filled in. It returns one tensor,
    or a tuple in the order of the outputs.

    Attributes:
        op: name of the operator.
        reference: the oracle; computes in float64 (or exactly) and returns that dtype.
        torch: plain PyTorch formulations by a short name. The baseline ``torch`` of a case is the fastest of
            them; the first is also what ``torch-compile`` compiles.
        baselines: further baselines by name. Each is called once per set of inputs and returns the callable
            to time, which takes no arguments, so that packing or compiling is not timed; it may raise
            ``NotImplementedError`` with a reason where it does not apply to the call.
        cold: names of inputs that a real caller streams from memory (weights, KV caches): benchmarks cycle
            through copies of them that exceed the cache.
        unlike: why results of `torch` are not compared with the reference; None compares them.
        gen_inputs: replaces inputs drawn at random, by name, where plain random values are not a valid call:
            ``gen_inputs(tensors, params) -> dict of replacements``.
    """

    op: str
    reference: Formulation
    torch: Mapping[str, Formulation] = field(default_factory=dict)
    baselines: Mapping[str, Callable[..., Callable[[], Any]]] = field(default_factory=dict)
    cold: tuple[str, ...] = ()
    unlike: str | None = None
    gen_inputs: Callable[[dict[str, Tensor | None], dict[str, Any]], dict[str, Tensor]] | None = None


def workload(op: str) -> Workload:
    """The workload of the operator named `op`, from ``tileops.workloads.<family>``.

    Raises:
        KeyError: its family's module registers no workload for it.
    """
    family = load_entry(op).family
    module = importlib.import_module(f"tileops.workloads.{family}")
    for item in module.WORKLOADS:
        if item.op == op:
            return item
    raise KeyError(
        f"{op} has no workload: add its reference and baselines to WORKLOADS in tileops/workloads/{family}.py"
    )
