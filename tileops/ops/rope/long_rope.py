"""Rotary position embedding scaled by LongRoPE."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch

from tileops.kernels.rope.call_spec import LongRoPECall, LongRoPEFwdInterface
from tileops.kernels.rope.rope_cpu import LongRoPECpuKernel
from tileops.kernels.rope.rope_cuda import LongRoPECudaKernel
from tileops.kernels.rope.scaling import long_rope
from tileops.ops.base import Op
from tileops.ops.facts import CallFacts


class LongRoPEFwdOp(Op):
    """Rotary position embedding of a sequence that starts at position 0, scaled by LongRoPE.

    Pair i turns by ``s * base ** (-2 i / D) / rescale_factors[i]`` at position s. Where `scale` exceeds 1, turned
    vectors are multiplied by ``sqrt(1 + log(scale) / log(original_max_position))``.

    Follows vLLM's ``Phi3LongRoPEScaledRotaryEmbedding``, which chooses between two sets of factors by the longest
    sequence of the model: construct an op for each. Angles and products are float32 or better, rounded once.

    Args:
        rope_layout: pairs are elements (i, i + D/2) for "neox" and (2i, 2i + 1) for "interleaved".
        input_layout: "1d" for ``[S, D]``, "2d" for ``[B, S, H, D]``.
        base: base of the frequencies, positive.
        scale: longest position of the model over `original_max_position`, positive.
        original_max_position: the original length, more than 1.
        rescale_factors: ``[D / 2]``, float32, bfloat16 or float16, any strides, positive; None for ones. A call on
            another device runs on a copy there.
        target: which set of kernels serves the op; None decides by the device of each call.

    Call:
        ``op(x)``

        - x: as `input_layout` says, D even; float16, bfloat16 or float32, any strides.

        Returns `output`: shape and dtype of `x`, contiguous.

    Raises:
        CheckError: a parameter or a tensor violates the manifest entry; the message names the declaration.

    Example:
        >>> rope = LongRoPEFwdOp(scale=32.0, rescale_factors=torch.tensor(config["long_factor"]))
        >>> q = rope(q)
    """

    kernel_types: ClassVar = {"cpu": LongRoPECpuKernel, "cuda": LongRoPECudaKernel}
    interfaces: ClassVar = {"rope": LongRoPEFwdInterface}

    def __init__(
        self,
        rope_layout: Literal["neox", "interleaved"] = "neox",
        input_layout: Literal["1d", "2d"] = "2d",
        base: float = 10000.0,
        scale: float = 1.0,
        original_max_position: int = 4096,
        rescale_factors: torch.Tensor | None = None,
        *,
        target: str | None = None,
    ) -> None:
        self.rope_layout = rope_layout
        self.input_layout = input_layout
        self.base = base
        self.scale = scale
        self.original_max_position = original_max_position
        self.rescale_factors = rescale_factors
        super().__init__(target=target)

    def _call_spec(self, facts: CallFacts) -> LongRoPECall:
        return LongRoPECall(
            x=facts["x"],
            output=facts["output"],
            rope_layout=self.rope_layout,
            input_layout=self.input_layout,
            base=float(self.base),
            scaling=long_rope(self.scale, self.original_max_position),
            rescale_factors=facts["rescale_factors"],
            device=facts.device,
        )
