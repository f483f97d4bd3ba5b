"""Members of the family moe: capacity and metadata of grouped layouts.

Layouts are values of the ADT ``MGroupedLayout``. *contiguous*: the experts' rows follow each other, tight or each
expert at a multiple of `alignment`; *masked*: each expert has a block of `max_m` rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tileops.manifest import kinds as k
from tileops.manifest.primitives.general import balanced_sizes, ceil_div
from tileops.manifest.primitives.registry import DomainError, Formal, count, generator, predicate, primitive

LAYOUT = Formal("layout", k.ADT("MGroupedLayout"))
ROWS, EXPERTS = count("rows"), count("experts")


@primitive("moe.capacity", LAYOUT, ROWS, EXPERTS, result=k.DIM)
def capacity(layout: Any, rows: int, experts: int) -> int:
    """Rows of the tensor that holds `rows` routed rows of `experts` experts.

    ``experts * max_m`` for a masked layout, `rows` for tight packing; with an alignment a, each expert may waste
    ``a - 1`` rows: ``rows + experts * (a - 1)``, rounded up to a multiple of a.
    """
    if layout.kind == "masked":
        return experts * layout.max_m
    if layout.packing == "tight":
        return rows
    alignment = layout.alignment
    return ceil_div(rows + experts * (alignment - 1), alignment) * alignment


def _starts(layout: Any, counts: Sequence[int]) -> np.ndarray:
    """First row of each expert in a contiguous layout."""
    sizes = np.asarray(counts, dtype=np.int64)
    taken = -(-sizes // layout.alignment) * layout.alignment
    return np.cumsum(taken) - taken


@generator("moe.layout_metadata", LAYOUT, ROWS, EXPERTS)
def layout_metadata(layout: Any, rows: int, experts: int) -> np.ndarray:
    """Metadata of `rows` rows that are spread evenly over `experts` experts.

    Masked: rows of each expert ``[experts]``. Physical psum: the row after each expert's last one ``[experts]``. Per
    row: the expert of each row ``[capacity]``, -1 for rows of no expert.
    """
    counts = balanced_sizes(rows, experts)
    if layout.kind == "masked":
        if counts[0] > layout.max_m:
            raise DomainError(f"{counts[0]} rows of an expert do not fit in a block of max_m = {layout.max_m}")
        return np.asarray(counts, dtype=np.int64)
    starts = _starts(layout, counts)
    if layout.metadata_kind == "physical_psum":
        return starts + np.asarray(counts, dtype=np.int64)
    owners = np.full(capacity(layout, rows, experts), -1, dtype=np.int64)
    for expert, (start, taken) in enumerate(zip(starts.tolist(), counts, strict=True)):
        owners[start : start + taken] = expert
    return owners


@predicate("moe.layout_valid", LAYOUT, ROWS, EXPERTS)
def layout_valid(values: np.ndarray, layout: Any, rows: int, experts: int) -> bool:
    """The tensor is metadata of `layout` with at most `rows` rows of `experts` experts.

    Masked: counts up to `max_m`. Physical psum: ends that never decrease, each expert's rows after the aligned end of
    the last expert's. Per row: experts in order, -1 elsewhere, each expert's rows adjoining and starting at a multiple
    of the alignment.
    """
    if layout.kind == "masked":
        return (
            len(values) == experts
            and bool(np.all((values >= 0) & (values <= layout.max_m)))
            and (int(values.sum()) <= rows)
        )
    alignment = layout.alignment
    if layout.metadata_kind == "physical_psum":
        starts = np.concatenate([np.zeros(1, np.int64), -(-values[:-1] // alignment) * alignment])
        counts = values - starts if len(values) else values
        return len(values) == experts and bool(np.all(counts >= 0)) and int(counts.sum()) <= rows
    used = values[values >= 0]
    if len(values) != capacity(layout, rows, experts) or len(used) > rows or np.any(values < -1):
        return False
    if np.any(used >= experts) or np.any(np.diff(used) < 0):
        return False
    for expert in np.unique(used).tolist():
        places = np.flatnonzero(values == expert)
        if places[0] % alignment or places[-1] - places[0] + 1 != len(places):
            return False
    return True
