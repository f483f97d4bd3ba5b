"""Gated activations on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable

from tileops.jit import direct, parallel
from tileops.jit.cpu.direct import Address
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
_Geometry = ctypes.c_int64 * (HEADER_WORDS + AXIS_WORDS)
_FIRST, _SECOND = Address(0), Address(1)
_FORM = direct.launch_form((0, 0, _FIRST, Address(0, 1), 0, _SECOND), 2)


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
        return self._dense_launch(call)(call.output.shape)

    def resized(self, call: GatedCall) -> Callable[..., Callable[..., None] | None] | None:
        size = call.output.itemsize
        if not _is_dense(call) or call.output.numel * size >= STREAMING_BYTES:
            return None
        launch = self._dense_launch(call)

        def at(x: tuple[int, ...], output: tuple[int, ...]) -> Callable[..., None] | None:
            rows, columns = output
            return launch(output) if columns > 1 and rows * columns * size < STREAMING_BYTES else None

        return at

    def _dense_launch(self, call: GatedCall) -> Callable[[tuple[int, ...]], Callable[..., None]]:
        """From the shape of the output to the launch of a call that is otherwise like `call`, which is dense."""
        size, entry = call.output.itemsize, self.entries["main"]
        cost, streaming = 3 * size * self.cost(call) / 1024, bool(self.config["streaming"])
        constants = scalar_block(())
        at = ctypes.addressof(constants)

        def launch(output: tuple[int, ...]) -> Callable[..., None]:
            rows, columns = output
            blocks, step = -(-columns // BLOCK), columns * size
            geometry = _Geometry(columns, BLOCK, blocks, 1, streaming, rows, 2 * step, 2 * step, 0, step)
            arguments = (ctypes.addressof(geometry), at, _FIRST, Address(0, step), 0, _SECOND)
            return _FORM(entry, parallel.limit(rows * columns * cost), rows * blocks, arguments, (geometry, constants))

        return launch

    @classmethod
    def operands(cls, call: GatedCall) -> tuple[Operand | None, ...]:
        x = call.x
        half = x.shape[1] // 2 * x.strides[1]
        return Operand(x.short, x.strides, 0), Operand(x.short, x.strides, 0, offset=half)
