"""Generators: the values of metadata tensors, made from the arguments that a workload row gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tileops.manifest import kinds as k
from tileops.manifest.primitives.registry import DomainError, Formal, count, generator

LENGTHS = Formal("lengths", k.INTS)


def checked_lengths(lengths: Sequence[int]) -> np.ndarray:
    """`lengths` as an array.

    Raises:
        DomainError: one is negative.
    """
    if any(length < 0 for length in lengths):
        raise DomainError(f"lengths must not be negative, got {list(lengths)}")
    return np.asarray(lengths, dtype=np.int64)


@generator("as_tensor", LENGTHS)
def as_tensor(lengths: Sequence[int]) -> np.ndarray:
    """The list itself."""
    return np.asarray(lengths, dtype=np.int64)


@generator("prefix_sum", LENGTHS)
def prefix_sum(lengths: Sequence[int]) -> np.ndarray:
    """``[0, l0, l0 + l1, ...]``: one more element than there are lengths."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(checked_lengths(lengths))])


@generator("exclusive_prefix_sum", LENGTHS)
def exclusive_prefix_sum(lengths: Sequence[int]) -> np.ndarray:
    """``[0, l0, l0 + l1, ...]`` without the total."""
    return prefix_sum(lengths)[:-1]


@generator("packed_positions", LENGTHS)
def packed_positions(lengths: Sequence[int]) -> np.ndarray:
    """Position of each packed token in its own request."""
    parts = [np.arange(length, dtype=np.int64) for length in checked_lengths(lengths)]
    return np.concatenate([np.zeros(0, np.int64), *parts])


@generator("token_indices", LENGTHS, rank=2)
def token_indices(lengths: Sequence[int]) -> np.ndarray:
    """One (request, position) pair per packed token."""
    requests = np.repeat(np.arange(len(lengths), dtype=np.int64), checked_lengths(lengths))
    return np.stack([requests, packed_positions(lengths)], axis=1)


def _chunk_counts(lengths: Sequence[int], chunk: int) -> np.ndarray:
    if chunk <= 0:
        raise DomainError(f"the chunk size must be positive, got {chunk}")
    return -(-checked_lengths(lengths) // chunk)


@generator("chunk_indices", LENGTHS, Formal("chunk", k.INT), rank=2)
def chunk_indices(lengths: Sequence[int], chunk: int) -> np.ndarray:
    """One (request, chunk) pair per chunk."""
    return token_indices(_chunk_counts(lengths, chunk).tolist())


@generator("chunk_offsets", LENGTHS, Formal("chunk", k.INT))
def chunk_offsets(lengths: Sequence[int], chunk: int) -> np.ndarray:
    """Cumulative number of chunks, from 0."""
    return prefix_sum(_chunk_counts(lengths, chunk).tolist())


@generator("full", Formal("shape", k.SHAPE), Formal("value", k.INT), rank=None)
def full(shape: Sequence[int], value: int) -> np.ndarray:
    """One value everywhere."""
    return np.full(tuple(shape), value, dtype=np.int64)


@generator(
    "paged_block_table",
    count("batch"),
    count("width"),
    count("pool"),
    rank=2,
    random=True,
)
def paged_block_table(rng: np.random.Generator, batch: int, width: int, pool: int) -> np.ndarray:
    """Page ids ``[batch, width]``; no page is shared where the pool is large enough."""
    if pool <= 0:
        raise DomainError(f"the pool must hold at least one page, got {pool}")
    if pool >= batch * width:
        return rng.permutation(pool)[: batch * width].reshape(batch, width)
    return rng.integers(0, pool, size=(batch, width))


@generator("topk_ids", count("rows"), count("k"), count("experts"), rank=2, random=True)
def topk_ids(rng: np.random.Generator, rows: int, k: int, experts: int) -> np.ndarray:
    """``[rows, k]`` expert ids, distinct within a row."""
    if k > experts:
        raise DomainError(f"cannot draw {k} distinct ids of {experts} experts")
    return np.argsort(rng.random((rows, experts)), axis=1)[:, :k]


@generator("random_ids", count("rows"), count("width"), count("upper"), rank=2, random=True)
def random_ids(rng: np.random.Generator, rows: int, width: int, upper: int) -> np.ndarray:
    """``[rows, width]`` ids below `upper`, drawn freely."""
    if upper <= 0:
        raise DomainError(f"the upper bound must be positive, got {upper}")
    return rng.integers(0, upper, size=(rows, width))


@generator("sample_indices", count("n"), count("high"), random=True)
def sample_indices(rng: np.random.Generator, n: int, high: int) -> np.ndarray:
    """`n` distinct ids below `high`."""
    if n > high:
        raise DomainError(f"cannot draw {n} distinct ids below {high}")
    return rng.permutation(high)[:n]
