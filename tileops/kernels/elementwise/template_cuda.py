"""Elementwise kernels on CUDA: one template for every operator, dtype and layout.

An operator states a scalar function and how its operands look through the output's shape. Axes are ordered as the
output lies in memory, and those that all tensors walk with one step are merged. Then a call is

* **dense**: one contiguous run for everybody. A thread takes a group of neighbouring elements: 16 bytes of the widest
  operand, 4 bytes of it or one element, as addresses allow. Narrower tensors have narrower accesses, wider ones
  several; or
* **strided**: the same groups along the innermost axis, of neighbours or of one element that broadcasts, or element by
  element where nothing else fits.

That makes seven compile classes of each function and dtype; sizes, strides and scalars are arguments of the launch.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tileops.jit.program import Program
from tileops.kernels.base import Config, Launch, TensorSpec
from tileops.kernels.cuda import VECTOR_BYTES, blocks_for, once, refuse_call, refused, walk_geometry
from tileops.kernels.elementwise.template import FLOATS, SIZES, ElementwiseKernel, whole
from tileops.kernels.layout import broadcast_strides, coalesce

_BODIES = "tileops.kernels.elementwise._pointwise_cuda"
#: Dtypes of operands and outputs.
ELEMENTS = (
    *("float32", "bfloat16", "float16"),
    *("int8", "int16", "int32", "int64", "uint8", "bool"),
)
#: Axes of the geometry of each strided class.
_GROUP_AXES = (2, 4)
_ELEMENT_AXES = (4, 8)


@dataclass(frozen=True)
class Operand:
    """A tensor as the scalar function sees it, through the output's shape.

    Attributes:
        dtype: short name, "bf16".
        strides: steps in elements along the output's axes, 0 where it broadcasts.
        alignment: bytes that its first address is a multiple of.
        argument: number of the launch tensor that holds it.
        offset: bytes from that tensor's first element to the operand's.
    """

    dtype: str
    strides: tuple[int, ...]
    alignment: int
    argument: int
    offset: int = 0

    @classmethod
    def of(cls, spec: TensorSpec, output: TensorSpec, argument: int) -> Operand:
        """Launch tensor number `argument`, broadcast to the shape of `output`."""
        strides = broadcast_strides(spec.shape, spec.strides, output.shape)
        return cls(spec.short, strides, spec.alignment, argument)

    @property
    def itemsize(self) -> int:
        return SIZES[self.dtype]

    @property
    def base(self) -> int:
        """Bytes, at most 16, that the address of its first element is a multiple of."""
        return math.gcd(self.alignment, self.offset, VECTOR_BYTES)


@dataclass(frozen=True)
class Plan:
    """How a call runs.

    Attributes:
        form: body in `_pointwise_cuda`: "dense" or "strided".
        group: elements that a thread takes at a time.
        axes: axes of the geometry, 0 if dense.
        count: elements if dense, else groups.
        geometry: see `lang.walk`.
    """

    form: str
    group: int
    axes: int
    count: int
    geometry: tuple[int, ...]

    @classmethod
    def of(cls, shape: Sequence[int], operands: Sequence[Operand], output: Operand) -> Plan | None:
        """The plan of a call, or None for one with too many axes.

        Args:
            shape: of the output.
            operands: those that are present.
            output: no two of its elements share memory.
        """
        tensors = (*operands, output)
        widest = max(tensor.itemsize for tensor in operands or tensors)
        full, total = VECTOR_BYTES // widest, math.prod(shape)
        if total == 0:
            return cls("dense", full, 0, 0, ())
        # Any order of the elements will do; that of the output's memory merges most axes of permuted tensors.
        order = sorted(range(len(shape)), key=lambda axis: output.strides[axis], reverse=True)
        sizes, steps = coalesce(
            [shape[axis] for axis in order], *([tensor.strides[axis] for axis in order] for tensor in tensors)
        )
        if len(sizes) == 1 and all(step == (1,) for step in steps):
            groups = [full, max(4 // widest, 1), 1]
            group = next(group for group in groups if all(_begins_aligned(tensor, group) for tensor in tensors))
            return cls("dense", group, 0, total, ())
        group = full if len(sizes) <= _GROUP_AXES[-1] and _takes_groups(full, sizes[-1], tensors, steps) else 1
        choices = _ELEMENT_AXES if group == 1 else _GROUP_AXES
        axes = next((count for count in choices if count >= len(sizes)), None)
        if axes is None:
            return None
        in_groups = [(*outer, inner * group) for *outer, inner in steps]
        itemsizes = [tensor.itemsize for tensor in tensors]
        geometry = walk_geometry((*sizes[:-1], sizes[-1] // group), in_groups, itemsizes, axes)
        return cls("strided", group, axes, total // group, geometry)


def _begins_aligned(tensor: Operand, group: int) -> bool:
    """Whether a group may be accessed at the tensor's first element."""
    return tensor.base % min(group * tensor.itemsize, VECTOR_BYTES) == 0


def _takes_groups(group: int, size: int, tensors: Sequence[Operand], steps: Sequence[tuple[int, ...]]) -> bool:
    """Whether an innermost axis of `size` elements falls into groups: whole ones, at aligned addresses, of elements
    that are neighbours (or of one that broadcasts).
    """
    if size % group or steps[-1][-1] != 1:
        return False
    for tensor, (*outer, inner) in zip(tensors, steps, strict=True):
        if inner == 0:
            continue
        width = min(group * tensor.itemsize, VECTOR_BYTES)
        if inner != 1 or tensor.base % width or any(step * tensor.itemsize % width for step in outer):
            return False
    return True


class ElementwiseCudaKernel(ElementwiseKernel):
    """Base of the elementwise kernels. A subclass adds its interface and states the operator.

    Attributes:
        threads: of a block.
    """

    devices = frozenset({"cuda"})
    threads: ClassVar[int] = 256

    @classmethod
    def refusal(cls, call: Any) -> str | None:
        reason = refuse_call(call, ELEMENTS)
        if reason is None and cls.cut(call)[1] is None:
            reason = f"the operands need more than {_ELEMENT_AXES[-1]} axes"
        return reason or super().refusal(call)

    @classmethod
    def compile_class(cls, call: Any) -> Hashable:
        operands, chosen = cls.cut(call)
        if chosen is None:
            return None
        return (
            cls.function(call),
            tuple([None if operand is None else operand.dtype for operand in operands]),
            call.output.dtype,
            tuple([value is not None for value in cls.scalars(call)]),
            cls.options(call),
            chosen.form,
            chosen.group,
            chosen.axes,
        )

    @classmethod
    def cut(cls, call: Any) -> tuple[tuple[Operand | None, ...], Plan | None]:
        """The operands of a call and its plan, which choosing, building and binding the kernel ask for in turn."""
        return once(call, ("cut", cls), lambda: cls._cut(call))

    @classmethod
    def _cut(cls, call: Any) -> tuple[tuple[Operand | None, ...], Plan | None]:
        operands, output = cls.operands(call), Operand.of(call.output, call.output, -1)
        return operands, Plan.of(call.output.shape, [item for item in operands if item is not None], output)

    @classmethod
    def known_operands(cls, call: Any) -> tuple[Operand | None, ...]:
        return cls.cut(call)[0]

    @classmethod
    def planned(cls, call: Any) -> tuple[tuple[Operand | None, ...], Plan]:
        """`cut` of a call that the kernel serves."""
        operands, chosen = cls.cut(call)
        if chosen is None:
            raise refused(cls, call)
        return operands, chosen

    @classmethod
    def programs(cls, call: Any, config: Config) -> dict[str, Program]:
        (operands, chosen), output = cls.planned(call), call.output.short
        inputs = tuple(None if operand is None else operand.dtype for operand in operands)
        values = zip(cls.scalars(call), cls.scalar_dtypes(call), strict=True)
        scalars = tuple(None if value is None else dtype for value, dtype in values)
        present = [dtype for dtype in inputs if dtype is not None]
        classes = {"axes": chosen.axes} if chosen.form == "strided" else {}
        program = Program.of(
            f"{_BODIES}:{chosen.form}",
            [
                "i64",
                *["ptr"] * (len(present) + 1),
                *["i64"] * len(chosen.geometry),
                *("f32" if dtype in FLOATS else "i64" for dtype in scalars if dtype is not None),
            ],
            device="cuda",
            block=cls.threads,
            function=cls.function(call),
            inputs=inputs,
            output=output,
            scalars=scalars,
            options=cls.options(call),
            group=chosen.group,
            # An operator of one tensor may be asked to write its result over it.
            in_place=present == [output],
            numbered=cls.numbered,
            **classes,
        )
        return {"main": program}

    def bind(self, call: Any) -> Launch:
        operands, chosen = self.planned(call)
        per_access = chosen.group if chosen.form == "dense" else 1
        grid = blocks_for(-(-chosen.count // per_access), self.threads)
        launch, device, count = self.entries["main"].launch, call.device.index, chosen.count
        values = zip(self.scalars(call), self.scalar_dtypes(call), strict=True)
        rest = (*chosen.geometry, *(_argument(value, dtype) for value, dtype in values if value is not None))
        sources = [(operand.argument, operand.offset) for operand in operands if operand is not None]

        def run(*tensors: Any) -> None:
            addresses = [tensors[argument].data_ptr() + offset for argument, offset in sources]
            launch(grid, count, *addresses, tensors[-1].data_ptr(), *rest, device=device)

        return run


def _argument(value: float | int, dtype: str) -> Any:
    """A scalar parameter as the launch passes it: float32 (too large ones are infinite) or an integer."""
    if dtype not in FLOATS:
        return whole(value, dtype)
    with np.errstate(over="ignore"):
        return np.float32(value)
