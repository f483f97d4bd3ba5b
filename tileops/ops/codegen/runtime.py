"""What generated checks call at run time, and what they return. Safe on symbolic sizes: no truth value of one
is taken here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from tileops.errors import CheckError
from tileops.manifest.expr.evaluation import UNDEFINED

Condition = Any  # bool or torch.SymBool


class Output(NamedTuple):
    """An output as the signature determines it, before anything is allocated."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


#: Values of the solved indices, shapes of the inputs that were passed, shapes of the outputs, whether all inputs are
#: dense.
Sizes = tuple[tuple[Any, ...], tuple[tuple[int, ...], ...], tuple[tuple[int, ...] | None, ...], bool]


class Checked:
    """A call that passed its checks.

    Attributes:
        branch: the branch of the signature that the call is on.
        indices: parameters, solved indices and lets by name; dtypes by name, as roofline formulas read them.
        inputs: ``name -> (shape, dtype name)`` of construction-time tensors and of the inputs passed.
        outputs: one `Output` per declared output, None where a nullable one is absent.
        written: inputs that the call writes, ``out`` included.
        device: the device of the call; None without a tensor that decides it.
    """

    __slots__ = ("branch", "device", "indices", "inputs", "outputs", "written")

    def __init__(
        self,
        branch: Any,
        indices: dict[str, Any],
        inputs: dict[str, tuple[tuple[int, ...], str]],
        outputs: tuple[Output | None, ...],
        written: tuple[str, ...],
        device: torch.device | None,
    ) -> None:
        self.branch = branch
        self.indices = indices
        self.inputs = inputs
        self.outputs = outputs
        self.written = written
        self.device = device

    def __repr__(self) -> str:
        shown = ", ".join(
            "None" if item is None else f"{item.name}: {item.dtype} {list(item.shape)}" for item in self.outputs
        )
        return f"<Checked {shown}>"


class SizeCheck:
    """The check of the sizes of calls whose other facts are known to fit the entry, see `codegen.sizes`.

    Attributes:
        accept: ``accept(*signature)``: what a call was found to be, or None where the whole check has to say what is
            wrong with it.
        outputs: name and dtype of each output, None where a nullable one is absent.
        inputs: name and dtype name of each input that is passed.
    """

    __slots__ = ("_branch", "_constants", "_device", "_solved", "accept", "inputs", "outputs")

    def __init__(
        self,
        accept: Callable[..., Sizes | None],
        branch: Any,
        constants: dict[str, Any],
        solved: tuple[str, ...],
        inputs: tuple[tuple[str, str], ...],
        outputs: tuple[tuple[str, torch.dtype] | None, ...],
        device: torch.device | None,
    ) -> None:
        self.accept = accept
        self.inputs = inputs
        self.outputs = outputs
        self._branch = branch
        self._constants = constants
        self._solved = solved
        self._device = device

    def indices(self, found: Sizes) -> dict[str, Any]:
        """`Checked.indices` of a call that was accepted."""
        return {**self._constants, **dict(zip(self._solved, found[0], strict=True))}

    def checked(self, found: Sizes) -> Checked:
        """What the whole check returns for a call that was accepted."""
        inputs = {name: (shape, dtype) for (name, dtype), shape in zip(self.inputs, found[1], strict=True)}
        outputs = tuple(
            None if known is None or shape is None else Output(known[0], shape, known[1])
            for known, shape in zip(self.outputs, found[2], strict=True)
        )
        return Checked(self._branch, self.indices(found), inputs, outputs, (), self._device)


def settle(ok: Condition, report: Callable[..., CheckError], *values: Any) -> None:
    """Raises ``report(*values)`` where `ok` does not hold. A symbolic condition becomes an assertion of the
    traced graph.

    Generated code calls this only where ``ok is not True``.
    """
    if isinstance(ok, torch.SymBool):
        error = report(*values)
        message = str(error)
        try:
            torch._check(ok, lambda: message)
        except RuntimeError:
            raise error from None
    elif not ok:
        raise report(*values)


def either(first: Condition, rest: Callable[[], Condition]) -> Condition:
    """``first or rest()``, also where `first` is symbolic; then `first` must hold where `rest` has no value."""
    if isinstance(first, torch.SymBool):
        try:
            return first | rest()
        except UNDEFINED:
            return first
    return True if first else rest()


def both(first: Condition, rest: Callable[[], Condition]) -> Condition:
    """``first and rest()``, also where `first` is symbolic."""
    if isinstance(first, torch.SymBool):
        return first & rest()
    return rest() if first else False


def negation(condition: Condition) -> Condition:
    """``not condition``, also where it is symbolic."""
    return torch.sym_not(condition) if isinstance(condition, torch.SymBool) else not condition


def choose(condition: Condition, when: Callable[[], Any], unless: Callable[[], Any]) -> Any:
    """``when() if condition else unless()``; both where `condition` is symbolic."""
    if not isinstance(condition, torch.SymBool):
        return when() if condition else unless()
    first, second = when(), unless()
    if isinstance(first, bool | torch.SymBool) and isinstance(second, bool | torch.SymBool):
        return (condition & first) | (torch.sym_not(condition) & second)
    return torch.sym_ite(condition, first, second)


def member(value: Any, items: Sequence[Any]) -> Condition:
    """``value in items``, also where a comparison is symbolic."""
    result: Condition = False
    for item in items:
        equal = same(value, item) if isinstance(value, list | tuple) else value == item
        if equal is True:
            return True
        if equal is not False:
            result = equal if result is False else result | equal
    return result


def same(left: Sequence[Any], right: Sequence[Any]) -> Condition:
    """Whether two sequences of sizes are equal, element by element."""
    if len(left) != len(right):
        return False
    result: Condition = True
    for a, b in zip(left, right, strict=True):
        equal = a == b
        if equal is True:
            continue
        if equal is False:
            return False
        result = equal if result is True else result & equal
    return result


def non_negative(value: Any) -> Condition:
    """Whether a size, or every size of a sequence, is not negative."""
    if isinstance(value, list | tuple):
        result: Condition = True
        for size in value:
            holds = size >= 0
            if holds is False:
                return False
            if holds is not True:
                result = holds if result is True else result & holds
        return result
    return value >= 0
