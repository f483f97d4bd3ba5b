"""Predicates: what the contents of a metadata tensor must satisfy. Checked on generated values; at run time
the caller's duty.
"""

from __future__ import annotations

import numpy as np

from tileops.manifest import kinds as k
from tileops.manifest.primitives.registry import DomainError, Formal, predicate


@predicate("in_range", Formal("low", k.INT), Formal("high", k.INT), rank=None)
def in_range(values: np.ndarray, low: int, high: int) -> bool:
    """Every element lies in [low, high)."""
    return bool(np.all((values >= low) & (values < high)))


@predicate("prefix_offsets", Formal("total", k.INT))
def prefix_offsets(values: np.ndarray, total: int) -> bool:
    """Starts at 0, never decreases, ends at `total`."""
    return len(values) > 0 and values[0] == 0 and values[-1] == total and bool(np.all(np.diff(values) >= 0))


@predicate("max_segment", Formal("bound", k.INT))
def max_segment(values: np.ndarray, bound: int) -> bool:
    """No segment between neighbouring offsets is longer than `bound`."""
    return bool(np.all(np.diff(values) <= bound))


@predicate("sums_to", Formal("total", k.INT))
def sums_to(values: np.ndarray, total: int) -> bool:
    """The elements add up to `total`."""
    return int(values.sum()) == total


@predicate("exclusive_prefix_of", Formal("lengths", k.TENSOR, tensor=True))
def exclusive_prefix_of(values: np.ndarray, lengths: np.ndarray) -> bool:
    """The exclusive prefix sum of another tensor."""
    return values.shape == lengths.shape and bool(np.array_equal(values, np.cumsum(lengths) - lengths))


@predicate("chunk_offsets_of", Formal("offsets", k.TENSOR, tensor=True), Formal("chunk", k.INT))
def chunk_offsets_of(values: np.ndarray, offsets: np.ndarray, chunk: int) -> bool:
    """Cumulative numbers of chunks of the segments that `offsets` delimit."""
    if chunk <= 0:
        raise DomainError(f"the chunk size must be positive, got {chunk}")
    counts = -(-np.diff(offsets) // chunk)
    return bool(np.array_equal(values, np.concatenate([[0], np.cumsum(counts)])))


@predicate("indices_within", Formal("offsets", k.TENSOR, tensor=True), rank=2)
def indices_within(values: np.ndarray, offsets: np.ndarray) -> bool:
    """Each (request, position) pair lies inside the segments that `offsets` delimit."""
    if values.shape[1] != 2:
        return False
    requests, positions = values[:, 0], values[:, 1]
    if not np.all((requests >= 0) & (requests < len(offsets) - 1)):
        return False
    return bool(np.all((positions >= 0) & (positions < np.diff(offsets)[requests])))
