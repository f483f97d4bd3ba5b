"""Rotary position embedding of a sequence that starts at position 0."""

from __future__ import annotations

from typing import ClassVar, Literal

from tileops.kernels.rope.call_spec import RoPECall, RoPEFwdInterface
from tileops.kernels.rope.rope_cpu import RoPECpuKernel
from tileops.kernels.rope.rope_cuda import RoPECudaKernel
from tileops.ops.base import Op
from tileops.ops.facts import CallFacts


class RoPEFwdOp(Op):
    """Rotary position embedding: every pair of elements of a head vector turns by an angle that grows with
    its position.

    Pair i of D / 2 turns by ``s * base ** (-2 i / D)`` at position s (counted from 0 along S)::

        output[first] = x[first] * cos - x[second] * sin
        output[second] = x[second] * cos + x[first] * sin

    Follows ``flashinfer.rope.apply_rope``; angles and products are float32 or better, rounded once.

    Args:
        rope_layout: pairs are elements (i, i + D/2) for "neox" and (2i, 2i + 1) for "interleaved".
        input_layout: "1d" for ``[S, D]``, "2d" for ``[B, S, H, D]``.
        base: base of the frequencies, positive.
        target: which set of kernels serves the op; None decides by the device of each call.

    Call:
        ``op(x)``

        - x: as `input_layout` says, D even; float16, bfloat16 or float32, any strides.

        Returns `output`: shape and dtype of `x`, contiguous.

    Raises:
        CheckError: a parameter or the tensor violates the manifest entry; the message names the declaration.

    Example:
        >>> q = RoPEFwdOp(rope_layout="neox", base=500000.0)(q)
    """

    kernel_types: ClassVar = {"cpu": RoPECpuKernel, "cuda": RoPECudaKernel}
    interfaces: ClassVar = {"rope": RoPEFwdInterface}

    def __init__(
        self,
        rope_layout: Literal["neox", "interleaved"] = "neox",
        input_layout: Literal["1d", "2d"] = "2d",
        base: float = 10000.0,
        *,
        target: str | None = None,
    ) -> None:
        self.rope_layout = rope_layout
        self.input_layout = input_layout
        self.base = base
        super().__init__(target=target)

    def _call_spec(self, facts: CallFacts) -> RoPECall:
        return RoPECall(
            x=facts["x"],
            output=facts["output"],
            rope_layout=self.rope_layout,
            input_layout=self.input_layout,
            base=float(self.base),
            device=facts.device,
        )
