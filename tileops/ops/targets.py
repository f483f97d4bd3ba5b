"""Running a call on a target's kernel: building it, and holding its results to the entry."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from tileops.backend import registry
from tileops.backend.protocol import BUILTIN, BuildKernel, TargetKernel
from tileops.errors import BackendError, OpNotAvailableError
from tileops.kernels.base import TensorSpec
from tileops.manifest.signature import OUT
from tileops.ops.effects import FRESH, Effects
from tileops.ops.plans import Run

_CPU = torch.device("cpu")


def builder_of(op: str, target: str) -> BuildKernel:
    """How `target` builds its kernel of an op.

    Raises:
        OpNotAvailableError: the target does not serve the op.
    """
    builder = registry.builder_of(op, target)
    if builder is None:
        raise OpNotAvailableError(
            f"{op}: target {target!r} has no kernel for this op; construct the op with target='builtin' or "
            f"extend the target"
        )
    return builder


def build(
    op: str,
    target: str,
    builder: BuildKernel,
    specs: Sequence[TensorSpec | None],
    params: Mapping[str, Any],
) -> TargetKernel:
    """Asks `target` for its kernel.

    Raises:
        OpNotAvailableError: the target declines these inputs.
        BackendError: it returns something that cannot be called.
    """
    kernel = builder(*specs, **params)
    if kernel is None:
        shown = ", ".join(str(spec) for spec in specs)
        raise OpNotAvailableError(
            f"{op}: target {target!r} declines the inputs ({shown}); construct the op with target='builtin'"
        )
    if not callable(kernel):
        raise BackendError(f"{op}: target {target!r} built {kernel!r}, which cannot be called")
    return kernel


def runner(
    op: str,
    target: str,
    kernel: TargetKernel,
    declared: Collection[str],
    checked: Any,
    device: torch.device,
    names: Sequence[str],
    effects: Effects | None = None,
) -> Run:
    """A plan's function: inputs made contiguous unless they are written, the target's kernel, the output checks.

    Args:
        op: name of the op.
        target: name of the target.
        kernel: what it built.
        declared: names of the outputs of the entry.
        checked: the checked call.
        device: the call device.
        names: of the tensors of a call, in forward order.
        effects: what the call writes, None where nothing.
    """
    outputs = tuple(checked.outputs)
    written = set() if effects is None else set(effects.writes)
    optional_out = OUT in names

    def run(*tensors: torch.Tensor | None) -> Any:
        inputs = [
            tensor if tensor is None or place in written else tensor.contiguous()
            for place, tensor in enumerate(tensors)
        ]
        if optional_out:  # by keyword, and only where it was passed
            place = names.index(OUT)
            out = inputs[place]
            positional = [*inputs[:place], *inputs[place + 1 :]]
            result = kernel(*positional) if out is None else kernel(*positional, out=out)
        else:
            result = kernel(*inputs)
        check_results(op, f"target {target!r}", result, declared, outputs, device, inputs, effects)
        return result

    return run


def check_results(
    op: str,
    source: str,
    result: Any,
    declared: Collection[str],
    outputs: Sequence[Any],
    device: torch.device,
    inputs: Sequence[torch.Tensor | None],
    effects: Effects | None = None,
) -> None:
    """Holds what an implementation returned to the checked call.

    Args:
        op: name of the op.
        source: who returned it, for messages.
        result: one tensor, a tuple, or None.
        declared: names of the outputs of the entry.
        outputs: the outputs of the checked call.
        device: the call device.
        inputs: the tensors of the call in forward order.
        effects: what the call writes, None where nothing.

    Raises:
        BackendError: count, presence, shape, dtype, device or layout is wrong; an output that is ``out`` or an
            input is another tensor; or a new output shares memory with an input or another output.
    """
    found = result if isinstance(result, tuple) else () if result is None and not outputs else (result,)
    if len(found) != len(outputs):
        raise BackendError(f"{op}: outputs: {source} returned {len(found)} results, the entry declares {len(outputs)}")
    places = [FRESH] * len(outputs) if effects is None else effects.results
    storages = {_memory(tensor) for tensor in inputs if tensor is not None}
    for name, tensor, output, place in zip(declared, found, outputs, places, strict=True):
        where = f"{op}: outputs.{name}: {source} returned"
        if output is None:
            if tensor is not None:
                raise BackendError(f"{where} {type(tensor).__name__}; this call does not have the output, return None")
            continue
        _, shape, dtype = output
        if place != FRESH:
            passed = inputs[place]
            if tensor is not passed:
                raise BackendError(f"{where} another tensor; the result is the tensor that was passed to be written")
            if passed is not None and tuple(passed.shape) != tuple(shape):
                raise BackendError(f"{where} the passed tensor with shape {tuple(passed.shape)}; do not resize it")
            continue
        _check_result(where, tensor, tuple(shape), dtype, device)
        storage = _memory(tensor)
        if storage and storage in storages:
            raise BackendError(
                f"{where} a tensor that shares memory with an input or another output; return a fresh tensor"
            )
        storages.add(storage)


def _memory(tensor: torch.Tensor) -> int:
    """Where the memory of a tensor begins; 0 for a meta or an empty one, and for what stands for a tensor in a compiler
    or a transform.
    """
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return 0
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:
        return 0


def _check_result(where: str, tensor: Any, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise BackendError(f"{where} {type(tensor).__name__}, a tensor is needed")
    if tuple(tensor.shape) != shape:
        raise BackendError(f"{where} shape {tuple(tensor.shape)}, the entry gives {shape}")
    if tensor.dtype != dtype:
        raise BackendError(f"{where} {tensor.dtype}, the entry gives {dtype}")
    if tensor.device != device:
        raise BackendError(f"{where} a tensor on {tensor.device}, the call is on {device}")
    if not tensor.is_contiguous():
        raise BackendError(f"{where} strides {tuple(tensor.stride())}, outputs are contiguous")


def present(op: str, device: torch.device) -> torch.device:
    """`device`, which the ``device`` parameter of an op names.

    Raises:
        OpNotAvailableError: it is a GPU that this machine or this PyTorch has not.
    """
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise OpNotAvailableError(
            f"{op}: params.device: there is no {device}, PyTorch finds {torch.cuda.device_count()} CUDA GPUs; pass "
            f"another device, for example 'cpu'"
        )
    return device


def with_index(device: torch.device) -> torch.device:
    """`device` as tensors on it name it: a GPU with its number."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def device_without_tensors(op: str, target: str | None, kinds: Collection[str]) -> torch.device:
    """Where a call runs that has no tensor to follow: what the explicit or default target takes of the current GPU
    and the CPU, in this order.

    Args:
        op: name of the op.
        target: the op's target.
        kinds: kinds of device that the in-tree kernels run on.

    Raises:
        OpNotAvailableError: neither is there for it.
    """
    candidates = [_CPU]
    if torch.cuda.is_available():
        candidates.insert(0, with_index(torch.device("cuda")))
    chosen = registry.chosen_target(target)
    for device in candidates:
        if device.type in kinds if chosen in (None, BUILTIN) else registry.detects(chosen, device):
            return device
    raise OpNotAvailableError(
        f"{op}: no kernel runs on {' or '.join(str(device) for device in candidates)}; pass a tensor or a device, or "
        f"register a target"
    )
