"""Where a call runs, and the construction-time tensors there."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch

from tileops.errors import CheckError
from tileops.ops import calling, targets
from tileops.ops.dtypes import dtype_of
from tileops.ops.facts import call_device


class Placing:
    """The part of `Op` that knows devices."""

    target: str | None
    _slots: ClassVar[tuple[calling.Slot, ...]]
    _held_slots: ClassVar[tuple[calling.Slot, ...]]
    _input_names: ClassVar[tuple[str, ...]]
    _construction: Any
    _held: dict[str, torch.Tensor | None]
    _held_copies: dict[Hashable, torch.Tensor]
    _all_kernel_types: Callable[..., dict[str, Any]]

    def _call_device(self, tensors: Sequence[torch.Tensor | None]) -> torch.device:
        """The device of a call: that of its tensors; without any, the ``device`` parameter, the construction-time
        tensors, what the target runs on, in this order.

        Raises:
            CheckError: the tensors that decide it lie on different devices.
        """
        cls = type(self)
        names = self._input_names
        if any(slot.cpu for slot in self._slots):
            kept = [place for place, slot in enumerate(self._slots) if not slot.cpu]
            names, tensors = tuple(names[place] for place in kept), tuple(tensors[place] for place in kept)
        device = call_device(cls.__name__, names, tensors)
        if device is not None:
            return device
        device = self._constructed_device
        if device is not None:
            return targets.with_index(device)
        return targets.device_without_tensors(cls.__name__, self.target, self._device_kinds)

    def _check_device_parameter(self) -> None:
        """Holds the ``device`` parameter, where there is one, to what names a device; whether it is there is found out
        by a call.

        Raises:
            CheckError: it names none.
        """
        chosen = self._construction.params.get("device")
        try:
            if chosen is not None:
                torch.device(chosen)
        except (RuntimeError, TypeError):
            wanted = "a torch.device or a name such as 'cpu' or 'cuda:0'"
            raise CheckError(type(self).__name__, "params.device", f"expected {wanted}, got {chosen!r}") from None

    @cached_property
    def _constructed_device(self) -> torch.device | None:
        """What construction says of the device of calls without tensors, which ask for it each time."""
        chosen = self._construction.params.get("device")
        if chosen is not None:
            return targets.present(type(self).__name__, torch.device(chosen))
        held = [slot.name for slot in self._held_slots if not slot.cpu and self._held[slot.name] is not None]
        return call_device(type(self).__name__, held, [self._held[name] for name in held], "params")

    @cached_property
    def _device_kinds(self) -> frozenset[str]:
        """Kinds of device that in-tree kernels of the op run on."""
        return frozenset(kind for kernel in self._all_kernel_types().values() for kind in kernel.devices)

    def _held_on(self, device: torch.device, checked: Any) -> list[torch.Tensor | None]:
        """The construction-time tensors on the call device, in the dtypes of the signature.

        Raises:
            CheckError: one is a meta tensor and the call is not.
        """
        found = []
        for slot in self._held_slots:
            tensor = self._held[slot.name]
            if tensor is not None and not slot.cpu:
                dtype = dtype_of(checked.inputs[slot.name][1])
                if (tensor.device, tensor.dtype) != (device, dtype):
                    key = slot.name, device, dtype
                    if tensor.is_meta and device.type != "meta":
                        raise CheckError(
                            type(self).__name__,
                            f"params.{slot.name}",
                            f"expected a tensor with data for a call on {device}, got one on meta; construct the "
                            "operator with the real tensor",
                        )
                    if key not in self._held_copies:
                        self._held_copies[key] = tensor.to(device, dtype)
                    tensor = self._held_copies[key]
            found.append(tensor)
        return found
