"""Costs that no inline formula expresses: ``f(call) -> (flops, bytes)``, named by `roofline.func` of an
entry.

`call` is a `tileops.manifest.roofline.CallView`. FLOPs are the least arithmetic of the algorithm, one per
add, multiply, divide, transcendental or select; bytes the least traffic, each distinct element that is needed
once. No torch here.
"""

from __future__ import annotations

from typing import Any


def visible_range(
    query: int, s_q: int, s_kv: int, is_causal: bool, window_left: int, window_right: int
) -> tuple[int, int]:
    """Keys ``[first, stop)`` that one query sees, aligned at the bottom right: query i sits at key position
    ``i + s_kv - s_q``.
    """
    position = query + s_kv - s_q
    last = s_kv - 1
    if is_causal:
        last = min(last, position)
    if window_right >= 0:
        last = min(last, position + window_right)
    first = max(0, position - window_left) if window_left >= 0 else 0
    return (first, last + 1) if last >= first else (0, 0)


def visible_scores(s_q: int, s_kv: int, is_causal: bool, window_left: int = -1, window_right: int = -1) -> int:
    """Number of (query, key) pairs that the mask lets through, in closed form per side of the window.

    A query at position p sees keys max(0, p - left) .. min(s_kv - 1, p + right); causal is right = 0.
    """
    right = window_right if window_right >= 0 else s_kv + s_q
    if is_causal:
        right = 0
    left = window_left if window_left >= 0 else s_kv + s_q
    first_position, stop_position = s_kv - s_q, s_kv
    # Keys at most p + right, less those below p - left; both are sums of clamped arithmetic progressions.
    upto = _clamped_sum(first_position + right + 1, stop_position + right + 1, s_kv)
    below = _clamped_sum(first_position - left, stop_position - left, s_kv)
    return upto - below


def _clamped_sum(start: int, stop: int, high: int) -> int:
    """Sum of ``min(max(value, 0), high)`` over ``start <= value < stop``."""
    low, top = max(start, 0), min(stop, high)
    rising = (low + top - 1) * (top - low) // 2 if top > low else 0
    return rising + high * max(0, stop - max(start, high))


def _keys_needed(s_q: int, s_kv: int, is_causal: bool, window_left: int, window_right: int) -> int:
    """Keys that at least one query sees; neighbouring queries see overlapping or adjoining ranges."""
    ranges = [
        visible_range(query, s_q, s_kv, is_causal, window_left, window_right) for query in _edge_queries(s_q, s_kv)
    ]
    seen = [span for span in ranges if span[1] > span[0]]
    return max(stop for _, stop in seen) - min(first for first, _ in seen) if seen else 0


def _edge_queries(s_q: int, s_kv: int) -> list[int]:
    """Queries whose ranges bound the union: first, last, and the first at a key position that exists."""
    candidates = {0, s_q - 1, s_q - s_kv, s_q - s_kv - 1}
    return sorted(query for query in candidates if 0 <= query < s_q)


def gqa_dense_fwd(call: Any) -> tuple[int, int]:
    """Grouped-query attention: ``4 D + 5`` per visible score (two products and the softmax), 3 more with a
    soft cap, and one division per output element; fused rotation adds 4 per rotated element of q and k. Reads
    the keys and values that some query sees.
    """
    index = call.indices
    batch, heads, kv_heads, head_dim = index["B"], index["H"], index["H_kv"], index["D"]
    s_q, s_kv = index["S_q"], index["S_kv"]
    mask = (index["is_causal"], index["window_size_left"], index["window_size_right"])
    per_score = 4 * head_dim + 5 + (3 if call.present("softcap") else 0)
    flops = batch * heads * (visible_scores(s_q, s_kv, *mask) * per_score + s_q * head_dim)
    keys = _keys_needed(s_q, s_kv, *mask)
    moved = call.bytes("q") + call.bytes("o") + sum(call.bytes(name) for name in ("q_scale", "k_scale", "v_scale"))
    if s_kv:
        moved += (call.bytes("k") + call.bytes("v")) * keys // s_kv
    if index["pos_encoding_mode"] == "rope":
        rotated = index["rotary_dim"] if index["rotary_dim"] is not None else head_dim
        flops += 4 * batch * rotated * (s_q * heads + keys * kv_heads)
        moved += 2 * 4 * min(s_kv, index["P"]) * (rotated // 2)
    return flops, moved
