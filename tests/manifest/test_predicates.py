"""Predicates: what each states of a metadata tensor's contents, and how rows and entries use them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.manifest.helpers import entry, findings, simple
from tileops.manifest.adts import ADTValue
from tileops.manifest.primitives import PREDICATES, DomainError
from tileops.manifest.workload import RowError, cases


def contiguous(packing: str, metadata: str, alignment: int) -> ADTValue:
    fields = (("packing", packing), ("metadata_kind", metadata), ("alignment", alignment))
    return ADTValue("MGroupedLayout", "contiguous", fields)


MASKED = ADTValue("MGroupedLayout", "masked", (("max_m", 3),))
TIGHT_ROWS = contiguous("tight", "per_row", 1)
ALIGNED_ROWS = contiguous("aligned", "per_row", 2)
ALIGNED_ENDS = contiguous("aligned", "physical_psum", 4)


# rule: 001 "Primitives, generators and predicates are closed sets"; Table 18
def test_the_predicates() -> None:
    two = {name for name, member in PREDICATES.items() if any(formal.tensor for formal in member.formals)}
    assert two == {"attn.paged_fits", "chunk_offsets_of", "exclusive_prefix_of", "indices_within"}
    one = {"in_range", "max_segment", "moe.layout_valid", "prefix_offsets", "sums_to"}
    assert PREDICATES.keys() == one | two
    assert {name for name, member in PREDICATES.items() if member.rank is None} == {"in_range"}
    assert {name for name, member in PREDICATES.items() if member.rank == 2} == {"indices_within"}


# rule: 001 Table 18 "States"
@pytest.mark.parametrize(
    ("name", "values", "arguments", "holds"),
    [
        ("in_range", [[0, 4]], (0, 5), True),
        ("in_range", [[0, 5]], (0, 5), False),
        ("in_range", [-1], (0, 5), False),
        ("in_range", [], (0, 0), True),
        ("prefix_offsets", [0, 2, 2, 5], (5,), True),
        ("prefix_offsets", [1, 2, 5], (5,), False),
        ("prefix_offsets", [0, 3, 2, 5], (5,), False),
        ("prefix_offsets", [0, 2], (5,), False),
        ("prefix_offsets", [], (0,), False),
        ("max_segment", [0, 2, 5], (3,), True),
        ("max_segment", [0, 2, 6], (3,), False),
        ("sums_to", [1, 2], (3,), True),
        ("sums_to", [1, 2], (4,), False),
        ("exclusive_prefix_of", [0, 2, 5], (np.array([2, 3, 4]),), True),
        ("exclusive_prefix_of", [0, 2, 6], (np.array([2, 3, 4]),), False),
        ("exclusive_prefix_of", [0, 2], (np.array([2, 3, 4]),), False),
        ("chunk_offsets_of", [0, 2, 3], (np.array([0, 5, 8]), 4), True),
        ("chunk_offsets_of", [0, 2, 4], (np.array([0, 5, 8]), 4), False),
        ("indices_within", [[0, 2], [1, 0]], (np.array([0, 3, 5]),), True),
        ("indices_within", [[0, 3]], (np.array([0, 3, 5]),), False),
        ("indices_within", [[2, 0]], (np.array([0, 3, 5]),), False),
        ("indices_within", [[0, -1]], (np.array([0, 3, 5]),), False),
        ("attn.paged_fits", [5, 0], (np.array([0, 3, 5]), 8), True),
        ("attn.paged_fits", [6, 0], (np.array([0, 3, 5]), 8), False),
        ("attn.paged_fits", [-1, 0], (np.array([0, 3, 5]), 8), False),
        ("attn.paged_fits", [5], (np.array([0, 3, 5]), 8), False),
        ("moe.layout_valid", [3, 2], (MASKED, 5, 2), True),
        ("moe.layout_valid", [3, 1], (MASKED, 5, 2), True),
        ("moe.layout_valid", [4, 1], (MASKED, 5, 2), False),
        ("moe.layout_valid", [3, 3], (MASKED, 5, 2), False),
        ("moe.layout_valid", [3], (MASKED, 5, 2), False),
        ("moe.layout_valid", [3, 6], (ALIGNED_ENDS, 5, 2), True),
        ("moe.layout_valid", [3, 3], (ALIGNED_ENDS, 5, 2), False),
        ("moe.layout_valid", [3, 7], (ALIGNED_ENDS, 5, 2), False),
        ("moe.layout_valid", [0, 0, 1], (TIGHT_ROWS, 3, 2), True),
        ("moe.layout_valid", [0, 1, 0], (TIGHT_ROWS, 3, 2), False),
        ("moe.layout_valid", [0, 0, 2], (TIGHT_ROWS, 3, 2), False),
        ("moe.layout_valid", [0, 0], (TIGHT_ROWS, 3, 2), False),
        ("moe.layout_valid", [0, -1, 1, 1, -1, -1], (ALIGNED_ROWS, 3, 2), True),
        ("moe.layout_valid", [0, 1, 1, -1, -1, -1], (ALIGNED_ROWS, 3, 2), False),
        ("moe.layout_valid", [0, -2, 1, 1, -1, -1], (ALIGNED_ROWS, 3, 2), False),
    ],
)
def test_what_they_state(name: str, values: list[Any], arguments: tuple[Any, ...], holds: bool) -> None:
    assert bool(PREDICATES[name].function(np.array(values, dtype=np.int64), *arguments)) is holds


def test_domains() -> None:
    with pytest.raises(DomainError, match="the chunk size must be positive, got 0"):
        PREDICATES["chunk_offsets_of"].function(np.zeros(1), np.zeros(1), 0)


OFFSETS = """
forall: {N: Dim, S: Dim, seq_lens: "Seq[Int]"}
params: {bound: {type: int, default: 9}}
inputs:
  x: {dtype: float32, shape: "[S]"}
  offsets: {dtype: int32, shape: "[N + 1]", values: "prefix_sum(seq_lens)",
            requires: ["prefix_offsets(S)", "max_segment(bound)"]}
  starts: {dtype: int32, shape: "[N]", values: "exclusive_prefix_sum(seq_lens)",
           requires: ["exclusive_prefix_of(sizes)"]}
  sizes: {dtype: int32, shape: "[N]", values: "as_tensor(seq_lens)"}
outputs: {y: {dtype: float32, shape: "[N]"}}
"""
ROW = "[{S: 8, seq_lens: [5, 3], label: row}]"


# rule: 001 "A row is checked against its predicates at instantiation"
def test_rows_meet_their_requirements() -> None:
    (call,) = cases(entry(simple(OFFSETS, ROW)))
    assert call.indices["N"] == 2
    message = r"signature\.inputs\.offsets\.requires\[0\]: requires 'prefix_offsets\(S\)' fails on the generated values"
    with pytest.raises(RowError, match=message):
        cases(entry(simple(OFFSETS, "[{S: 9, seq_lens: [5, 3], label: row}]")))
    with pytest.raises(RowError, match=r"offsets\.requires\[1\]"):
        cases(entry(simple(OFFSETS, "[{S: 8, bound: 4, seq_lens: [5, 3], label: row}]")))


# rule: 001 "The validator also holds them well-formed wherever their tensor is present"
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("prefix_offsets(S)", "sorted(S)"), "'sorted(S)' calls no built-in predicate"),
        (("prefix_offsets(S)", "prefix_offsets()"), "prefix_offsets misses total"),
        (("max_segment(bound)", "max_segment(bound, 2)"), "max_segment takes 1 positional arguments, got 2"),
        (("exclusive_prefix_of(sizes)", "exclusive_prefix_of(x)"), "x is no metadata tensor"),
        (('"[N]", values: "as_tensor', '"[N]", optional: true, values: "as_tensor'), "may be absent"),
        (("exclusive_prefix_of(sizes)", "indices_within(sizes)"), "indices_within reads a tensor of rank 2"),
        ((', values: "exclusive_prefix_sum(seq_lens)"', ""), "a tensor with requires has values"),
    ],
)
def test_requirements_are_well_formed(change: tuple[str, str], message: str) -> None:
    text = OFFSETS.replace(*change)
    assert text != OFFSETS
    assert any(message in item for item in findings(simple(text, ROW))), findings(simple(text, ROW))


# rule: 001 "On every branch where the constrained tensor exists, the tensor used as the argument must also exist"
def test_two_optional_tensors_share_a_presence() -> None:
    text = OFFSETS.replace('values: "exclusive', 'optional: "present(sizes)", values: "exclusive').replace(
        '"[N]", values: "as_tensor', '"[N]", optional: true, values: "as_tensor'
    )
    rows = "[{S: 8, seq_lens: [5, 3], label: none}, {S: 8, seq_lens: [5, 3], some: [sizes], label: both}]"
    found = [item for item in findings(simple(text, rows, '{flops: "S"}')) if "required inputs come first" not in item]
    assert found == []
    assert [len(call.inputs) for call in cases(entry(simple(text, rows)))] == [2, 4]
