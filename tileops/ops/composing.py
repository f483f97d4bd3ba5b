"""Composite ops: an op whose call runs other ops, its *delegates*.

    class SharedExpertMLPFwdOp(Op):
        delegate_types = {"gate_up": GemmFwdOp, "activation": SiluAndMulFwdOp, "down": GemmFwdOp}

        def __init__(self, *, target=None):
            super().__init__(target=target)
            self._gate_up = self.delegate_for("gate_up")
            ...

        def forward(self, hidden_states, w_gate_up, w_down):
            return self._down(self._activation(self._gate_up(hidden_states, w_gate_up)), w_down)

The stages are those of ``composition`` in the manifest entry, in order. Delegates are made where the op is constructed,
so that a compiler traces calls alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from tileops.ops import dispatch

if TYPE_CHECKING:
    import torch

    from tileops.ops.base import Op


class Composing:
    """The part of `Op` that holds delegates."""

    delegate_types: ClassVar[Mapping[str, type[Op]]]
    target: str | None
    tune: bool

    def delegate_for(self, stage: str, /, **params: Any) -> Op:
        """The op that runs a stage, with these construction parameters and the target of this op. It is made on first
        request and held: equal parameters give the same op, which keeps its kernels.

        Args:
            stage: a key of `delegate_types`.
            **params: construction parameters of the delegate.

        Raises:
            KeyError: the class has no such stage.
            CheckError: the parameters violate the entry of the delegate.
        """
        if stage not in self.delegate_types:
            known = ", ".join(self.delegate_types) or "none"
            raise KeyError(f"{type(self).__name__}: no stage is called {stage!r}; delegate_types has {known}")
        held = self._delegates.setdefault(stage, {})
        key = dispatch.encode(params, self.target)
        delegate = held.get(key)
        if delegate is None:
            delegate = held.setdefault(key, self.delegate_types[stage](**params, target=self.target))
            if self.tune:
                delegate.request_tune()
        return delegate

    @property
    def _delegates(self) -> dict[str, dict[str, Op]]:
        return self.__dict__.setdefault("_delegates_held", {})

    @property
    def held_delegates(self) -> Mapping[str, tuple[Op, ...]]:
        """The delegates by stage, in the order of `delegate_types`; a stage has one for each set of parameters."""
        held = self._delegates
        return MappingProxyType({stage: tuple(held[stage].values()) for stage in self.delegate_types if stage in held})

    def kernel_delegates(self) -> tuple[Op, ...]:
        """The ops whose kernels this op runs; empty unless it is composite."""
        return tuple(delegate for stage in self.held_delegates.values() for delegate in stage)


def stage_calls(op: Op, tensors: Sequence[torch.Tensor | None]) -> list[tuple[Op, tuple[Any, ...]]]:
    """The calls that a call of a composite op makes of its delegates, each with its tensors.

    Args:
        op: an op that was never called.
        tensors: of one call in forward order, on the meta device: nothing is computed.
    """
    made: list[tuple[Op, tuple[Any, ...]]] = []
    for delegate in op.kernel_delegates():

        def plan_call(key: Any, given: tuple[Any, ...], *known: Any, delegate: Op = delegate) -> Any:
            made.append((delegate, given))
            return type(delegate)._plan_call(delegate, key, given, *known)

        object.__setattr__(delegate, "_plan_call", plan_call)
    try:
        op(*tensors)
    finally:
        for delegate in op.kernel_delegates():
            object.__delattr__(delegate, "_plan_call")
    return made
