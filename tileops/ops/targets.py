"""Running a call on a target's kernel: building it, and holding its results to the entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tileops.backend import registry
from tileops.backend.protocol import BuildKernel, TargetKernel
from tileops.errors import BackendError, OpNotAvailableError
from tileops.kernels.base import TensorSpec
from tileops.ops.plans import Run


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


def runner(op: str, kernel: TargetKernel, checked: Any, device: torch.device) -> Run:
    """A plan's function: contiguous inputs, the target's kernel, the output checks."""
    outputs = tuple(checked.outputs)

    def run(*tensors: torch.Tensor | None) -> Any:
        inputs = [None if tensor is None else tensor.contiguous() for tensor in tensors]
        result = kernel(*inputs)
        check_results(op, result, outputs, device, inputs)
        return result

    return run


def check_results(
    op: str, result: Any, outputs: Sequence[Any], device: torch.device, inputs: Sequence[torch.Tensor | None]
) -> None:
    """Holds what a target's kernel returned to the checked call.

    Raises:
        BackendError: count, presence, shape, dtype, device or layout is wrong, or an output shares memory
            with an input or another output.
    """
    found = result if isinstance(result, tuple) else () if result is None and not outputs else (result,)
    if len(found) != len(outputs):
        raise BackendError(
            f"{op}: outputs: the target returned {len(found)} results, the entry declares {len(outputs)}"
        )
    storages = {tensor.untyped_storage().data_ptr() for tensor in inputs if tensor is not None}
    for tensor, output in zip(found, outputs, strict=True):
        if output is None:
            if tensor is not None:
                raise BackendError(f"{op}: outputs: an output that this call does not have must be None")
            continue
        name, shape, dtype = output
        _check_result(f"{op}: outputs.{name}", tensor, tuple(shape), dtype, device)
        storage = tensor.untyped_storage().data_ptr()
        if storage and storage in storages:  # meta and empty tensors have none
            raise BackendError(
                f"{op}: outputs.{name}: shares memory with an input or another output; return a fresh tensor"
            )
        storages.add(storage)


def _check_result(where: str, tensor: Any, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise BackendError(f"{where}: the target returned {type(tensor).__name__}, a tensor is needed")
    if tuple(tensor.shape) != shape:
        raise BackendError(f"{where}: the target returned shape {tuple(tensor.shape)}, the entry gives {shape}")
    if tensor.dtype != dtype:
        raise BackendError(f"{where}: the target returned {tensor.dtype}, the entry gives {dtype}")
    if tensor.device != device:
        raise BackendError(f"{where}: the target returned a tensor on {tensor.device}, the call is on {device}")
    if not tensor.is_contiguous():
        raise BackendError(f"{where}: the target returned strides {tuple(tensor.stride())}, outputs are contiguous")
