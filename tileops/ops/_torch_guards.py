"""When may a call skip torch's dispatcher? The one module of `tileops.ops` that reads private names of torch.

A call on plain tensors launches its kernel directly, which saves several microseconds. That is only right
while nothing has to see the call: no dispatch mode, no functorch transform, no `torch.jit.trace`, no
profiler, no autocast. Torch answers these questions cheaply through private functions. They were read in
torch 2.13; each is checked at start-up for the two answers that matter. If one is missing, has changed, or
torch is outside `SUPPORTED`, every call takes the dispatcher, which is slower and always right.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from tileops.jit.cpu._torch_tensors import outside

#: Versions of torch, first inclusive and last exclusive, in which these names were checked.
SUPPORTED = ((2, 13), (2, 15))

_NAMES: dict[str, tuple[str, ...]] = {
    "mode_depth": ("_C", "_len_torch_dispatch_stack"),
    "transform": ("_C", "_functorch", "peek_interpreter_stack"),
    "tracing": ("_C", "_is_tracing"),
    "profiling": ("_C", "_autograd", "_profiler_enabled"),
    "autocast": ("_C", "_is_any_autocast_enabled"),
    "forward_ad": ("autograd", "forward_ad"),  # its _current_level
    "is_zero": ("Tensor", "_is_zerotensor"),
    "TensorGuards": ("_C", "_dynamo", "guards", "TensorGuards"),
}

_log = logging.getLogger("tileops.ops")

#: Whatever the defaults of the program are that imports this.
_zeros = partial(torch.zeros, dtype=torch.float32, device="cpu")


@dataclass(frozen=True)
class Guards:
    """The test that generated call functions inline.

    Attributes:
        expression: Python source that is true where a call on plain tensors may skip the dispatcher.
        names: the globals that `expression` and `quick` read.
        quick: what is left to test where a `tensor_check` fits; None where there is no such check.
        reason: why the expression is constantly false, or None.
    """

    expression: str
    names: dict[str, Any] = field(default_factory=dict)
    quick: str | None = None
    reason: str | None = None


def _lookup(path: tuple[str, ...]) -> Any:
    found: Any = torch
    for name in path:
        found = getattr(found, name)
    return found


def _self_check(names: dict[str, Any]) -> str | None:
    """What answers wrongly, or None. Compares the answers with and without each thing that they detect."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Passive(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    depth = names["mode_depth"]()
    with Passive():
        if names["mode_depth"]() != depth + 1:
            return "mode_depth does not count dispatch modes"

    seen = []

    def probe(value: torch.Tensor) -> torch.Tensor:
        seen.append(names["transform"]())
        return value

    torch.func.vmap(probe)(_zeros(1))
    if not seen or seen[0] is None:
        return "transform does not see vmap"

    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=True):
        if not names["autocast"]():
            return "autocast does not see torch.autocast"
    if not isinstance(names["forward_ad"]._current_level, int):
        return "forward_ad has no level"
    if not isinstance(names["tracing"](), bool) or not isinstance(names["profiling"](), bool):
        return "tracing or profiling is no longer a flag"
    return _check_tensor_check(Passive)


def tensor_check(tensors: Sequence[torch.Tensor], sizes: bool = True) -> Callable[..., bool]:
    """A function that is true for tensors of the same types, dtypes, devices, sizes and strides and of the
    same `requires_grad`, in the same dispatch state, that is with the same modes, transforms and bits. It
    takes as many tensors as given here, and is false for a call that passes one of them twice. It does not
    see profilers, and neither fake nor proxy modes.

    Dynamo's own guard, which answers for two tensors in a tenth of the time that asking for their properties
    takes. It keeps no tensor alive.

    Args:
        tensors: what the function is true for.
        sizes: False: whatever their sizes and strides are, as long as they have as many axes.
    """
    checks = _lookup(_NAMES["TensorGuards"])(
        *tensors,
        dynamic_dims_sizes=[list(x.shape) if sizes else [None] * x.ndim for x in tensors],
        dynamic_dims_strides=[list(x.stride()) if sizes else [None] * x.ndim for x in tensors],
    )
    check: Callable[..., bool] = checks.check
    return check


def _check_tensor_check(passive: type) -> str | None:
    """What `tensor_check` does not see, or None."""
    sized = {"sizes": _zeros(2, 4), "strides": _zeros(3, 2).t()}
    return _check_check(passive, True, sized) or _check_check(passive, False, {"ranks": _zeros(2, 3, 1)})


def _check_check(passive: type, sizes: bool, sized: dict[str, torch.Tensor]) -> str | None:
    tensor = _zeros(2, 3)
    check = tensor_check([tensor], sizes)
    others = {
        **sized,
        "dtypes": tensor.double(),
        "devices": _zeros(2, 3, device="meta"),
        "subclasses": torch.nn.Parameter(tensor, requires_grad=False),
        "gradients": _zeros(2, 3, requires_grad=True),
        "neg bits": torch._neg_view(tensor),
        "conj bits": _zeros(2, 3, dtype=torch.complex64).conj(),
        "sparse tensors": _zeros(2, 3).to_sparse(),
        "None": None,
    }
    if check(_zeros(2, 3) if sizes else _zeros(5, 4).t()) is not True:
        return "TensorGuards refuses an equal tensor"
    for what, other in others.items():
        if check(other) is not False:
            return f"TensorGuards does not see {what}"
    seen = []

    def probe(value: torch.Tensor) -> torch.Tensor:
        seen.append(check(tensor))
        return value

    with passive():
        probe(tensor)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        probe(tensor)
    torch.func.vmap(probe)(_zeros(1))
    return "TensorGuards does not see modes" if any(seen) else None


def never_outermost(function: Any) -> bool:
    """Lets the compiler enter a function from the program that it compiles, and never compile it by itself: a program
    whose graph breaks at the function runs it as it is. False where torch cannot be told so.
    """
    try:
        frames: Any = torch._C._dynamo.eval_frame
        skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
        frames.set_code_exec_strategy(function.__code__, skip)
    except (AttributeError, TypeError):
        return False
    return True


def mark_constant(function: Any) -> None:
    """Makes the compiler call a function while it records, as `torch.compiler.assume_constant_result` does, which would
    import the compiler.
    """
    function._dynamo_marked_constant = True


def _load() -> Guards:
    other = outside(SUPPORTED)
    if other is not None:
        return Guards("False", reason=other)
    try:
        names = {name: _lookup(path) for name, path in _NAMES.items()}
    except AttributeError as error:
        return Guards("False", reason=f"torch {torch.__version__}: {error}")
    try:
        with torch.autocast("cpu", enabled=False):  # the program may import this under its own
            wrong = _self_check(names)
    except Exception as error:  # whatever a changed private function raises
        wrong = f"{type(error).__name__}: {error}"
    if wrong is not None:
        return Guards("False", reason=f"torch {torch.__version__}: {wrong}")
    return Guards(
        "not (mode_depth() or transform() is not None or tracing() or profiling() or autocast())"
        " and forward_ad._current_level < 0",
        names,
        quick="not (mode_depth() or profiling()) and forward_ad._current_level < 0",
    )


_guards: Guards | None = None


def guards() -> Guards:
    """The guards of this process; looked up and checked once."""
    global _guards
    if _guards is None:
        _guards = _load()
        if _guards.reason is not None:
            _log.warning("calls take torch's dispatcher, which is slower: %s", _guards.reason)
    return _guards
