"""The registered targets of this process and the choice among them."""

from __future__ import annotations

import importlib.metadata
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tileops.backend.protocol import BUILTIN, BuildKernel, Detector, Target
from tileops.errors import AmbiguousTargetError, BackendError, UnknownTargetError, warn
from tileops.kernels.base import Kernel

if TYPE_CHECKING:
    import torch

ENTRY_POINT_GROUP = "tileops.backends"


@dataclass
class _Registry:
    """Everything that targets registered. Copied before a backend is imported, so that a failing import
    leaves no trace.
    """

    detectors: dict[Target, Detector] = field(default_factory=dict)
    builders: dict[tuple[str, Target], BuildKernel] = field(default_factory=dict)
    kernel_types: dict[str, dict[str, type[Kernel]]] = field(default_factory=dict)
    default: Target | None = None

    def copy(self) -> _Registry:
        kernel_types = {op: dict(found) for op, found in self.kernel_types.items()}
        return _Registry(dict(self.detectors), dict(self.builders), kernel_types, self.default)

    def targets(self) -> set[Target]:
        return {BUILTIN, *self.detectors, *(target for _, target in self.builders)}


_registry = _Registry()
_failures: dict[str, str] = {}
_lock = threading.RLock()
#: The backends are being imported; they have been.
_loading = _loaded = False
_listeners: list[Callable[[], None]] = []


def on_change(listener: Callable[[], None]) -> None:
    """Has `listener` called after another target may serve calls that name none."""
    _listeners.append(listener)


def _changed() -> None:
    for listener in _listeners:
        listener()


def register_detector(target: Target, detect: Detector) -> None:
    """Declares a target and the devices that it wants to serve when a call names no target.

    Args:
        target: its name.
        detect: ``detect(device) -> bool``.

    Raises:
        BackendError: the target is reserved or has a detector already, or `detect` is no function.
    """
    with _lock:
        _check_name(target)
        _check_callable(target, "detect", detect)
        if target in _registry.detectors:
            raise BackendError(f"target {target!r} has a detector already; register one per target")
        _registry.detectors[target] = detect
    _changed()


def register_kernel_builder(op: str, target: Target, build_kernel: BuildKernel) -> None:
    """Lets a target serve an op: its kernel replaces the op's own computation, after the generated checks.

    Args:
        op: manifest name, for example "RMSNormFwdOp".
        target: name of the target.
        build_kernel: ``build_kernel(*specs, **params) -> callable``; see
            `tileops.backend.protocol.BuildKernel`.

    Raises:
        BackendError: the target is reserved or serves the op already, or `build_kernel` is no function.
    """
    with _lock:
        _check_name(target)
        _check_callable(target, "build_kernel", build_kernel)
        if (op, target) in _registry.builders:
            raise BackendError(f"target {target!r} has a builder for {op} already; register one per op and target")
        _registry.builders[op, target] = build_kernel


def register_kernel_type(op: str, key: str, kernel: type[Kernel]) -> None:
    """Adds an in-tree kind of kernel to an op. Only instances built afterwards use it.

    Args:
        op: manifest name.
        key: a key that the op does not use yet.
        kernel: subclass of `tileops.kernels.Kernel` that implements one of the op's interfaces.

    Raises:
        BackendError: the key is taken.
    """
    with _lock:
        found = _registry.kernel_types.setdefault(op, {})
        if key in found:
            raise BackendError(
                f"{op}: kernel type {key!r} is registered already ({found[key].__name__}); choose another key"
            )
        found[key] = kernel


def kernel_types(op: str) -> dict[str, type[Kernel]]:
    """The kernels that `register_kernel_type` added to an op."""
    return dict(_registry.kernel_types.get(op, ()))


def set_default_target(target: Target | None) -> None:
    """Sets the target of ops that name none; None lets the detectors decide again.

    Raises:
        UnknownTargetError: no such target.
    """
    with _lock:
        if target is not None:
            check_target(target)
        _registry.default = target
    _changed()


def registered_targets() -> tuple[Target, ...]:
    """The names of all targets, `BUILTIN` first, the others sorted."""
    load_backends()
    return (BUILTIN, *sorted(_registry.targets() - {BUILTIN}))


def check_target(target: Target) -> Target:
    """Returns `target`.

    Raises:
        UnknownTargetError: no such target is registered.
    """
    load_backends()
    if not isinstance(target, str) or target not in _registry.targets():
        failed = f"; backends that failed to load: {', '.join(sorted(_failures))}" if _failures else ""
        raise UnknownTargetError(
            f"target {target!r} is not registered; registered are {', '.join(registered_targets())}{failed}. "
            f"Install or import the package that provides it"
        )
    return target


def select_target(op: str, target: Target | None, device: torch.device) -> Target:
    """The target of one call: the op's own, else the process default, else the one that detects the device,
    else `BUILTIN`.

    Raises:
        AmbiguousTargetError: several targets detect the device.
    """
    if target is not None:
        return target
    if _registry.default is not None:
        return _registry.default
    if not _registry.detectors:
        return BUILTIN
    found = [name for name, detect in _registry.detectors.items() if detect(device)]
    if len(found) > 1:
        raise AmbiguousTargetError(
            f"{op}: targets {', '.join(sorted(found))} all claim {device}; pass target= to the op or call "
            f"tileops.backend.set_default_target"
        )
    return found[0] if found else BUILTIN


def chosen_target(target: Target | None) -> Target | None:
    """The target that an op or the process names; None where detectors decide."""
    return _registry.default if target is None else target


def detects(target: Target, device: torch.device) -> bool:
    """Whether `target` declares that it serves `device`; one without a detector serves what it is given."""
    detect = _registry.detectors.get(target)
    return True if detect is None else detect(device)


def builder_of(op: str, target: Target) -> BuildKernel | None:
    """How `target` builds the op's kernel, or None where it does not serve the op."""
    return _registry.builders.get((op, target))


def load_failures() -> dict[str, str]:
    """Backends that failed to import, with the error text."""
    load_backends()
    return dict(_failures)


def load_backends() -> None:
    """Imports the packages of entry-point group ``tileops.backends``, once. Runs when the first op is
    constructed.
    """
    global _loading, _loaded
    if _loaded:
        return
    with _lock:  # other threads wait until every backend is there
        if _loaded or _loading:  # loading: a backend that is being imported may construct ops
            return
        _loading = True
        try:
            for point in _entry_points():
                _load_one(point.name, point.load)
        finally:
            _loading, _loaded = False, True


def _entry_points() -> list[importlib.metadata.EntryPoint]:
    """The group's entry points. `importlib.metadata.entry_points` parses those of every installed package, and every
    first call of a process waits for it.
    """
    found: dict[str, list[importlib.metadata.EntryPoint]] = {}
    for distribution in importlib.metadata.distributions():
        if ENTRY_POINT_GROUP in (distribution.read_text("entry_points.txt") or ""):
            # Of a package that is installed twice, the first on the path counts, as for imports.
            found.setdefault(distribution.name, list(distribution.entry_points.select(group=ENTRY_POINT_GROUP)))
    return [point for points in found.values() for point in points]


def _load_one(name: str, load: Callable[[], object]) -> None:
    """Imports one backend. A callable entry point is called; what a failing one had registered is taken
    back.
    """
    global _registry
    before = _registry.copy()
    try:
        found = load()
        if callable(found):
            found()
    except Exception as error:  # whatever a third-party import raises must not take our ops down
        _registry = before
        _failures[name] = f"{type(error).__name__}: {error}"
        warn(
            f"backend {name!r} did not load and is ignored: {_failures[name]}. Repair or uninstall the package that "
            "provides it",
            RuntimeWarning,
        )


def _check_name(target: Target) -> None:
    if target == BUILTIN:
        raise BackendError(f"target name {BUILTIN!r} is reserved for the kernels of this package; choose another")


def _check_callable(target: Target, what: str, function: object) -> None:
    if not callable(function):
        raise BackendError(f"{what} of target {target!r} must be a function, got {function!r}")


def _renew_lock() -> None:
    """In a forked child: a lock that another thread of the parent held would never be released."""
    global _lock, _loading, _loaded
    _lock = threading.RLock()
    _loading, _loaded = False, _loading or _loaded


os.register_at_fork(after_in_child=_renew_lock)
