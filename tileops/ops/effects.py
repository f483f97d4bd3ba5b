"""What a call writes, and which of its results are tensors of the caller.

An op without effect declarations reads its inputs and allocates its outputs. A declaration changes that for some
calls: an input is written (``mutated``), a result goes into ``out``, an output is the very input that was written
(``alias``), or there is no such output (``nullable``). Every combination that an entry can reach is one *effect
branch* with a torch operator of its own, whose schema says what it writes and which new tensors it returns.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tileops.errors import CheckError
from tileops.manifest.signature import OUT

if TYPE_CHECKING:
    from tileops.manifest.branch import Branch
    from tileops.manifest.entry import Entry

#: In place of the position of a caller's tensor: the call allocates the result, or has none.
FRESH, ABSENT = -1, -2

#: How hard NumPy may look for two strided tensors that share an element before we take it that they do.
_OVERLAP_WORK = 100_000


@dataclass(frozen=True)
class Effects:
    """One effect branch.

    Attributes:
        suffix: what its torch operator is called besides the op's name.
        writes: positions, in forward order, of the tensors that a call writes, ``out`` included.
        results: for each declared output the position of the tensor that it is, `FRESH` or `ABSENT`.
    """

    suffix: str
    writes: tuple[int, ...]
    results: tuple[int, ...]

    @property
    def fresh(self) -> int:
        """How many tensors a call allocates."""
        return self.results.count(FRESH)

    def only_fresh(self, result: Any) -> Any:
        """Of what the op returns, what its torch operator returns: the new tensors."""
        results = result if isinstance(result, tuple) else (result,)
        new = [item for item, place in zip(results, self.results, strict=False) if place == FRESH]
        return None if not new else new[0] if len(new) == 1 else tuple(new)


def has_effects(entry: Entry) -> bool:
    """Whether some call writes a tensor of the caller or lacks an output."""
    signature = entry.signature
    return any(decl.mutated is not None for decl in signature.inputs.values()) or any(
        decl.buffer or decl.nullable is not None for decl in signature.outputs.values()
    )


def effects_at(entry: Entry, branch: Branch) -> Effects:
    """The effects of the calls of one branch of the signature."""
    written = {name for name in entry.signature.inputs if name in branch.written}
    return _effects(entry, written, bool(branch.facts.present.get(OUT)), set(branch.outputs))


def possible_effects(entry: Entry) -> tuple[Effects, ...]:
    """Every effect branch of an entry, each once. Conditions that are written alike hold together; otherwise any
    combination counts.
    """
    signature = entry.signature
    conditions = {
        str(getattr(condition, "source", condition))
        for condition in (
            *(decl.mutated for decl in signature.inputs.values()),
            *(decl.nullable for decl in signature.outputs.values()),
        )
        if condition is not None and condition is not True
    }
    names = sorted(conditions) + ([OUT] if signature.buffered is not None else [])
    found: dict[Effects, None] = {}
    for values in itertools.product((False, True), repeat=len(names)):
        holds = dict(zip(names, values, strict=True))

        def applies(condition: Any, holds: dict[str, bool] = holds) -> bool:
            return condition is True or holds[str(getattr(condition, "source", condition))]

        written = {n for n, decl in signature.inputs.items() if decl.mutated is not None and applies(decl.mutated)}
        outputs = {n for n, decl in signature.outputs.items() if decl.nullable is None or applies(decl.nullable)}
        found[_effects(entry, written, holds.get(OUT, False), outputs)] = None
    return tuple(found)


def _effects(entry: Entry, written: set[str], out: bool, outputs: set[str]) -> Effects:
    signature = entry.signature
    order = signature.forward_order
    results = []
    for name, decl in signature.outputs.items():
        if name not in outputs:
            results.append(ABSENT)
        elif decl.buffer and out:
            results.append(order.index(OUT))
        elif decl.alias is not None and decl.alias in written:
            results.append(order.index(decl.alias))
        else:
            results.append(FRESH)
    parts = [f"_writes_{'_'.join(name for name in order if name in written)}"] if written else []
    parts += ["_out"] if out else []
    missing = [name for name in signature.outputs if name not in outputs]
    parts += [f"_without_{'_'.join(missing)}"] if missing else []
    places = tuple(place for place, name in enumerate(order) if name in written or (name == OUT and out))
    return Effects("".join(parts), places, tuple(results))


def output_specs(checked: Any, found: Effects | None) -> list[Any]:
    """What becomes of each output: shape and dtype of a new tensor, the position of the caller's, or None."""
    if found is None:
        return [None if output is None else (tuple(output.shape), output.dtype) for output in checked.outputs]
    return [
        None if output is None else (tuple(output.shape), output.dtype) if place == FRESH else place
        for output, place in zip(checked.outputs, found.results, strict=True)
    ]


# Written tensors


def check_written(op: str, names: Sequence[str], tensors: Sequence[torch.Tensor | None], effects: Effects) -> None:
    """Holds the tensors that a call writes to what writing needs: no element twice, none that another tensor of
    the call has, and no inference tensor outside of inference mode.

    Raises:
        CheckError: an element of a written tensor has several indices, or belongs to another tensor as well; or the
            tensor was made in inference mode, which is over.
    """
    for place in effects.writes:
        tensor = tensors[place]
        if tensor is None:
            continue
        where = "outputs.out" if names[place] == OUT else f"inputs.{names[place]}"
        if tensor.is_inference() and not torch.is_inference_mode_enabled():
            raise CheckError(
                op,
                where,
                f"{names[place]} is written, but it was made under torch.inference_mode(), where writes are not "
                f"counted; call the op under inference mode too, or pass {names[place]}.clone()",
            )
        twice = any(size > 1 and step == 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        if twice and tensor.numel():
            raise CheckError(
                op,
                where,
                f"{names[place]} is written, but some of its elements share one memory location (strides "
                f"{list(tensor.stride())}); pass a tensor that owns its elements, for example .clone()",
            )
        for other_place, other in enumerate(tensors):
            if other is not None and other_place != place and _share(tensor, other):
                raise CheckError(
                    op,
                    where,
                    f"{names[place]} is written and shares memory with {names[other_place]}; pass a tensor of its "
                    f"own, for example {names[place]}.clone()",
                )


def _share(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have an element in common."""
    if a.device != b.device or a.device.type == "meta" or not a.numel() or not b.numel():
        return False
    first, second = _extent(a), _extent(b)
    if first[1] <= second[0] or second[1] <= first[0]:
        return False
    try:
        return np.shares_memory(_array(a), _array(b), max_work=_OVERLAP_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    start = tensor.data_ptr()
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()


class _Memory:
    """A tensor's memory as NumPy describes arrays; only its layout is looked at, never an element."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.element_size()
        # The step of an axis of one element may be anything, and too many bytes for NumPy.
        steps = (step * (extent > 1) for extent, step in zip(tensor.shape, tensor.stride(), strict=True))
        self.__array_interface__ = {
            "version": 3,
            "data": (tensor.data_ptr(), False),
            "typestr": f"|V{size}",
            "shape": tuple(tensor.shape),
            "strides": tuple(step * size for step in steps),
        }


def _array(tensor: torch.Tensor) -> np.ndarray:
    return np.asarray(_Memory(tensor))


def writing(
    op: str, names: Sequence[str], effects: Effects, run: Callable[..., Any], check: bool = True
) -> Callable[..., Any]:
    """`run`, which writes tensors of the caller, with its checks before and the tensors' versions counted after."""

    def checked(*tensors: torch.Tensor | None) -> Any:
        if check:
            check_written(op, names, tensors, effects)
        result = run(*tensors)
        for place in effects.writes:
            tensor = tensors[place]
            if tensor is not None and not tensor.is_inference():
                torch.autograd.graph.increment_version(tensor)
        return result

    return checked
