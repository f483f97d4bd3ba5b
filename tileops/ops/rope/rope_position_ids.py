"""Rotary position embedding at explicit positions."""

from __future__ import annotations

from typing import ClassVar

from tileops.kernels.rope.call_spec import RoPEPositionIdsCall, RoPEPositionIdsFwdInterface
from tileops.kernels.rope.rope_cpu import RoPEPositionIdsCpuKernel
from tileops.kernels.rope.rope_cuda import RoPEPositionIdsCudaKernel
from tileops.ops.base import Op
from tileops.ops.facts import CallFacts


class RoPENeoxPositionIdsFwdOp(Op):
    """Rotary position embedding of packed tokens, each at its own position, with neox pairs.

    Pair i, elements (i, i + R/2) of the first R = `rotary_dim` elements of a head vector, turns by
    ``position_ids[n] * base ** (-2 i / R)``; the remaining elements are copied.

    Follows ``flashinfer.rope.apply_rope_pos_ids``.

    Args:
        max_position: positions are below this.
        base: base of the frequencies, positive.
        rotary_dim: how many elements of a head vector turn, even; None for all of them.
        target: which set of kernels serves the op; None decides by the device of each call.

    Call:
        ``op(x, position_ids)``

        - x: ``[N, H, D]``, float16, bfloat16 or float32, any strides.
        - position_ids: ``[N]``, int32 or int64. Values in ``[0, max_position)`` are the caller's obligation:
        any other position
          is rotated all the same, to a result that means nothing.

        Returns `output`: shape and dtype of `x`, contiguous.

    Raises:
        CheckError: a parameter or a tensor violates the manifest entry; the message names the declaration.

    Example:
        >>> rope = RoPENeoxPositionIdsFwdOp(max_position=8192)
        >>> q = rope(q, position_ids)
    """

    kernel_types: ClassVar = {"cpu": RoPEPositionIdsCpuKernel, "cuda": RoPEPositionIdsCudaKernel}
    interfaces: ClassVar = {"rope": RoPEPositionIdsFwdInterface}

    def __init__(
        self,
        max_position: int,
        base: float = 10000.0,
        rotary_dim: int | None = None,
        *,
        target: str | None = None,
    ) -> None:
        self.max_position = max_position
        self.base = base
        self.rotary_dim = rotary_dim
        super().__init__(target=target)

    def _call_spec(self, facts: CallFacts) -> RoPEPositionIdsCall:
        return RoPEPositionIdsCall(
            x=facts["x"],
            position_ids=facts["position_ids"],
            output=facts["output"],
            rotary_dim=facts["x"].shape[2] if self.rotary_dim is None else self.rotary_dim,
            base=float(self.base),
            max_position=self.max_position,
            device=facts.device,
        )
