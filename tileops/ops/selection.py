"""Which kernel serves a call: availability, refusals, the general fallback, declared preferences. Never a
silent fallback.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tileops.errors import DispatchError, OpNotAvailableError
from tileops.kernels.base import CallSpec, Kernel, KernelInterface, interface_of


@dataclass(frozen=True)
class Verdict:
    """What became of one implementation: for error messages and for ``tileops show OP --call``.

    Attributes:
        kernel: the implementation.
        outcome: "chosen", "unavailable" (device or architecture), "refused", or "outranked".
        reason: why, for every outcome but "chosen".
    """

    kernel: type[Kernel]
    outcome: Literal["chosen", "unavailable", "refused", "outranked"]
    reason: str = ""


def check_kernel_types(
    op: str, kernels: Mapping[str, type[Kernel]], interfaces: Mapping[str, type[KernelInterface]]
) -> dict[str, tuple[type[Kernel], ...]]:
    """Groups an op's kernels by call site and holds them to the rules of the declaration.

    Returns:
        For each call site its implementations, in declared order.

    Raises:
        TypeError: a class is no kernel, implements no interface of the op, or several.
        ValueError: an interface has several general kernels, or preferences that form a cycle or leave the
            interface.
    """
    by_interface: dict[type[KernelInterface], list[type[Kernel]]] = {face: [] for face in interfaces.values()}
    for key, kernel in kernels.items():
        if not (isinstance(kernel, type) and issubclass(kernel, Kernel)):
            raise TypeError(f"{op}: kernel_types[{key!r}] is {kernel!r}, not a subclass of tileops.kernels.Kernel")
        face = interface_of(kernel)
        if face not in by_interface:
            offered = ", ".join(sorted(known.__name__ for known in by_interface))
            raise TypeError(
                f"{op}: kernel_types[{key!r}] ({kernel.__name__}) implements {face.__name__}, the op calls {offered}"
            )
        by_interface[face].append(kernel)
    for face, found in by_interface.items():
        _check_group(op, face, found)
    return {site: tuple(by_interface[face]) for site, face in interfaces.items()}


def _check_group(op: str, face: type[KernelInterface], kernels: list[type[Kernel]]) -> None:
    general = [kernel.__name__ for kernel in kernels if kernel.general]
    if len(general) > 1:
        raise ValueError(
            f"{op}: {face.__name__} has {len(general)} general kernels ({', '.join(general)}), one at most"
        )
    for kernel in kernels:
        for beaten in kernel.preferred_over:
            if interface_of(beaten) is not face:
                raise ValueError(
                    f"{op}: {kernel.__name__}.preferred_over names {beaten.__name__}, which implements "
                    f"another interface"
                )
        if kernel in _beaten_by(kernel):
            raise ValueError(f"{op}: {kernel.__name__} is preferred over itself: preferred_over forms a cycle")


def _beaten_by(kernel: type[Kernel]) -> set[type[Kernel]]:
    """Everything that `kernel` is preferred over, followed through (it contains `kernel` itself only in a
    cycle).
    """
    found: set[type[Kernel]] = set()
    pending = list(kernel.preferred_over)
    while pending:
        beaten = pending.pop()
        if beaten not in found:
            found.add(beaten)
            pending.extend(beaten.preferred_over)
    return found


class KnownKernels:
    """The kernels that serve the calls of one site on one device, by compile class.

    Attributes:
        classify: the compile class of a call, None where an implementation that runs on the device does not say.
        chosen: the implementation that serves a class.
        kernels: the same, built with the default config.
        configured: what was built for a class and the items of a config.
    """

    __slots__ = ("chosen", "classify", "configured", "kernels")

    def __init__(self, kernels: Iterable[type[Kernel]], device: str) -> None:
        classes = [kernel.compile_class for kernel in kernels if device in kernel.devices]
        self.classify: Callable[[Any], Hashable] = classes[0] if len(classes) == 1 else _together(classes)
        self.kernels: dict[Hashable, Kernel] = {}
        self.chosen: dict[Hashable, type[Kernel]] = {}
        self.configured: dict[Hashable, Kernel] = {}


def _together(classes: Sequence[Callable[[Any], Hashable]]) -> Callable[[Any], Hashable]:
    def classify(call: Any) -> Hashable:
        found = tuple([compile_class(call) for compile_class in classes])
        return None if None in found or not found else found

    return classify


def explain(kernels: Iterable[type[Kernel]], call: CallSpec) -> list[Verdict]:
    """The verdict on each implementation. Exactly one is "chosen" unless the choice fails; then none or
    several are.
    """
    verdicts: dict[type[Kernel], Verdict] = {}
    accepted: list[type[Kernel]] = []
    for kernel in kernels:
        missing = _unavailable(kernel, call)
        refused = None if missing else kernel.refusal(call)
        if missing:
            verdicts[kernel] = Verdict(kernel, "unavailable", missing)
        elif refused is not None:
            verdicts[kernel] = Verdict(kernel, "refused", refused)
        else:
            verdicts[kernel] = Verdict(kernel, "chosen")
            accepted.append(kernel)
    if len(accepted) > 1:
        for loser, winner in _outranked(accepted):
            verdicts[loser] = Verdict(loser, "outranked", f"{winner.__name__} is preferred")
    return list(verdicts.values())


def _outranked(accepted: list[type[Kernel]]) -> Iterable[tuple[type[Kernel], type[Kernel]]]:
    for kernel in accepted:
        for other in accepted:
            if other is not kernel and (kernel in _beaten_by(other) or (kernel.general and not other.general)):
                yield kernel, other
                break


def _unavailable(kernel: type[Kernel], call: CallSpec) -> str | None:
    device = call.device
    if device.type not in kernel.devices:
        return f"runs on {', '.join(sorted(kernel.devices))}"
    archs = kernel.supported_archs
    if device.type == "cuda" and archs is not None and device.arch not in archs:
        return f"runs on {', '.join(sorted(archs))}"
    return None


def choose(op: str, site: str, kernels: Sequence[type[Kernel]], call: CallSpec) -> type[Kernel]:
    """The one implementation that serves `call`.

    Raises:
        OpNotAvailableError: no implementation runs on the device of the call.
        DispatchError: every available one refuses (the message lists the reasons), or several accept and none
            is preferred.
    """
    accepted = [kernel for kernel in kernels if _unavailable(kernel, call) is None and kernel.refusal(call) is None]
    if len(accepted) == 1:
        return accepted[0]
    verdicts = explain(kernels, call)
    chosen = [verdict.kernel for verdict in verdicts if verdict.outcome == "chosen"]
    if len(chosen) == 1:
        return chosen[0]
    place = call.device.type if call.device.arch is None else f"{call.device.type} ({call.device.arch})"
    if len(chosen) > 1:
        names = ", ".join(kernel.__name__ for kernel in chosen)
        raise DispatchError(
            f"{op}: {site}: several kernels accept the call and none is preferred: {names}. Call: "
            f"{call.describe()}. "
            f"Declare preferred_over on one of them"
        )
    if all(verdict.outcome == "unavailable" for verdict in verdicts):
        offered = "; ".join(f"{verdict.kernel.__name__} {verdict.reason}" for verdict in verdicts) or "it has no kernel"
        raise OpNotAvailableError(
            f"{op}: {site}: no kernel runs on {place} ({offered}). Move the tensors to a device that has "
            f"one, or register a target"
        )
    reasons = _refusals(verdicts)
    raise DispatchError(
        f"{op}: {site}: no kernel serves this call on {place}. {reasons}. Call: {call.describe()}. "
        f"Change what the reasons name"
    )


def _refusals(verdicts: list[Verdict]) -> str:
    shown: dict[str, Any] = {v.kernel.__name__: v.reason for v in verdicts if v.outcome == "refused"}
    return "; ".join(f"{name}: {reason}" for name, reason in shown.items())
