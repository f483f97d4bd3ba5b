"""References and baselines of the attention operators."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import torch.nn.functional as F

from tileops.workloads import Workload


def visible(S_q: int, S_kv: int, is_causal: bool, left: int, right: int) -> torch.Tensor | None:
    """Which keys each query sees, ``[S_q, S_kv]`` bool, bottom-right aligned; None where each sees all.

    Args:
        S_q: number of queries.
        S_kv: number of keys.
        is_causal: hide keys after the diagonal.
        left: keys before the diagonal that stay visible, -1 for all.
        right: keys after the diagonal that stay visible, -1 for all.
    """
    if not is_causal and left < 0 and right < 0:
        return None
    diagonal = torch.arange(S_q)[:, None] + S_kv - S_q
    keys = torch.arange(S_kv)[None, :]
    mask = torch.ones(S_q, S_kv, dtype=torch.bool)
    if is_causal:
        mask &= keys <= diagonal
    if left >= 0:
        mask &= keys >= diagonal - left
    if right >= 0:
        mask &= keys <= diagonal + right
    return mask


def gqa_dense(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_scale: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    rope_cos: torch.Tensor | None = None,
    rope_sin: torch.Tensor | None = None,
    *,
    is_causal: bool = True,
    window_size_left: int = -1,
    window_size_right: int = -1,
    sm_scale: float | None = None,
    softcap: float | None = None,
    pos_encoding_mode: str = "none",
    rotary_dim: int | None = None,
    rope_layout: str = "neox",
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Attention in float64, one key/value head at a time; a query that sees no key, or only keys of score minus
    infinity, gives zeros.

    Float8 scales multiply their tensor per batch entry and key/value head. With fused rope the last query has the
    position of the last key.
    """
    B, S_q, H, D = q.shape
    S_kv, H_kv = k.shape[1:3]
    group = H // H_kv
    scale = 1 / math.sqrt(D) if sm_scale is None else sm_scale
    hidden = visible(S_q, S_kv, is_causal, window_size_left, window_size_right)
    q, k, v = q.double(), k.double(), v.double()
    if q_scale is not None and k_scale is not None and v_scale is not None:
        q = q * q_scale.double().repeat_interleave(group, 1)[:, None, :, None]
        k = k * k_scale.double()[:, None, :, None]
        v = v * v_scale.double()[:, None, :, None]
    if pos_encoding_mode == "rope":
        assert rope_cos is not None
        assert rope_sin is not None
        cos, sin = rope_cos.double(), rope_sin.double()
        width = D if rotary_dim is None else rotary_dim
        first = S_kv - S_q
        if first < 0:
            raise NotImplementedError("fused rope with more queries than keys has no position for the first queries")
        q = _rotated(q, cos[first:S_kv], sin[first:S_kv], width, rope_layout)
        k = _rotated(k, cos[:S_kv], sin[:S_kv], width, rope_layout)
    o = torch.zeros(B, S_q, H, D, dtype=torch.float64, device=q.device)
    for head in range(H_kv):
        mine = slice(head * group, (head + 1) * group)
        scores = torch.einsum("bqgd,bkd->bgqk", q[:, :, mine], k[:, :, head]) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if hidden is not None:
            scores = scores.masked_fill(~hidden.to(scores.device), -math.inf)
        # Where nothing is left to weigh, the softmax is NaN.
        weights = scores.softmax(-1).masked_fill((scores == -math.inf).all(-1, keepdim=True), 0.0)
        o[:, :, mine] = _weighted(weights, v[:, :, head], hidden)
    return o


def _weighted(weights: torch.Tensor, v: torch.Tensor, hidden: torch.Tensor | None) -> torch.Tensor:
    """``weights[b, g, q, k]`` times ``v[b, k, d]`` to ``[b, q, g, d]``."""
    if hidden is None or bool(v.isfinite().all()):
        return torch.einsum("bgqk,bkd->bqgd", weights, v)
    used = weights[..., None] * v[:, None, None]
    used = used.masked_fill(~hidden.to(v.device)[:, :, None], 0.0)
    return used.sum(-2).transpose(1, 2)


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, width: int, layout: str) -> torch.Tensor:
    """The first `width` elements of each head of ``x[B, S, H, D]`` turned, by tables ``[S, width / 2]``."""
    cos, sin = cos[:, None, :], sin[:, None, :]
    head, rest = x[..., :width], x[..., width:]
    if layout == "neox":
        first, second = head.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)
    first, second = head[..., 0::2], head[..., 1::2]
    turned = torch.stack((first * cos - second * sin, second * cos + first * sin), -1).flatten(-2)
    return torch.cat((turned, rest), -1)


# -- PyTorch formulations --------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=16)
def _mask(S_q: int, S_kv: int, is_causal: bool, left: int, right: int, repeat: int = 1) -> torch.Tensor | None:
    """`visible`, kept between calls as a model keeps the mask of a step for all its layers.

    `repeat` tiles the rows for queries of one group that follow each other.
    """
    mask = visible(S_q, S_kv, is_causal, left, right)
    return mask if mask is None or repeat == 1 else mask.repeat(repeat, 1)


def _plain_only(params: dict[str, Any]) -> None:
    """The PyTorch formulations know no softcap, fused rope or scales.

    Raises:
        NotImplementedError: the call has one of them.
    """
    if params.get("softcap") is not None or params.get("pos_encoding_mode", "none") != "none":
        raise NotImplementedError("scaled_dot_product_attention has neither softcap nor fused rope")
    if params.get("out_dtype") is not None:
        raise NotImplementedError("scaled_dot_product_attention returns the dtype of its inputs")


def _window(params: dict[str, Any]) -> tuple[bool, int, int]:
    return params["is_causal"], params["window_size_left"], params["window_size_right"]


def _is_unmasked(S_q: int, params: dict[str, Any]) -> bool:
    """Whether every query sees every key: also the causal mask of a single query."""
    causal, left, right = _window(params)
    return left < 0 and right < 0 and (not causal or S_q == 1)


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **params: Any) -> torch.Tensor:
    """`scaled_dot_product_attention` with ``enable_gqa``."""
    _plain_only(params)
    S_q, S_kv, grouped = q.shape[1], k.shape[1], q.shape[2] != k.shape[2]
    Q, K, V = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    scale = params["sm_scale"]
    if _is_unmasked(S_q, params):
        o = F.scaled_dot_product_attention(Q, K, V, scale=scale, enable_gqa=grouped)
    elif S_q == S_kv and params["window_size_left"] < 0 and params["window_size_right"] < 0:
        o = F.scaled_dot_product_attention(Q, K, V, is_causal=True, scale=scale, enable_gqa=grouped)
    else:
        mask = _mask(S_q, S_kv, *_window(params))
        o = F.scaled_dot_product_attention(Q, K, V, attn_mask=mask, scale=scale, enable_gqa=grouped)
    return o.transpose(1, 2)


def _sdpa_folded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **params: Any) -> torch.Tensor:
    """`scaled_dot_product_attention` where the query heads of a group are further query positions."""
    _plain_only(params)
    B, S_q, H, D = q.shape
    S_kv, H_kv = k.shape[1:3]
    group = H // H_kv
    Q = q.view(B, S_q, H_kv, group, D).permute(0, 2, 3, 1, 4).reshape(B, H_kv, group * S_q, D)
    mask = None if _is_unmasked(S_q, params) else _mask(S_q, S_kv, *_window(params), repeat=group)
    o = F.scaled_dot_product_attention(
        Q, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, scale=params["sm_scale"]
    )
    return o.view(B, H_kv, group, S_q, D).permute(0, 3, 1, 2, 4).reshape(B, S_q, H, D)


def _sdpa_expanded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **params: Any) -> torch.Tensor:
    """`scaled_dot_product_attention` after repeating the key/value heads."""
    group = q.shape[2] // k.shape[2]
    return _sdpa(q, k.repeat_interleave(group, 2), v.repeat_interleave(group, 2), **params)


def _manual(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **params: Any) -> torch.Tensor:
    """Matrix product, softmax, matrix product, with the group folded into the query length."""
    _plain_only(params)
    B, S_q, H, D = q.shape
    S_kv, H_kv = k.shape[1:3]
    group = H // H_kv
    scale = D**-0.5 if params["sm_scale"] is None else params["sm_scale"]
    Q = q.view(B, S_q, H_kv, group, D).permute(0, 2, 3, 1, 4).reshape(B, H_kv, group * S_q, D)
    scores = torch.matmul(Q, k.permute(0, 2, 3, 1)) * scale
    if not _is_unmasked(S_q, params):
        mask = _mask(S_q, S_kv, *_window(params), repeat=group)
        assert mask is not None
        scores.masked_fill_(~mask, -math.inf)
    o = torch.matmul(scores.softmax(-1), v.transpose(1, 2))
    return o.view(B, H_kv, group, S_q, D).permute(0, 3, 1, 2, 4).reshape(B, S_q, H, D)


WORKLOADS = (
    Workload(
        "GQADenseFwdOp",
        gqa_dense,
        torch={
            "sdpa": _sdpa,
            "sdpa-folded": _sdpa_folded,
            "sdpa-expanded": _sdpa_expanded,
            "manual": _manual,
        },
        cold=("k", "v"),
    ),
)
