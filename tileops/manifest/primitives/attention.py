"""Metadata of attention over selected, compressed or paged keys: selected blocks and positions, key intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tileops.manifest import kinds as k
from tileops.manifest.primitives.generators import LENGTHS, checked_lengths, packed_positions, prefix_sum
from tileops.manifest.primitives.registry import DomainError, Formal, count, generator, predicate


def _positive(name: str, value: int) -> None:
    if value <= 0:
        raise DomainError(f"the {name} must be positive, got {value}")


def _drawn(rng: np.random.Generator, visible: np.ndarray, count: int, pad: int) -> np.ndarray:
    """``[len(visible), count]``: for each row distinct ids below its entry of `visible`, ascending, then `pad`.

    A row that takes t of b ids draws one from each of t strata that divide 0 .. b evenly.
    """
    taken = np.minimum(visible, count)[:, None]
    places = np.arange(count, dtype=np.int64)[None, :]
    parts = np.maximum(taken, 1)
    low, high = places * visible[:, None] // parts, (places + 1) * visible[:, None] // parts
    drawn = low + (rng.random((len(visible), count)) * (high - low)).astype(np.int64)
    return np.where(places < taken, drawn, pad)


@generator(
    "nsa_block_indices",
    LENGTHS,
    Formal("block", k.INT),
    count("selected"),
    count("heads"),
    rank=3,
    random=True,
)
def nsa_block_indices(
    rng: np.random.Generator, lengths: Sequence[int], block: int, selected: int, heads: int
) -> np.ndarray:
    """``[sum(lengths), heads, selected]``: for each packed token, blocks of its own request that it may attend to.

    Ids count within the request, distinct and ascending, at most that of the token's own block. Where a token has fewer
    than `selected` of them, the rest is the sentinel ``sum(lengths)``.
    """
    _positive("block size", block)
    total = int(checked_lengths(lengths).sum())
    visible = packed_positions(lengths) // block + 1
    return _drawn(rng, np.repeat(visible, heads), selected, total).reshape(total, heads, selected)


@generator("nsa_block_counts", count("tokens"), count("heads"), count("selected"), rank=2, random=True)
def nsa_block_counts(rng: np.random.Generator, tokens: int, heads: int, selected: int) -> np.ndarray:
    """``[tokens, heads]``: how many of the selected blocks a token attends to, from 1 to `selected`."""
    _positive("number of selected blocks", selected)
    return rng.integers(1, selected + 1, size=(tokens, heads))


@generator(
    "causal_topk_indices",
    count("batch"),
    count("queries"),
    count("heads"),
    count("k"),
    count("extent"),
    count("start"),
    Formal("stride", k.INT),
    rank=4,
    random=True,
)
def causal_topk_indices(
    rng: np.random.Generator, batch: int, queries: int, heads: int, k: int, extent: int, start: int, stride: int
) -> np.ndarray:
    """``[batch, queries, heads, k]``: distinct key positions that each query may attend to, ascending, then `extent`.

    Query i stands at position ``start + i``; a key stands for `stride` positions, so that ``(start + i + 1) // stride``
    of them, at most `extent`, lie at or before it.
    """
    _positive("stride", stride)
    visible = np.minimum((start + np.arange(queries, dtype=np.int64) + 1) // stride, extent)
    rows = np.tile(np.repeat(visible, heads), batch)
    return _drawn(rng, rows, k, extent).reshape(batch, queries, heads, k)


@generator("attn.sparse_topk_positions", LENGTHS, count("queries"), count("k"), rank=3, random=True)
def sparse_topk_positions(rng: np.random.Generator, lengths: Sequence[int], queries: int, k: int) -> np.ndarray:
    """``[len(lengths), queries, k]``: distinct cache positions that each query may attend to, ascending, then -1.

    The queries are the last tokens of their request, the last one at position ``length - 1``.
    """
    ends = checked_lengths(lengths)[:, None] - queries + 1 + np.arange(queries, dtype=np.int64)
    if np.any(ends < 1):
        raise DomainError(f"every request must hold its {queries} queries, got lengths {list(lengths)}")
    return _drawn(rng, ends.reshape(-1), k, -1).reshape(len(lengths), queries, k)


@generator("key_windows", LENGTHS, count("first"), count("count"), Formal("side", k.Str(("start", "end"))))
def key_windows(lengths: Sequence[int], first: int, count: int, side: str) -> np.ndarray:
    """``[count]``: one end of the interval of packed keys that each query sees.

    Query i is the packed token ``first + i``; it sees the keys from the start of its own request (side "start") up to
    itself ("end", exclusive).
    """
    offsets = prefix_sum(lengths)
    if first + count > offsets[-1]:
        raise DomainError(f"queries {first} to {first + count} lie outside the {offsets[-1]} packed tokens")
    tokens = first + np.arange(count, dtype=np.int64)
    if side == "end":
        return tokens + 1
    return offsets[np.searchsorted(offsets, tokens, side="right") - 1]


@predicate("attn.paged_fits", Formal("cu_seqlens", k.TENSOR, tensor=True), Formal("capacity", k.INT))
def paged_fits(values: np.ndarray, cu_seqlens: np.ndarray, capacity: int) -> bool:
    """The cached length of each request plus its new tokens, which `cu_seqlens` delimits, is at most `capacity`."""
    if len(values) != len(cu_seqlens) - 1:
        return False
    return bool(np.all((values >= 0) & (values + np.diff(cu_seqlens) <= capacity)))
