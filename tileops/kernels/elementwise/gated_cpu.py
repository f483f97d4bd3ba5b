"""Gated activations on the CPU."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Hashable

from tileops.jit import parallel
from tileops.jit.cpu.direct import Address, Family, Member, address_of
from tileops.kernels.base import Config
from tileops.kernels.elementwise.call_spec import GatedCall, GatedFwdInterface
from tileops.kernels.elementwise.template_cpu import (
    AXIS_WORDS,
    BLOCK,
    HEADER_WORDS,
    STREAMING_BYTES,
    ElementwiseCpuKernel,
    Operand,
    scalar_block,
)

#: The geometry of a dense call: rows, and the axis over them.
_geometry = struct.Struct(f"@{HEADER_WORDS + AXIS_WORDS}q").pack


def _is_dense(call: GatedCall) -> bool:
    """Whether neighbours in a row are neighbours in memory."""
    return call.x.is_contiguous and call.output.shape[1] > 1


class GatedCpuKernel(ElementwiseCpuKernel, GatedFwdInterface):
    """The two halves of each row are two strided operands of one function."""

    @classmethod
    def function(cls, call: GatedCall) -> str:
        return call.function

    @classmethod
    def cost(cls, call: GatedCall) -> float:
        return 20.0

    @classmethod
    def default_config(cls, call: GatedCall) -> Config:
        return {**super().default_config(call), "unroll": 8}

    @classmethod
    def compile_class(cls, call: GatedCall) -> Hashable:
        output = call.output
        if output.numel * output.itemsize < STREAMING_BYTES and _is_dense(call):
            return call.function, call.x.dtype
        return super().compile_class(call)

    def bind(self, call: GatedCall) -> Callable[..., None]:
        if not _is_dense(call):
            return super().bind(call)
        return self._dense_member(call)(call.output.shape).launcher()

    def resized(self, call: GatedCall) -> Callable[..., Member | None] | None:
        size = call.output.itemsize
        if not _is_dense(call) or call.output.numel * size >= STREAMING_BYTES:
            return None
        member = self._dense_member(call)

        def at(x: tuple[int, ...], output: tuple[int, ...]) -> Member | None:
            rows, columns = output
            return member(output) if columns > 1 and rows * columns * size < STREAMING_BYTES else None

        return at

    def _dense_member(self, call: GatedCall) -> Callable[[tuple[int, ...]], Member]:
        """From the shape of the output to a call that is otherwise like `call`, which is dense."""
        size = call.output.itemsize
        cost, streaming = 3 * size * self.cost(call) / 1024, bool(self.config["streaming"])
        constants = scalar_block(())
        arguments = (None, ctypes.addressof(constants), Address(0), Address(0, None), 0, Address(1))
        family = Family([(self.entries["main"], arguments)], 2)

        def member(output: tuple[int, ...]) -> Member:
            rows, columns = output
            blocks, step = -(-columns // BLOCK), columns * size
            geometry = _geometry(columns, BLOCK, blocks, 1, streaming, rows, 2 * step, 2 * step, 0, step)
            values = (rows * blocks, parallel.limit(rows * columns * cost), address_of(geometry), step)
            return Member(family, values, (geometry, constants))

        return member

    @classmethod
    def operands(cls, call: GatedCall) -> tuple[Operand | None, ...]:
        x = call.x
        half = x.shape[1] // 2 * x.strides[1]
        return Operand(x.short, x.strides, 0), Operand(x.short, x.strides, 0, offset=half)
