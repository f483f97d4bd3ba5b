"""Costs of attention over all keys that a mask lets through: dense, packed and paged."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
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


Mask = tuple[bool, int, int]
"""``(is_causal, window_left, window_right)`` as the functions above take them."""


def lengths_of(call: Any, offsets: str) -> list[int]:
    """Lengths of the segments that a tensor of offsets delimits."""
    bounds = call.metadata_values(offsets).tolist()
    return [stop - start for start, stop in pairwise(bounds)]


def bytes_of(call: Any, *names: str) -> int:
    """Bytes of the named tensors together; absent ones count nothing."""
    return sum(call.bytes(name) for name in names)


def part_of(call: Any, name: str, used: int, held: int) -> int:
    """Bytes of `used` of the `held` equal rows of a tensor."""
    return call.bytes(name) * min(used, held) // held if held else 0


def _seen(q_lens: Sequence[int], kv_lens: Sequence[int], mask: Mask) -> tuple[int, int]:
    """``(scores, keys)`` of several requests: visible pairs, and keys that some query sees."""
    pairs = list(zip(q_lens, kv_lens, strict=True))
    scores = sum(visible_scores(s_q, s_kv, *mask) for s_q, s_kv in pairs)
    return scores, sum(_keys_needed(s_q, s_kv, *mask) for s_q, s_kv in pairs)


def _window(index: Any) -> Mask:
    return index["is_causal"], index["window_size_left"], index["window_size_right"]


def _table_entries(kv_lens: Sequence[int], page: int) -> int:
    """Pages that hold these many tokens."""
    return sum(-(-length // page) for length in kv_lens)


def gqa_varlen_fwd(call: Any) -> tuple[int, int]:
    """`gqa_dense_fwd` of each packed request."""
    index = call.indices
    heads, head_dim = index["H"], index["D"]
    q_lens, kv_lens = lengths_of(call, "cu_seqlens_q"), lengths_of(call, "cu_seqlens_kv")
    scores, keys = _seen(q_lens, kv_lens, _window(index))
    per_score = 4 * head_dim + 5 + (3 if call.present("softcap") else 0)
    flops = heads * (scores * per_score + index["T_q"] * head_dim)
    moved = bytes_of(call, "q", "o", "cu_seqlens_q", "cu_seqlens_kv", "q_scale", "k_scale", "v_scale")
    moved += part_of(call, "k", keys, index["T_kv"]) + part_of(call, "v", keys, index["T_kv"])
    if index["pos_encoding_mode"] == "rope":
        rotated = index["rotary_dim"] if index["rotary_dim"] is not None else head_dim
        flops += 4 * rotated * (index["T_q"] * heads + keys * index["H_kv"])
        rows = max(kv_lens, default=0)
        moved += part_of(call, "rope_cos", rows, index["P"]) + part_of(call, "rope_sin", rows, index["P"])
    return flops, moved


def gqa_paged_fwd(call: Any) -> tuple[int, int]:
    """`gqa_dense_fwd` of each request over its pages: reads the keys that some query sees, and the entries of the page
    table for them.
    """
    index = call.indices
    heads, head_dim = index["H"], index["D"]
    kv_lens = call.metadata_values("cache_seqlens").tolist()
    packed = call.present("cu_seqlens_q")
    q_lens = lengths_of(call, "cu_seqlens_q") if packed else [index["S_q"]] * index["B"]
    scores, keys = _seen(q_lens, kv_lens, _window(index))
    per_score = 4 * head_dim + 5 + (3 if call.present("softcap") else 0)
    flops = heads * (scores * per_score + sum(q_lens) * head_dim)
    held = index["NP"] * index["PS"]
    moved = bytes_of(call, "q", "o", "cache_seqlens", "cu_seqlens_q", "q_scale", "k_scale", "v_scale")
    moved += part_of(call, "k_pages", keys, held) + part_of(call, "v_pages", keys, held)
    entries = min(keys, _table_entries(kv_lens, index["PS"]))
    return flops, moved + part_of(call, "page_table", entries, index["B"] * index["W"])


def gqa_prefill_paged_fwd(call: Any) -> tuple[int, int]:
    """New tokens are stored, then attend to the cache and to themselves: reads the cached keys, writes the new ones.

    Storing in float8 divides each element by its scale; fused rotation adds 4 per rotated element of q and k_new.
    """
    index = call.indices
    heads, kv_heads, head_dim, tokens = index["H"], index["H_kv"], index["D"], index["T_q"]
    q_lens = lengths_of(call, "cu_seqlens_q")
    cached = call.metadata_values("cache_seqlens").tolist()
    kv_lens = [old + new for old, new in zip(cached, q_lens, strict=True)]
    scores, _ = _seen(q_lens, kv_lens, (index["is_causal"], -1, -1))
    per_score = 4 * head_dim + 5 + (3 if call.present("softcap") else 0)
    flops = heads * (scores * per_score + tokens * head_dim)
    if call.present("k_scale"):
        flops += 2 * tokens * kv_heads * head_dim
    if index["fuse_rope"]:
        rotated = index["rotary_dim"] if index["rotary_dim"] is not None else head_dim
        flops += 4 * rotated * tokens * (heads + kv_heads)
    touched = tokens + sum(old for old, new in zip(cached, q_lens, strict=True) if new)
    moved = bytes_of(call, "q", "k_new", "v_new", "o", "cu_seqlens_q", "cache_seqlens", "k_scale", "v_scale")
    moved += part_of(call, "k_pages", touched, index["PT"]) + part_of(call, "v_pages", touched, index["PT"])
    entries = _table_entries(kv_lens, index["page_size"])
    return flops, moved + part_of(call, "block_table", entries, index["B"] * index["W"])


def mha_decode_paged_fwd(call: Any) -> tuple[int, int]:
    """Attention of a few queries per request over a pool of pages."""
    index = call.indices
    heads, head_dim, s_q = index["H"], index["D"], index["S_q"]
    kv_lens = call.metadata_values("real_seqlen_kv").tolist()
    scores, keys = _seen([s_q] * len(kv_lens), kv_lens, (index["is_causal"], -1, -1))
    flops = heads * (scores * (4 * head_dim + 5) + index["B"] * s_q * head_dim)
    moved = bytes_of(call, "q", "o", "real_seqlen_kv")
    moved += part_of(call, "k", keys, index["N_kv"]) + part_of(call, "v", keys, index["N_kv"])
    entries = min(keys, _table_entries(kv_lens, index["page_size"]))
    return flops, moved + part_of(call, "block_table", entries, index["B"] * index["W"])


def mla_paged_fwd(call: Any) -> tuple[int, int]:
    """Attention over a paged latent cache, whose rows are keys and, up to `kv_lora_rank`, values of every head."""
    index = call.indices
    heads, size, latent, s_q = index["H"], index["D"], index["kv_lora_rank"], index["S_q"]
    kv_lens = call.metadata_values("cache_seqlens").tolist()
    scores, keys = _seen([s_q] * len(kv_lens), kv_lens, (index["is_causal"], -1, -1))
    flops = heads * (scores * (2 * size + 2 * latent + 5) + index["B"] * s_q * latent)
    moved = bytes_of(call, "q", "o", "lse", "cache_seqlens", "kv_scale")
    moved += part_of(call, "kv_cache", keys, index["NP"] * index["PS"])
    entries = min(keys, _table_entries(kv_lens, index["PS"]))
    return flops, moved + part_of(call, "block_table", entries, index["B"] * index["W"])


def mla_varlen_fwd(call: Any) -> tuple[int, int]:
    """Attention of packed requests with keys that end in a rotary part common to the heads."""
    index = call.indices
    scores, keys = _seen(
        lengths_of(call, "cu_seqlens_q"), lengths_of(call, "cu_seqlens_kv"), (index["is_causal"], -1, -1)
    )
    per_score = 2 * (index["DN"] + index["PE"]) + 2 * index["DV"] + 5
    flops = index["H"] * (scores * per_score + index["T_q"] * index["DV"])
    moved = bytes_of(call, "q", "o", "lse", "cu_seqlens_q", "cu_seqlens_kv")
    return flops, moved + sum(part_of(call, name, keys, index["T_kv"]) for name in ("k_nope", "k_pe", "v"))
