"""Rotary position embedding with the frequencies of Llama 3.1."""

from __future__ import annotations

from typing import ClassVar, Literal

from tileops.kernels.rope.call_spec import RoPECall, RoPEFwdInterface
from tileops.kernels.rope.rope_cpu import RoPECpuKernel
from tileops.kernels.rope.rope_cuda import RoPECudaKernel
from tileops.kernels.rope.scaling import llama31
from tileops.ops.base import Op
from tileops.ops.facts import CallFacts


class RoPELlama31FwdOp(Op):
    """Rotary position embedding of a sequence that starts at position 0, with the frequencies of Llama 3.1.

    Pairs that turn more than `high_freq_factor` times within `original_max_position` positions turn as in `RoPEFwdOp`,
    those that turn less than `low_freq_factor` times are slowed down by `scale_factor`, and between them the frequency
    is interpolated.

    Follows ``flashinfer.rope.apply_llama31_rope_pos_ids``; angles and products are float32 or better, rounded once.

    Args:
        rope_layout: pairs are elements (i, i + D/2) for "neox" and (2i, 2i + 1) for "interleaved".
        input_layout: "1d" for ``[S, D]``, "2d" for ``[B, S, H, D]``.
        base: base of the frequencies, positive.
        scale_factor: by which slow pairs are slowed down, positive.
        low_freq_factor: turns within the original length below which a pair is slow, positive.
        high_freq_factor: turns above which a pair is fast, more than `low_freq_factor`.
        original_max_position: the original length, positive.
        target: which set of kernels serves the op; None decides by the device of each call.

    Call:
        ``op(x)``

        - x: as `input_layout` says, D even; float16, bfloat16 or float32, any strides.

        Returns `output`: shape and dtype of `x`, contiguous.

    Raises:
        CheckError: a parameter or the tensor violates the manifest entry; the message names the declaration.

    Example:
        >>> q = RoPELlama31FwdOp(base=500000.0, scale_factor=8.0)(q)
    """

    kernel_types: ClassVar = {"cpu": RoPECpuKernel, "cuda": RoPECudaKernel}
    interfaces: ClassVar = {"rope": RoPEFwdInterface}

    def __init__(
        self,
        rope_layout: Literal["neox", "interleaved"] = "neox",
        input_layout: Literal["1d", "2d"] = "2d",
        base: float = 500000.0,
        scale_factor: float = 8.0,
        low_freq_factor: float = 1.0,
        high_freq_factor: float = 4.0,
        original_max_position: int = 8192,
        *,
        target: str | None = None,
    ) -> None:
        self.rope_layout = rope_layout
        self.input_layout = input_layout
        self.base = base
        self.scale_factor = scale_factor
        self.low_freq_factor = low_freq_factor
        self.high_freq_factor = high_freq_factor
        self.original_max_position = original_max_position
        super().__init__(target=target)

    def _call_spec(self, facts: CallFacts) -> RoPECall:
        return RoPECall(
            x=facts["x"],
            output=facts["output"],
            rope_layout=self.rope_layout,
            input_layout=self.input_layout,
            base=float(self.base),
            scaling=llama31(self.scale_factor, self.low_freq_factor, self.high_freq_factor, self.original_max_position),
            device=facts.device,
        )
