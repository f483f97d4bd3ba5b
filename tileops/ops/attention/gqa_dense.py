"""Grouped-query attention over dense tensors."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch

from tileops.kernels.attention.call_spec import GQADenseCall, GQADenseFwdInterface
from tileops.kernels.attention.gqa_dense_cpu import GQADenseDecodeCpuKernel, GQADensePrefillCpuKernel
from tileops.ops.base import Op
from tileops.ops.dtypes import tensor_core_key
from tileops.ops.facts import CallFacts


class GQADenseFwdOp(Op):
    """Grouped-query attention over dense batches: ``o = softmax(sm_scale * q k^T + mask) v`` per head.

    Query heads share key/value heads in groups of H / H_kv. Masks are aligned bottom-right: with ``shift =
    S_kv - S_q``, query i sees key j where ``j <= i + shift`` (if causal) and ``i + shift - window_size_left
    <= j <= i + shift + window_size_right`` (for sizes that are not -1). A query that sees no key yields
    zeros.

    Follows ``flash_attn.flash_attn_func``; scores and sums are float32 (online softmax), rounded once.

    Args:
        is_causal: mask keys after the query.
        window_size_left: keys visible before the diagonal, -1 for all.
        window_size_right: keys visible after the diagonal, -1 for all.
        sm_scale: factor of the scores; None for ``1 / sqrt(D)``.
        softcap: scores become ``softcap * tanh(score / softcap)``; None for no cap.
        pos_encoding_mode: "rope" to rotate q and k inside, with the tables `rope_cos` and `rope_sin`.
        rotary_dim: elements that rotate; None for the whole head.
        rope_layout: which elements form a pair, "neox" or "interleaved".
        out_dtype: dtype of `o`; None for that of `q`.
        target: which set of kernels serves the op; None decides by the device of each call.

    Call:
        ``op(q, k, v, q_scale=None, k_scale=None, v_scale=None, rope_cos=None, rope_sin=None)``

        - q: ``[B, S_q, H, D]``; k, v: ``[B, S_kv, H_kv, D]``; one dtype, any strides.
        - q_scale, k_scale, v_scale: ``[B, H_kv]`` float32, with float8 inputs.
        - rope_cos, rope_sin: ``[S_kv or more, rotary_dim / 2]`` float32, with ``pos_encoding_mode="rope"``.

        Returns `o`: ``[B, S_q, H, D]``, contiguous.

    Raises:
        CheckError: a parameter or a tensor violates the manifest entry; the message names the declaration.
        DispatchError: no kernel serves the call (the message lists each kernel's reason).

    Example:
        >>> attention = GQADenseFwdOp(is_causal=True)
        >>> o = attention(q, k_cache[:, :n], v_cache[:, :n])
    """

    kernel_types: ClassVar = {"cpu_decode": GQADenseDecodeCpuKernel, "cpu_prefill": GQADensePrefillCpuKernel}
    interfaces: ClassVar = {"gqa_dense": GQADenseFwdInterface}

    def __init__(
        self,
        is_causal: bool = True,
        window_size_left: int = -1,
        window_size_right: int = -1,
        sm_scale: float | None = None,
        softcap: float | None = None,
        pos_encoding_mode: Literal["none", "rope"] = "none",
        rotary_dim: int | None = None,
        rope_layout: Literal["neox", "interleaved"] = "neox",
        out_dtype: torch.dtype | None = None,
        *,
        target: str | None = None,
    ) -> None:
        self.is_causal = is_causal
        self.window_size_left = window_size_left
        self.window_size_right = window_size_right
        self.sm_scale = sm_scale
        self.softcap = softcap
        self.pos_encoding_mode = pos_encoding_mode
        self.rotary_dim = rotary_dim
        self.rope_layout = rope_layout
        self.out_dtype = out_dtype
        super().__init__(target=target)

    def roof_key(self) -> str:
        """Tensor cores for the dtypes that they multiply, by the last call; CUDA cores for float32."""
        return tensor_core_key(self.dtype)

    def _call_spec(self, facts: CallFacts) -> GQADenseCall:
        head_dim = facts["q"].shape[3]
        fused_rope = self.pos_encoding_mode == "rope"
        return GQADenseCall.made(
            {
                "q": facts["q"],
                "k": facts["k"],
                "v": facts["v"],
                "o": facts["o"],
                "is_causal": self.is_causal,
                "sm_scale": 1 / math.sqrt(head_dim) if self.sm_scale is None else float(self.sm_scale),
                "window_left": self.window_size_left,
                "window_right": self.window_size_right,
                "softcap": None if self.softcap is None else float(self.softcap),
                "q_scale": facts["q_scale"],
                "k_scale": facts["k_scale"],
                "v_scale": facts["v_scale"],
                "rope_cos": facts["rope_cos"],
                "rope_sin": facts["rope_sin"],
                "pos_encoding_mode": self.pos_encoding_mode,
                "rotary_dim": (self.rotary_dim or head_dim) if fused_rope else None,
                "rope_layout": self.rope_layout,
                "device": facts.device,
            }
        )
