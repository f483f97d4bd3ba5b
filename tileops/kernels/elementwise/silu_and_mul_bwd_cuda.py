"""The gradient of SwiGLU's activation on CUDA."""

from __future__ import annotations

from typing import Any

from tileops.jit.program import Program
from tileops.kernels.base import Config, Kernel, Launch
from tileops.kernels.cuda import access_width, blocks_for, refuse_float_call
from tileops.kernels.elementwise.silu_and_mul_bwd_call import SiluAndMulBwdCall, SiluAndMulBwdInterface

_THREADS = 256


class SiluAndMulBwdCudaKernel(Kernel, SiluAndMulBwdInterface):
    """Both halves of the result in one pass, in accesses of 16 bytes where the layout allows it, else of one element;
    float32, rounded once. Strides are arguments.
    """

    devices = frozenset({"cuda"})

    @classmethod
    def refusal(cls, call: SiluAndMulBwdCall) -> str | None:
        return refuse_float_call(call, call.x) or super().refusal(call)

    @classmethod
    def programs(cls, call: SiluAndMulBwdCall, config: Config) -> dict[str, Program]:
        program = Program.of(
            "tileops.kernels.elementwise._silu_and_mul_bwd_cuda:rows",
            ["ptr"] * 4 + ["i64"] * 6,
            device="cuda",
            block=_THREADS,
            dtype=call.x.short,
            width=_width(call),
        )
        return {"main": program}

    def bind(self, call: SiluAndMulBwdCall) -> Launch:
        rows, size = call.grad_out.shape
        item, width = call.x.itemsize, _width(call)
        per_access = width // item
        columns = size // per_access
        grad_row, grad_step = (step * item for step in call.grad_out.strides)
        x_row, x_step = (step * item for step in call.x.strides)
        half = size * x_step
        rest = (rows * columns, columns, grad_row, grad_step * per_access, x_row, x_step * per_access)
        grid = blocks_for(rows * columns, _THREADS)
        launch, device = self.entries["main"].launch, call.device.index

        def run(grad_out: Any, x: Any, grad_x: Any) -> None:
            gate = x.data_ptr()
            launch(grid, grad_out.data_ptr(), gate, gate + half, grad_x.data_ptr(), *rest, device=device)

        return run


def _width(call: SiluAndMulBwdCall) -> int:
    """Bytes of an access."""
    item, (rows, size) = call.x.itemsize, call.grad_out.shape
    tensors = (call.grad_out, call.x)
    if any(tensor.strides[1] != 1 for tensor in tensors):
        return item
    steps = [tensor.strides[0] * item for tensor in tensors] if rows > 1 else []
    bases = [tensor.alignment for tensor in (*tensors, call.grad_x)]
    return access_width(item, [*bases, *steps, size * item], narrow=False)
