"""Rotary position embedding scaled by YaRN."""

from __future__ import annotations

from typing import ClassVar, Literal

from tileops.kernels.rope.call_spec import RoPECall, RoPEFwdInterface
from tileops.kernels.rope.rope_cpu import RoPECpuKernel
from tileops.kernels.rope.rope_cuda import RoPECudaKernel
from tileops.kernels.rope.scaling import yarn
from tileops.ops.base import Op
from tileops.ops.facts import CallFacts


class YaRNFwdOp(Op):
    """Rotary position embedding of a sequence that starts at position 0, scaled by YaRN.

    Pairs that turn more than `beta_fast` times within `original_max_position` positions turn as in `RoPEFwdOp`, those
    that turn less than `beta_slow` times are slowed down by `scale`, with a ramp over the pairs between. Turned vectors
    are multiplied by `attn_factor`, and where `scale` exceeds 1 also by ``0.1 * log(scale) + 1``.

    Follows vLLM's ``YaRNScalingRotaryEmbedding``; angles and products are float32 or better, rounded once.

    Args:
        rope_layout: pairs are elements (i, i + D/2) for "neox" and (2i, 2i + 1) for "interleaved".
        input_layout: "1d" for ``[S, D]``, "2d" for ``[B, S, H, D]``.
        base: base of the frequencies, positive and not 1.
        scale: longest position over the original one, positive.
        original_max_position: the original length, positive.
        beta_fast: turns within the original length above which a pair is fast.
        beta_slow: turns below which a pair is slow, positive and at most `beta_fast`.
        attn_factor: factor of the turned vectors.
        target: which set of kernels serves the op; None decides by the device of each call.

    Call:
        ``op(x)``

        - x: as `input_layout` says, D even; float16, bfloat16 or float32, any strides.

        Returns `output`: shape and dtype of `x`, contiguous.

    Raises:
        CheckError: a parameter or the tensor violates the manifest entry; the message names the declaration.

    Example:
        >>> q = YaRNFwdOp(base=1000000.0, scale=4.0, original_max_position=32768)(q)
    """

    kernel_types: ClassVar = {"cpu": RoPECpuKernel, "cuda": RoPECudaKernel}
    interfaces: ClassVar = {"rope": RoPEFwdInterface}

    def __init__(
        self,
        rope_layout: Literal["neox", "interleaved"] = "neox",
        input_layout: Literal["1d", "2d"] = "2d",
        base: float = 10000.0,
        scale: float = 1.0,
        original_max_position: int = 4096,
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
        attn_factor: float = 1.0,
        *,
        target: str | None = None,
    ) -> None:
        self.rope_layout = rope_layout
        self.input_layout = input_layout
        self.base = base
        self.scale = scale
        self.original_max_position = original_max_position
        self.beta_fast = beta_fast
        self.beta_slow = beta_slow
        self.attn_factor = attn_factor
        super().__init__(target=target)

    def _call_spec(self, facts: CallFacts) -> RoPECall:
        x = facts["x"]
        base = float(self.base)
        return RoPECall(
            x=x,
            output=facts["output"],
            rope_layout=self.rope_layout,
            input_layout=self.input_layout,
            base=base,
            scaling=yarn(
                x.shape[-1], base, self.scale, self.original_max_position,
                self.beta_fast, self.beta_slow, self.attn_factor,
            ),
            device=facts.device,
        )  # fmt: skip
