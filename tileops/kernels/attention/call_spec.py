"""Calls of the attention kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tileops.kernels.base import CallSpec, KernelInterface, TensorSpec


@dataclass(frozen=True)
class GQADenseCall(CallSpec):
    """``o = softmax(sm_scale * q k^T + mask) v`` per head, with H / H_kv query heads sharing one key/value
    head.

    Query i of S_q sees key j of S_kv where all of these hold (bottom-right aligned, ``shift = S_kv - S_q``):
    ``j <= i + shift`` if `is_causal`; ``j >= i + shift - window_left`` if ``window_left >= 0``; ``j <= i +
    shift + window_right`` if ``window_right >= 0``. A query that sees no key yields zeros.

    Attributes:
        q: ``[B, S_q, H, D]``, any strides.
        k: ``[B, S_kv, H_kv, D]``, any strides.
        v: ``[B, S_kv, H_kv, D]``, any strides.
        q_scale: ``[B, H_kv]`` float32 with float8 inputs, else None; likewise `k_scale` and `v_scale`.
        rope_cos: ``[S_kv + pad, rotary_dim // 2]`` with `pos_encoding_mode` "rope", else None; likewise
            `rope_sin`.
        o: ``[B, S_q, H, D]``, contiguous.
        is_causal: mask keys after the query.
        window_left: keys visible before the diagonal; -1 for all.
        window_right: keys visible after the diagonal; -1 for all.
        sm_scale: factor of the scores; already resolved (never None).
        softcap: scores become ``softcap * tanh(score / softcap)``; None for no cap.
        pos_encoding_mode: "rope" where the kernel rotates q and k itself.
        rotary_dim: how many elements it rotates; None without fused rope.
        rope_layout: which elements form a pair.
    """

    q: TensorSpec
    k: TensorSpec
    v: TensorSpec
    o: TensorSpec
    is_causal: bool
    sm_scale: float
    window_left: int = -1
    window_right: int = -1
    softcap: float | None = None
    q_scale: TensorSpec | None = None
    k_scale: TensorSpec | None = None
    v_scale: TensorSpec | None = None
    rope_cos: TensorSpec | None = None
    rope_sin: TensorSpec | None = None
    pos_encoding_mode: Literal["none", "rope"] = "none"
    rotary_dim: int | None = None
    rope_layout: Literal["neox", "interleaved"] = "neox"

    @property
    def group_size(self) -> int:
        """Query heads that share one key/value head."""
        return self.q.shape[2] // self.k.shape[2]


class GQADenseFwdInterface(KernelInterface):
    """``launch(q, k, v, q_scale, k_scale, v_scale, rope_cos, rope_sin, o)``; None where the call lacks a
    tensor.
    """

    call_spec = GQADenseCall
    tensors = ("q", "k", "v", "q_scale", "k_scale", "v_scale", "rope_cos", "rope_sin", "o")
