"""Elementwise kernels on the CPU: one template for every operator, dtype and layout.

An operator states a scalar function (in `_functions`) and how its tensors look through the output's shape;
the rest is here. Neighbouring axes that all operands walk with one step are merged first, so nearly every
call ends up with one or two axes. Then two forms of kernel remain:

* **rows**: along the innermost axis every operand is either dense or a single element that broadcasts. Whole
  vectors are loaded; the other axes, however many, only move the base addresses.
* **tiles**: some operand steps through memory along the innermost axis. A tile of it is gathered into
  scratch in the order of its own memory, and vectors are computed from there. Nothing is ever copied as a
  whole.

The layout enters what is compiled only as such a class; sizes, strides and scalar parameters are read from a
small block of integers, the *geometry*, that the host fills once per call signature.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from tileops.autotune.space import TileSpace
from tileops.jit import parallel
from tileops.jit.program import Program
from tileops.kernels.base import DTYPES, Config, Kernel, TensorSpec
from tileops.kernels.layout import broadcast_strides, coalesce

#: Operands that a kernel takes: input tensors and scalar parameters together.
MAX_OPERANDS = 4
#: Words of the geometry before the first axis: size and width of the innermost axis, blocks in a row, outer
#: axes.
HEADER_WORDS = 4
#: Words of one outer axis: its size and the step, in bytes, of every operand and of the output.
AXIS_WORDS = 2 + MAX_OPERANDS
#: Elements of a row that one unit of the rows form computes; a multiple of every vector step (lanes x
#: unroll).
BLOCK = 3072
#: Rows and columns of a tile of the tiles form.
TILE_ROWS = 16
TILE_COLUMNS = 64
#: Bytes of scratch for a tile of one operand, whose elements are at most eight bytes.
TILE_BYTES = 8 * TILE_ROWS * TILE_COLUMNS

_DTYPE_OF_SHORT = {short: size for size, short in DTYPES.values()}
#: Short names of the dtypes that are computed with in float32.
FLOATS = frozenset({"f32", "bf16", "f16"})


@dataclass(frozen=True)
class Operand:
    """A tensor operand of the scalar function, seen through the output's shape.

    Attributes:
        dtype: short name, "bf16".
        strides: steps in elements along the output's axes, 0 where it broadcasts.
        argument: number of the launch tensor that holds it.
        offset: elements from that tensor's first element to the operand's.
    """

    dtype: str
    strides: tuple[int, ...]
    argument: int
    offset: int = 0

    @classmethod
    def of(cls, spec: TensorSpec, output: TensorSpec, argument: int) -> Operand:
        """Launch tensor number `argument`, broadcast to the shape of `output`."""
        return cls(spec.short, broadcast_strides(spec.shape, spec.strides, output.shape), argument)

    @property
    def itemsize(self) -> int:
        return _DTYPE_OF_SHORT[self.dtype]


@dataclass(frozen=True)
class Plan:
    """How a call is cut into units of work.

    Attributes:
        form: "rows" or "tiles".
        kinds: for the rows form, "unit" or "splat" for each tensor operand along the innermost axis.
        sizes: extents of the merged axes, innermost first.
        steps: for each tensor operand and then the output, byte steps along these axes.
        units: units of work.
    """

    form: str
    kinds: tuple[str, ...]
    sizes: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]
    units: int

    @classmethod
    def of(cls, shape: Sequence[int], operands: Sequence[Operand], output_itemsize: int) -> Plan:
        """The plan for a dense output of `shape`."""
        dense = _dense_strides(shape)
        sizes, strides = coalesce(shape, *(operand.strides for operand in operands), dense)
        itemsizes = [*(operand.itemsize for operand in operands), output_itemsize]
        sizes = sizes[::-1]
        steps = tuple(
            tuple(step * itemsize for step in reversed(axes)) for axes, itemsize in zip(strides, itemsizes, strict=True)
        )
        inner = [axes[-1] for axes in strides[:-1]]
        rows = all(step in (0, 1) for step in inner) and 1 in inner
        if rows:
            kinds = tuple("unit" if step else "splat" for step in inner)
            units = math.prod(sizes[1:]) * -(-sizes[0] // BLOCK)
            return cls("rows", kinds, sizes, steps, units)
        if len(sizes) == 1:
            sizes = (*sizes, 1)
            steps = tuple((*step, 0) for step in steps)
        tiles = -(-sizes[0] // TILE_COLUMNS) * -(-sizes[1] // TILE_ROWS)
        return cls("tiles", (), sizes, steps, math.prod(sizes[2:]) * tiles)

    def geometry(self) -> ctypes.Array[ctypes.c_int64]:
        """The integers that the kernel reads; keep the array alive for as long as its address is in use."""
        per_axis = [(size, *self._steps_of(axis)) for axis, size in enumerate(self.sizes)]
        if self.form == "rows":
            size = self.sizes[0]
            header = (size, BLOCK, -(-size // BLOCK), len(self.sizes) - 1)
            words = [*header, *(word for axis in per_axis[1:] for word in axis)]
        else:
            header = (
                -(-self.sizes[0] // TILE_COLUMNS),
                -(-self.sizes[1] // TILE_ROWS),
                0,
                len(self.sizes) - 2,
            )
            words = [*header, *(word for axis in per_axis for word in axis)]
        return (ctypes.c_int64 * len(words))(*words)

    def _steps_of(self, axis: int) -> tuple[int, ...]:
        inputs = [step[axis] for step in self.steps[:-1]]
        return (*inputs, *(0 for _ in range(MAX_OPERANDS - len(inputs))), self.steps[-1][axis])


def _dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:] if shape else ()):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides)) if shape else ()


def scalar_block(values: Sequence[float | int], *, integer: bool) -> ctypes.Array[ctypes.c_int64]:
    """Scalar parameters in memory, eight bytes apart: float32, or int64 for integer operators."""
    words: list[Any] = [
        value if integer else struct.unpack("<q", struct.pack("<fi", _to_float32(value), 0))[0] for value in values
    ]
    return (ctypes.c_int64 * max(len(words), 1))(*words)


def _to_float32(value: float | int) -> float:
    """`value` if float32 holds it, else an infinity of its sign (`struct` would raise)."""
    value = float(value)
    return math.copysign(math.inf, value) if math.isfinite(value) and abs(value) > 3.4028235677973366e38 else value


class ElementwiseCpuKernel(Kernel):
    """Base of the elementwise CPU kernels. A subclass adds its interface and states the operator.

    Attributes:
        ns_per_kib: time that one thread takes for a KiB of operands and output, cache-resident, in
            nanoseconds; decides from which size on several threads pay.
    """

    devices = frozenset({"cpu"})
    tile_space = TileSpace({"unroll": (1, 2, 4, 6, 8)})
    ns_per_kib: ClassVar[float] = 8.0

    @classmethod
    def function(cls, call: Any) -> str:
        """Name of the scalar function in `_functions`: tensor operands first, then scalar parameters."""
        raise NotImplementedError

    @classmethod
    def operands(cls, call: Any) -> tuple[Operand, ...]:
        """The tensor operands in the order of the function's arguments."""
        raise NotImplementedError

    @classmethod
    def scalars(cls, call: Any) -> tuple[float | int, ...]:
        """Run-time scalar parameters; never compiled in."""
        return ()

    @classmethod
    def default_config(cls, call: Any) -> Config:
        return {"unroll": 4}

    @classmethod
    def programs(cls, call: Any, config: Config) -> dict[str, Program]:
        operands, output = cls.operands(call), call.output
        plan = Plan.of(output.shape, operands, output.itemsize)
        dtypes = tuple(operand.dtype for operand in operands)
        program = Program.of(
            f"tileops.kernels.elementwise._template_cpu:{plan.form}",
            ["ptr"] * (2 + MAX_OPERANDS + (plan.form == "tiles")),
            function=cls.function(call),
            inputs=dtypes,
            kinds=plan.kinds,
            scalars=len(cls.scalars(call)),
            output=output.short,
            unroll=config["unroll"],
        )
        return {"main": program}

    def bind(self, call: Any) -> Callable[..., None]:
        operands, output = self.operands(call), call.output
        plan = Plan.of(output.shape, operands, output.itemsize)
        geometry = plan.geometry()
        scalars = self.scalars(call)
        constants = scalar_block(scalars, integer=output.short not in FLOATS)
        sources = [(operand.argument, operand.offset * operand.itemsize) for operand in operands]
        fixed = [ctypes.addressof(constants) + 8 * index for index in range(len(scalars))]
        fixed += [0] * (MAX_OPERANDS - len(sources) - len(fixed))
        kib = output.numel * (output.itemsize + sum(operand.itemsize for operand in operands)) / 1024
        limit = parallel.limit(kib * self.ns_per_kib)
        entry = self.entries["main"].launch
        if plan.form == "tiles":
            return _bind_tiles(entry, limit, plan, geometry, constants, sources, fixed)
        return _bind_rows(entry, limit, plan, geometry, constants, sources, fixed)


def _bind_rows(
    entry: Callable[..., None],
    limit: int,
    plan: Plan,
    geometry: ctypes.Array[ctypes.c_int64],
    constants: ctypes.Array[ctypes.c_int64],
    sources: list[tuple[int, int]],
    fixed: list[int],
) -> Callable[..., None]:
    """The launcher of the rows form; two whole tensors, the common case, are read without a loop."""
    units, where, team = plan.units, ctypes.addressof(geometry), parallel.team
    # The default argument keeps the memory behind the addresses alive as long as the launcher.
    keep = (geometry, constants)
    if sources == [(0, 0), (1, 0)]:
        third, fourth = fixed
        if limit == 0:

            def small(a: Any, b: Any, output: Any, _keep: Any = keep) -> None:
                entry(0, units, where, a.data_ptr(), b.data_ptr(), third, fourth, output.data_ptr())

            return small

        def binary(a: Any, b: Any, output: Any, _keep: Any = keep) -> None:
            threads = team(limit)
            entry(threads, units, where, a.data_ptr(), b.data_ptr(), third, fourth, output.data_ptr())

        return binary

    def any_arity(*tensors: Any, _keep: Any = keep) -> None:
        addresses = [tensors[argument].data_ptr() + offset for argument, offset in sources]
        entry(team(limit), units, where, *addresses, *fixed, tensors[-1].data_ptr())

    return any_arity


def _bind_tiles(
    entry: Callable[..., None],
    limit: int,
    plan: Plan,
    geometry: ctypes.Array[ctypes.c_int64],
    constants: ctypes.Array[ctypes.c_int64],
    sources: list[tuple[int, int]],
    fixed: list[int],
) -> Callable[..., None]:
    """The launcher of the tiles form, which needs scratch for a tile of every operand, per thread."""
    units, where, team = plan.units, ctypes.addressof(geometry), parallel.team
    per_thread = MAX_OPERANDS * TILE_BYTES

    def tiles(*tensors: Any, _keep: Any = (geometry, constants)) -> None:
        threads = team(limit)
        scratch = torch.empty(max(threads, 1) * per_thread, dtype=torch.uint8, device="cpu")
        addresses = [tensors[argument].data_ptr() + offset for argument, offset in sources]
        entry(threads, units, where, *addresses, *fixed, tensors[-1].data_ptr(), scratch.data_ptr())

    return tiles
