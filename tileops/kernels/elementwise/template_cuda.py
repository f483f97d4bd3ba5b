"""Elementwise kernels of two operands on CUDA: one template for every operator, dtype and layout.

An operator states a scalar function (in `_functions`) and how its operands look through the output's shape.
Axes that all operands walk with one step are merged first. Then a call is

* **dense**: one contiguous run for everybody, read in accesses of 16 bytes, 4 bytes or one element as
  addresses allow; or
* **strided**: accesses of 16 bytes along the innermost axis (or one element that broadcasts along it), or
  element by element where nothing else fits.

That makes seven compile classes; sizes, strides and scalars are arguments of the launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tileops.jit.program import Program
from tileops.kernels.base import Config, Kernel, Launch, TensorSpec, contiguous_strides
from tileops.kernels.cuda import VECTOR_BYTES, access_width, aligned, blocks_for, refuse_float_call
from tileops.kernels.layout import broadcast_strides, coalesce

_BODIES = "tileops.kernels.elementwise._pointwise_cuda"
#: Axes of the geometry of each strided class.
_VECTOR_AXES = (2, 4)
_ELEMENT_AXES = (4, 8)


@dataclass(frozen=True)
class Operand:
    """A tensor operand of the scalar function, seen through the output's shape.

    Attributes:
        strides: steps in elements along the output's axes, 0 where it broadcasts.
        alignment: bytes that its first address is a multiple of.
        argument: number of the launch tensor that holds it.
        offset: bytes from that tensor's first element to the operand's.
    """

    strides: tuple[int, ...]
    alignment: int
    argument: int
    offset: int = 0

    @classmethod
    def of(cls, spec: TensorSpec, output: TensorSpec, argument: int) -> Operand:
        """Launch tensor number `argument`, broadcast to the shape of `output`."""
        return cls(broadcast_strides(spec.shape, spec.strides, output.shape), spec.alignment, argument)


@dataclass(frozen=True)
class Plan:
    """How a call runs.

    Attributes:
        form: body in `_pointwise_cuda`: "dense" or "strided".
        width: bytes of an access.
        axes: axes of the geometry, 0 if dense.
        count: elements if dense, else accesses.
        geometry: see `lang.walk`.
    """

    form: str
    width: int
    axes: int
    count: int
    geometry: tuple[int, ...]


class ElementwiseCudaKernel(Kernel):
    """Base of the elementwise kernels of two operands."""

    devices = frozenset({"cuda"})
    threads: ClassVar[int] = 256

    @classmethod
    def function(cls, call: Any) -> str:
        """Name of the scalar function in `_functions`."""
        raise NotImplementedError(f"{cls.__name__} does not name its scalar function: define function(call)")

    @classmethod
    def operands(cls, call: Any) -> tuple[Operand, Operand]:
        """The two operands."""
        raise NotImplementedError(f"{cls.__name__} does not state its operands: define operands(call)")

    @classmethod
    def scalars(cls, call: Any) -> tuple[float, ...]:
        """Scalar parameters of the function, after its operands."""
        return ()

    @classmethod
    def refusal(cls, call: Any) -> str | None:
        reason = refuse_float_call(call, call.output)
        if reason is None and plan(call.output, *cls.operands(call)) is None:
            reason = f"the operands need more than {_ELEMENT_AXES[-1]} axes"
        return reason or super().refusal(call)

    @classmethod
    def programs(cls, call: Any, config: Config) -> dict[str, Program]:
        chosen = _planned(cls, call)
        scalars = len(cls.scalars(call))
        classes = {"axes": chosen.axes} if chosen.form == "strided" else {}
        program = Program.of(
            f"{_BODIES}:{chosen.form}",
            ["ptr"] * 3 + ["i64"] * (1 + len(chosen.geometry)) + ["f32"] * scalars,
            device="cuda",
            block=cls.threads,
            function=cls.function(call),
            dtype=call.output.short,
            width=chosen.width,
            scalars=scalars,
            **classes,
        )
        return {"main": program}

    def bind(self, call: Any) -> Launch:
        chosen = _planned(type(self), call)
        a, b = self.operands(call)
        per_access = chosen.width // call.output.itemsize if chosen.form == "dense" else 1
        grid = blocks_for(-(-chosen.count // per_access), self.threads)
        launch, device = self.entries["main"].launch, call.device.index
        rest = (chosen.count, *chosen.geometry, *map(np.float32, self.scalars(call)))

        def run(*tensors: Any) -> None:
            launch(
                grid,
                tensors[a.argument].data_ptr() + a.offset,
                tensors[b.argument].data_ptr() + b.offset,
                tensors[-1].data_ptr(),
                *rest,
                device=device,
            )

        return run


def _planned(kernel: type[ElementwiseCudaKernel], call: Any) -> Plan:
    chosen = plan(call.output, *kernel.operands(call))
    if chosen is None:
        raise ValueError(f"{kernel.__name__} refuses this call: {kernel.refusal(call)}")
    return chosen


def plan(output: TensorSpec, a: Operand, b: Operand) -> Plan | None:
    """The plan of a call, or None for operands with too many axes.

    Args:
        output: contiguous.
        a: first operand.
        b: second operand.
    """
    itemsize, total = output.itemsize, output.numel
    if total == 0:
        return Plan("dense", VECTOR_BYTES, 0, 0, ())
    sizes, (a_steps, b_steps, _) = coalesce(output.shape, a.strides, b.strides, contiguous_strides(output.shape))
    bases = [output.alignment, aligned(a.alignment, a.offset), aligned(b.alignment, b.offset)]
    if len(sizes) == 1 and a_steps == b_steps == (1,):
        return Plan("dense", access_width(itemsize, bases), 0, total, ())
    width = itemsize
    if len(sizes) <= _VECTOR_AXES[-1] and _takes_vectors(itemsize, sizes, bases, (a_steps, b_steps)):
        width = VECTOR_BYTES
    choices = _VECTOR_AXES if width == VECTOR_BYTES else _ELEMENT_AXES
    axes = next((count for count in choices if count >= len(sizes)), None)
    if axes is None:
        return None
    geometry: list[int] = []
    for axis in reversed(range(len(sizes))):
        innermost = axis == len(sizes) - 1
        per_access = width // itemsize if innermost else 1
        geometry += [sizes[axis] // per_access]
        geometry += [steps[axis] * itemsize * per_access for steps in (a_steps, b_steps)]
    geometry += [1, 0, 0] * (axes - len(sizes))
    return Plan("strided", width, axes, total * itemsize // width, tuple(geometry))


def _takes_vectors(
    itemsize: int, sizes: tuple[int, ...], bases: list[int], operands: tuple[tuple[int, ...], ...]
) -> bool:
    """Whether the innermost axis can be read in accesses of 16 bytes: whole ones, at aligned addresses, of
    elements that are neighbours (or of one that broadcasts).
    """
    output_base, *operand_bases = bases
    if (sizes[-1] * itemsize) % VECTOR_BYTES or output_base < VECTOR_BYTES:
        return False
    for base, steps in zip(operand_bases, operands, strict=True):
        if steps[-1] == 0:
            continue
        if steps[-1] != 1 or base < VECTOR_BYTES or any(step * itemsize % VECTOR_BYTES for step in steps[:-1]):
            return False
    return True
