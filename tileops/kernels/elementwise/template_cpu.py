"""Elementwise kernels on the CPU: one template for every operator, dtype and layout.

An operator states a scalar function (see `functions`) and how its tensors look through the output's shape;
the rest is here. Axes are ordered by the output's memory and neighbouring ones that all tensors walk with one
step are merged, so nearly every call ends up with one or two axes. Then two forms of kernel remain:

* **rows**: along the innermost axis the output is dense, and every operand is either dense or a single element
  that broadcasts. Whole vectors are loaded; the other axes, however many, only move the base addresses.
* **tiles**: something steps through memory along the innermost axis. A tile of each such tensor is gathered
  into scratch in the order of its own memory, vectors are computed from there, and an output that is not dense
  is scattered from there. Nothing is ever copied as a whole.

The layout enters what is compiled only as such a class; sizes, strides and scalar parameters are read from a
small block of integers, the *geometry*, that the host fills once per call signature.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, cast

from tileops.autotune.space import TileSpace
from tileops.jit import direct, parallel
from tileops.jit.cpu.direct import SCRATCH, Address, Family, Member, address_of
from tileops.jit.program import Program
from tileops.kernels import pages
from tileops.kernels.base import Config, KernelInterface, TensorSpec, contiguous_strides
from tileops.kernels.elementwise.template import FLOATS, SIZES, ElementwiseKernel, whole
from tileops.kernels.layout import broadcast_strides, coalesce

#: Tensor operands that a kernel takes.
MAX_OPERANDS = 3
#: Words of the geometry before the first axis: size and width of the innermost axis and blocks in a row (tiles:
#: tiles of columns, tiles of rows, 0), number of outer axes, whether stores go around the caches.
HEADER_WORDS = 5
#: Words of one axis: its size and the step, in bytes, of every operand and of the output.
AXIS_WORDS = 2 + MAX_OPERANDS
#: Elements of a row that one unit of the rows form computes; a multiple of every vector step (lanes x
#: unroll).
BLOCK = 3072
#: Rows and columns of a tile of the tiles form.
TILE_ROWS = 16
TILE_COLUMNS = 64
#: Bytes of scratch for a tile of one tensor, whose elements are at most eight bytes.
TILE_BYTES = 8 * TILE_ROWS * TILE_COLUMNS
#: Output bytes from which on stores go around the caches: what is written would push out what is still to be
#: read, and reading the lines before they are overwritten costs a third of the traffic.
STREAMING_BYTES = 20 << 20


class Operand(NamedTuple):
    """A tensor operand of the scalar function, seen through the output's shape.

    Attributes:
        dtype: short name, "bf16".
        strides: steps in elements along the output's axes, 0 where it broadcasts.
        argument: number of the launch tensor that holds it.
        offset: elements from that tensor's first element to the operand's.
        bits: of the one element of an operand that is in no tensor; it broadcasts.
    """

    dtype: str
    strides: tuple[int, ...]
    argument: int
    offset: int = 0
    bits: int | None = None

    @classmethod
    def of(cls, spec: TensorSpec, output: TensorSpec, argument: int) -> Operand:
        """Launch tensor number `argument`, broadcast to the shape of `output`."""
        if spec.shape == output.shape:
            return cls(spec.short, spec.strides, argument)
        return cls(spec.short, broadcast_strides(spec.shape, spec.strides, output.shape), argument)

    @property
    def itemsize(self) -> int:
        return SIZES[self.dtype]


class Plan(NamedTuple):
    """How a call is cut into units of work.

    Attributes:
        form: "rows" or "tiles".
        kinds: for the rows form, "unit" or "splat" for each operand along the innermost axis; for the tiles form
            "dense" or "strided" for the output.
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
    def of(cls, output: TensorSpec, operands: Sequence[Operand]) -> Plan:
        """The plan of a call."""
        dense = contiguous_strides(output.shape)
        if output.strides == dense and all(operand.strides == dense for operand in operands):
            size = output.numel
            itemsizes = [*(operand.itemsize for operand in operands), output.itemsize]
            return cls(
                "rows", ("unit",) * len(operands), (size,), tuple([(item,) for item in itemsizes]), -(-size // BLOCK)
            )
        order = sorted(range(output.ndim), key=lambda axis: -abs(output.strides[axis]))
        tensors = (*(operand.strides for operand in operands), output.strides)
        shape = tuple(output.shape[axis] for axis in order)
        sizes, strides = coalesce(shape, *(tuple(steps[axis] for axis in order) for steps in tensors))
        itemsizes = [*(operand.itemsize for operand in operands), output.itemsize]
        sizes = sizes[::-1]
        steps = tuple(
            tuple(step * itemsize for step in reversed(axes)) for axes, itemsize in zip(strides, itemsizes, strict=True)
        )
        *inner, output_step = (axes[-1] for axes in strides)
        if output_step == 1 and all(step in (0, 1) for step in inner) and 1 in inner:
            kinds = tuple("unit" if step else "splat" for step in inner)
            units = math.prod(sizes[1:]) * -(-sizes[0] // BLOCK)
            return cls("rows", kinds, sizes, steps, units)
        if len(sizes) == 1:
            sizes = (*sizes, 1)
            steps = tuple((*step, 0) for step in steps)
        tiles = -(-sizes[0] // TILE_COLUMNS) * -(-sizes[1] // TILE_ROWS)
        kind = "dense" if output_step == 1 else "strided"
        return cls("tiles", (kind,), sizes, steps, math.prod(sizes[2:]) * tiles)

    def geometry(self, *, streaming: bool) -> ctypes.Array[ctypes.c_int64]:
        """The integers that the kernel reads; keep the array alive for as long as its address is in use."""
        if self.form == "rows" and len(self.sizes) == 1:
            (size,) = self.sizes
            return (ctypes.c_int64 * HEADER_WORDS)(size, BLOCK, -(-size // BLOCK), 0, int(streaming))
        per_axis = [(size, *self._steps_of(axis)) for axis, size in enumerate(self.sizes)]
        if self.form == "rows":
            size = self.sizes[0]
            header = (size, BLOCK, -(-size // BLOCK), len(self.sizes) - 1, int(streaming))
            words = [*header, *(word for axis in per_axis[1:] for word in axis)]
        else:
            header = (
                -(-self.sizes[0] // TILE_COLUMNS),
                -(-self.sizes[1] // TILE_ROWS),
                0,
                len(self.sizes) - 2,
                0,
            )
            words = [*header, *(word for axis in per_axis for word in axis)]
        return (ctypes.c_int64 * len(words))(*words)

    def _steps_of(self, axis: int) -> tuple[int, ...]:
        inputs = [step[axis] for step in self.steps[:-1]]
        return (*inputs, *(0 for _ in range(MAX_OPERANDS - len(inputs))), self.steps[-1][axis])


def scalar_words(values: Sequence[float | int | bool | None], dtypes: Sequence[str]) -> list[int]:
    """Scalar parameters as the kernel reads them, eight bytes each: float32 for the float dtypes, else int64."""
    return [
        0 if value is None else _float32_bits(value) if dtype in FLOATS else whole(value, dtype)
        for value, dtype in zip(values, dtypes, strict=True)
    ]


def _float32_bits(value: float | int) -> int:
    value = float(value)
    if math.isfinite(value) and abs(value) > 3.4028235677973366e38:
        value = math.copysign(math.inf, value)  # as torch converts; `struct` would raise
    return int(struct.unpack("<q", struct.pack("<fi", value, 0))[0])


class ElementwiseCpuKernel(ElementwiseKernel):
    """Base of the elementwise CPU kernels. A subclass adds its interface and states the operator."""

    devices = frozenset({"cpu"})
    tile_space = TileSpace({"unroll": (1, 2, 4, 6, 8), "streaming": (False, True)})

    @classmethod
    def cost(cls, call: Any) -> float:
        """Nanoseconds that one thread takes for a KiB of operands and output in its cache; decides from which
        size on several threads pay.
        """
        return 8.0

    @classmethod
    def default_config(cls, call: Any) -> Config:
        output = call.output
        return {"unroll": 4, "streaming": pages.streaming_pays(output.numel * output.itemsize, STREAMING_BYTES)}

    @classmethod
    def compile_class(cls, call: Any) -> Hashable:
        output, scalars = call.output, cls.scalars(call)
        # Below, stores never go around the caches.
        small = output.numel * output.itemsize < STREAMING_BYTES
        rest = (
            cls.function(call),
            tuple([value is not None for value in scalars]) if scalars else (),
            cls.options(call),
            output.dtype,
            small or tuple(cls.default_config(call).values()),
        )
        flat = cls.flat(call)
        if flat is not None:
            return flat, *rest
        operands, plan = cls.cut(call)
        dtypes = [None if operand is None else operand.dtype for operand in operands]
        return *dtypes, plan.form, plan.kinds, *rest

    @classmethod
    def flat(cls, call: Any) -> tuple[str, ...] | None:
        """The dtypes of the operands, where all are present and lie in memory element by element in one order with the
        output, as in most calls; else None. Such a call has one axis, and little about it is to be found out.
        """
        return None

    @classmethod
    def cut(cls, call: Any) -> tuple[tuple[Operand | None, ...], Plan]:
        """The operands of a call and its plan, which choosing, building and binding the kernel ask for in turn."""
        known: tuple[tuple[Operand | None, ...], Plan] | None = call.__dict__.get("_cut")
        if known is None:
            operands = cls.operands(call)
            known = operands, Plan.of(call.output, [operand for operand in operands if operand is not None])
            call.__dict__["_cut"] = known
        return known

    @classmethod
    def known_operands(cls, call: Any) -> tuple[Operand | None, ...]:
        return cls.cut(call)[0]

    @classmethod
    def programs(cls, call: Any, config: Config) -> dict[str, Program]:
        (operands, plan), output = cls.cut(call), call.output
        scalars = zip(cls.scalars(call), cls.scalar_dtypes(call), strict=True)
        program = Program.of(
            f"tileops.kernels.elementwise._template_cpu:{plan.form}",
            ["ptr"] * (3 + MAX_OPERANDS + (plan.form == "tiles")),
            function=cls.function(call),
            inputs=tuple(None if operand is None else operand.dtype for operand in operands),
            kinds=plan.kinds,
            scalars=tuple(None if value is None else dtype for value, dtype in scalars),
            options=cls.options(call),
            output=output.short,
            numbered=cls.numbered,
            unroll=config["unroll"],
        )
        return {"main": program}

    def bind(self, call: Any) -> Callable[..., None]:
        flat = self.flat(call)
        if flat is not None:
            return self._bind_flat(call, len(flat))
        (found, plan), output = self.cut(call), call.output
        operands = [operand for operand in found if operand is not None]
        geometry = plan.geometry(streaming=bool(self.config["streaming"]))
        constants = self._constants(call)
        single = {operand.bits: scalar_block((operand.bits,)) for operand in operands if operand.bits is not None}
        sources: list[direct.Argument] = [
            Address(operand.argument, operand.offset * operand.itemsize)
            if operand.bits is None
            else ctypes.addressof(single[operand.bits])
            for operand in operands
        ]
        kib = output.numel * (output.itemsize + sum([operand.itemsize for operand in operands])) / 1024
        limit = parallel.limit(kib * self.cost(call))
        keep = (geometry, constants, single)
        last = len(cast(KernelInterface, self).tensors) - 1
        arguments: tuple[direct.Argument, ...] = (
            *(ctypes.addressof(geometry), ctypes.addressof(constants)),
            *sources,
            *(0 for _ in range(MAX_OPERANDS - len(sources))),
            Address(last),
        )
        per_thread = 0
        if plan.form == "tiles":  # a tile of every tensor
            arguments, per_thread = (*arguments, Address(SCRATCH)), (MAX_OPERANDS + 1) * TILE_BYTES
        return direct.launcher(self.entries["main"], limit, plan.units, arguments, last + 1, keep, per_thread)

    def _constants(self, call: Any) -> _Words:
        """The scalar parameters of a call in memory."""
        scalars = self.scalars(call)
        return scalar_block(tuple(scalar_words(scalars, self.scalar_dtypes(call))) if scalars else ())

    def _bind_flat(self, call: Any, operands: int) -> Callable[..., None]:
        """`bind` of a call that is `flat`."""
        return self._flat_member(call, operands)(call.output.numel).launcher()

    def resized(self, call: Any) -> Callable[..., Member | None] | None:
        flat, size = self.flat(call), call.output.itemsize
        if flat is None or call.output.numel * size >= STREAMING_BYTES:
            return None
        member = self._flat_member(call, len(flat))

        def at(shape: tuple[int, ...], *others: tuple[int, ...]) -> Member | None:
            for other in others:
                if other != shape:
                    return None
            numel = math.prod(shape)
            return member(numel) if numel * size < STREAMING_BYTES else None

        return at

    def _flat_member(self, call: Any, operands: int) -> Callable[[int], Member]:
        """From the number of elements to a call that is otherwise like `call`, which is `flat`."""
        output, constants = call.output, self._constants(call)
        moved = output.itemsize + sum([SIZES[operand.short] for operand in call.operands])
        cost = moved * self.cost(call) / 1024
        tensors = [Address(place) for place in range(operands)]
        arguments = (None, ctypes.addressof(constants), *tensors, *[0] * (MAX_OPERANDS - operands), Address(operands))
        family = Family([(self.entries["main"], arguments)], operands + 1)
        streaming = bool(self.config["streaming"])

        def member(size: int) -> Member:
            blocks = -(-size // BLOCK)
            geometry = _header(size, BLOCK, blocks, 0, streaming)
            values = (blocks, parallel.limit(size * cost), address_of(geometry))
            return Member(family, values, (geometry, constants))

        return member


_Words = ctypes.Array[ctypes.c_int64]
#: The geometry of a call of one axis.
_header = struct.Struct(f"@{HEADER_WORDS}q").pack


@lru_cache(maxsize=256)
def scalar_block(words: tuple[int, ...]) -> _Words:
    """Scalar parameters in memory; the calls of an op share them."""
    return (ctypes.c_int64 * max(len(words), 1))(*words)
