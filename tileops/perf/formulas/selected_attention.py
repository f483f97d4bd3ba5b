"""Costs of attention over keys that metadata selects: compressed keys, chosen blocks and positions, and the indexers
that choose them.
"""

from __future__ import annotations

from typing import Any

from tileops.perf.formulas.attention import bytes_of, lengths_of, part_of


def _compressed_scores(call: Any) -> int:
    """Pairs of a token and a block of its request that ends at or before it."""
    block = call.indices["block_size"]
    total = 0
    for length in lengths_of(call, "offsets"):
        whole, rest = divmod(length, block)
        # `block` tokens each see 1, 2, .. whole - 1 blocks; the tokens from the end of the last one on see them all.
        total += block * (whole * (whole - 1) // 2) + (rest + 1) * whole if whole else 0
    return total


def nsa_compressed_varlen_fwd(call: Any) -> tuple[int, int]:
    """Attention of each token over the compressed keys of its past."""
    index = call.indices
    per_score = 2 * index["DK"] + 2 * index["DV"] + 5
    flops = index["H"] * (_compressed_scores(call) * per_score + index["T_q"] * index["DV"])
    return flops, bytes_of(call, *call.tensors)


def nsa_topk_varlen_fwd(call: Any) -> tuple[int, int]:
    """The softmax over compressed keys, summed over the heads of a group, and one comparison per sum. `lse_in` is not
    read.
    """
    index = call.indices
    per_score = index["H"] * (2 * index["DK"] + 7) + index["H_kv"]
    return _compressed_scores(call) * per_score, bytes_of(call, *call.tensors) - call.bytes("lse_in")


def nsa_varlen_fwd(call: Any) -> tuple[int, int]:
    """Attention over the selected blocks, each cut off after the token itself."""
    index = call.indices
    block, head_dim = index["block_size"], index["D"]
    chosen = call.metadata_values("block_indices")
    counts = call.metadata_values("block_counts")
    positions = call.metadata_values("token_indices")[:, 1].reshape(-1, 1, 1)
    places = range(chosen.shape[2])
    first = chosen * block
    seen = (positions + 1 - first).clip(0, block)
    scores = sum(int(seen[:, :, place][counts > place].sum()) for place in places)
    flops = index["H"] // index["H_kv"] * scores * (4 * head_dim + 5) + index["N"] * index["H"] * head_dim
    return flops, bytes_of(call, *call.tensors)


def _distinct(rows: Any, stop: int) -> int:
    """Distinct non-negative elements below `stop` of an array."""
    return len({value for value in rows.reshape(-1).tolist() if 0 <= value < stop})


def dsa_decode_fwd(call: Any) -> tuple[int, int]:
    """Attention over chosen rows of a latent cache; reads each chosen row once."""
    index = call.indices
    size, tail, s_kv = index["D"], index["dim_tail"], index["S_kv"]
    chosen = call.metadata_values("indices")
    scores = int(((chosen >= 0) & (chosen < s_kv)).sum())
    per_score = 2 * (size + tail) + 2 * size + 5
    flops = index["H"] // index["H_kv"] * scores * per_score + index["B"] * index["S"] * index["H"] * size
    rows = sum(_distinct(chosen[batch, :, head], s_kv) for batch in range(index["B"]) for head in range(index["H_kv"]))
    moved = bytes_of(call, "q", "indices", "o")
    return flops, moved + part_of(call, "kv", rows, index["B"] * s_kv * index["H_kv"])


def dsa_paged_fwd(call: Any) -> tuple[int, int]:
    """Attention over chosen rows of a paged float8 cache; a row that is read is scaled once, 512 products."""
    index = call.indices
    chosen = call.metadata_values("indices")
    scores = int((chosen >= 0).sum())
    held = index["NP"] * index["PS"]
    rows = sum(_distinct(chosen[batch], index["W"] * index["PS"]) for batch in range(index["B"]))
    flops = index["H"] * (scores * (2 * 576 + 2 * 512 + 5) + index["B"] * index["S_q"] * 512) + 512 * rows
    moved = bytes_of(call, "q", "indices", "cache_seqlens", "o", "lse") + part_of(call, "kv_pages", rows, held)
    return flops, moved + part_of(call, "block_table", rows, index["B"] * index["W"])


def lightning_indexer_fwd(call: Any) -> tuple[int, int]:
    """Per head and visible key the product, a selection, and a weighted sum; per visible key its scale."""
    index = call.indices
    first, stop = call.metadata_values("cu_seqlen_ks"), call.metadata_values("cu_seqlen_ke")
    seen = int((stop - first).clip(0).sum())
    groups, s_kv = index["G"], index["S_kv"]
    per_key = index["H"] * (2 * index["D"] + 3) + (groups if call.present("index_k_scale") else 0)
    moved = bytes_of(call, "index_q", "weights", "cu_seqlen_ks", "cu_seqlen_ke")
    keys = int(stop.max() - first.min()) if seen else 0
    moved += part_of(call, "index_k", keys, s_kv) + part_of(call, "index_k_scale", keys, s_kv)
    written = index["S"] * s_kv if index["clean_logits"] else seen
    return index["B"] * seen * per_key, moved + part_of(call, "logits", written, index["S"] * s_kv)


def topk_select_fwd(call: Any) -> tuple[int, int]:
    """One comparison per score of an interval; scores outside it are not read."""
    index = call.indices
    seen = int((call.metadata_values("ends") - call.metadata_values("starts")).clip(0).sum())
    moved = bytes_of(call, "starts", "ends", "indexes")
    held = index["B"] * index["S"] * index["S_kv"]
    return seen * index["G"], moved + part_of(call, "index_score", seen, held)
