"""The gradient of SwiGLU's activation on the CPU."""

from __future__ import annotations

from collections.abc import Callable

from tileops.autotune.space import TileSpace
from tileops.jit import direct, parallel
from tileops.jit.cpu.direct import SCRATCH, Address
from tileops.jit.program import Program
from tileops.kernels.base import FLOAT_DTYPES, Config, Kernel, TensorSpec
from tileops.kernels.elementwise.silu_and_mul_bwd_call import SiluAndMulBwdCall, SiluAndMulBwdInterface

_BODIES = "tileops.kernels.elementwise._silu_and_mul_bwd_cpu"
#: Columns of a block.
_WIDTH = 3072
#: Nanoseconds that one thread takes for a KiB of operands and result, cache-resident; decides when two threads pay.
_NS_PER_KIB = 20.0


class SiluAndMulBwdCpuKernel(Kernel, SiluAndMulBwdInterface):
    """Both halves of the result in one pass over the gradient and the two halves of `x`; float32, rounded once.

    Rows with dense elements are read in place, others gathered block by block.
    """

    devices = frozenset({"cpu"})
    tile_space = TileSpace({"unroll": (1, 2, 4)})

    @classmethod
    def refusal(cls, call: SiluAndMulBwdCall) -> str | None:
        if call.x.dtype not in FLOAT_DTYPES:
            return f"x is {call.x.dtype}; the CPU kernel takes {', '.join(FLOAT_DTYPES)}"
        return super().refusal(call)

    @classmethod
    def default_config(cls, call: SiluAndMulBwdCall) -> Config:
        return {"unroll": 4}

    @classmethod
    def programs(cls, call: SiluAndMulBwdCall, config: Config) -> dict[str, Program]:
        dense = _is_dense(call)
        arguments = ["i64"] * (5 if dense else 7) + ["ptr"] * (3 if dense else 4)
        form = "rows" if dense else "gathered_rows"
        program = Program.of(f"{_BODIES}:{form}", arguments, dtype=call.x.short, unroll=config["unroll"], width=_WIDTH)
        return {"main": program}

    def bind(self, call: SiluAndMulBwdCall) -> Callable[..., None]:
        rows, columns = call.grad_out.shape
        item, blocks = call.x.itemsize, -(-columns // _WIDTH)
        (grad_row, grad_element), (x_row, x_element) = (_byte_steps(tensor) for tensor in (call.grad_out, call.x))
        sizes = (rows * blocks, blocks, columns, grad_row, x_row, columns * x_element)
        limit = parallel.limit(5 * rows * columns * item / 1024 * _NS_PER_KIB)
        tensors = (Address(0), Address(1), Address(2))
        if _is_dense(call):
            return direct.launcher(self.entries["main"], limit, sizes[0], (*sizes[1:], *tensors), 3)
        arguments = (*sizes[1:], grad_element, x_element, *tensors, Address(SCRATCH))
        return direct.launcher(self.entries["main"], limit, sizes[0], arguments, 3, per_thread=3 * _WIDTH * 4)


def _byte_steps(x: TensorSpec) -> tuple[int, int]:
    """Bytes from a row to the next, and from an element."""
    row, element = x.strides
    return row * x.itemsize, element * x.itemsize


def _is_dense(call: SiluAndMulBwdCall) -> bool:
    """Whether the elements of a row lie next to each other in `x` and in its gradient."""
    return all(tensor.strides[1] == 1 or tensor.shape[1] == 1 for tensor in (call.grad_out, call.x))
