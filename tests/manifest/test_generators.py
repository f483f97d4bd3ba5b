"""Generators: what each makes, its domain and rank, and how rows use them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from tests.manifest.helpers import entry, findings, simple
from tileops.manifest import adts
from tileops.manifest.primitives import GENERATORS, PREDICATES, DomainError
from tileops.manifest.workload import Call, RowError, cases

TIGHT = adts.ADTValue(
    "MGroupedLayout", "contiguous", (("packing", "tight"), ("metadata_kind", "per_row"), ("alignment", 1))
)
PSUM = adts.ADTValue(
    "MGroupedLayout", "contiguous", (("packing", "aligned"), ("metadata_kind", "physical_psum"), ("alignment", 4))
)
PER_ROW = adts.ADTValue(
    "MGroupedLayout", "contiguous", (("packing", "aligned"), ("metadata_kind", "per_row"), ("alignment", 4))
)
MASKED = adts.ADTValue("MGroupedLayout", "masked", (("max_m", 3),))


def make(name: str, *arguments: Any, seed: int = 0) -> Any:
    member = GENERATORS[name]
    drawn = [np.random.default_rng(seed)] if member.random else []
    return member.function(*drawn, *arguments)


# rule: 001 "Primitives, generators and predicates are closed sets"
def test_the_generators() -> None:
    assert sorted(GENERATORS) == [
        "as_tensor",
        "attn.sparse_topk_positions",
        "causal_topk_indices",
        "chunk_indices",
        "chunk_offsets",
        "exclusive_prefix_sum",
        "full",
        "key_windows",
        "moe.layout_metadata",
        "nsa_block_counts",
        "nsa_block_indices",
        "packed_positions",
        "paged_block_table",
        "prefix_sum",
        "random_ids",
        "sample_indices",
        "token_indices",
        "topk_ids",
    ]


# rule: 001 Table 17 no. 1 "a function of the arguments"
@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("as_tensor", ([3, 0, 2],), [3, 0, 2]),
        ("prefix_sum", ([3, 0, 2],), [0, 3, 3, 5]),
        ("prefix_sum", ([],), [0]),
        ("exclusive_prefix_sum", ([3, 0, 2],), [0, 3, 3]),
        ("packed_positions", ([3, 0, 2],), [0, 1, 2, 0, 1]),
        ("token_indices", ([2, 0, 1],), [[0, 0], [0, 1], [2, 0]]),
        ("chunk_indices", ([5, 0, 2], 2), [[0, 0], [0, 1], [0, 2], [2, 0]]),
        ("chunk_offsets", ([5, 0, 2], 2), [0, 3, 3, 4]),
        ("full", ((2, 3), 7), [[7] * 3] * 2),
        ("full", ((), 7), 7),
        ("key_windows", ([3, 4], 1, 5, "start"), [0, 0, 3, 3, 3]),
        ("key_windows", ([3, 4], 1, 5, "end"), [2, 3, 4, 5, 6]),
        ("key_windows", ([2, 0, 1], 0, 3, "start"), [0, 0, 2]),
        ("moe.layout_metadata", (MASKED, 5, 2), [3, 2]),
        ("moe.layout_metadata", (TIGHT, 5, 2), [0, 0, 0, 1, 1]),
        ("moe.layout_metadata", (PSUM, 5, 2), [3, 6]),
        ("moe.layout_metadata", (PER_ROW, 5, 2), [0, 0, 0, -1, 1, 1, -1, -1, -1, -1, -1, -1]),
    ],
)
def test_deterministic_values(name: str, arguments: tuple[Any, ...], expected: Any) -> None:
    values = make(name, *arguments)
    assert values.tolist() == expected
    assert GENERATORS[name].rank in (None, values.ndim)
    assert not GENERATORS[name].random


RANDOM: dict[str, tuple[Any, ...]] = {
    "paged_block_table": (3, 4, 12),
    "topk_ids": (5, 2, 8),
    "random_ids": (5, 2, 3),
    "sample_indices": (6, 9),
    "nsa_block_indices": ([5, 3], 2, 2, 3),
    "nsa_block_counts": (5, 2, 4),
    "causal_topk_indices": (2, 6, 2, 3, 40, 50, 2),
    "attn.sparse_topk_positions": ([50, 30], 2, 4),
}


# rule: 001 Table 17 no. 2 "drawn from a private generator seeded from the workload seed"
@pytest.mark.parametrize("name", sorted(RANDOM))
def test_random_values_follow_the_seed(name: str) -> None:
    member = GENERATORS[name]
    first, again, other = (make(name, *RANDOM[name], seed=seed) for seed in (1, 1, 2))
    assert member.random
    assert first.ndim == member.rank
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_every_random_generator_is_tried() -> None:
    assert sorted(RANDOM) == sorted(name for name, member in GENERATORS.items() if member.random)


def test_blocks_are_causal_distinct_and_padded() -> None:
    found = make("nsa_block_indices", [5, 3], 2, 2, 3)
    assert found.shape == (8, 3, 2)
    for token, position in enumerate([0, 1, 2, 3, 4, 0, 1, 2]):
        for drawn in found[token]:
            blocks = [block for block in drawn if block != 8]
            assert len(blocks) == min(2, position // 2 + 1)
            assert blocks == sorted(set(blocks))
            assert all(block <= position // 2 for block in blocks)


def test_counts_select_at_least_one_block() -> None:
    counts = make("nsa_block_counts", 50, 2, 4)
    assert (counts.min(), counts.max()) == (1, 4)


def test_topk_positions_are_causal_distinct_and_padded() -> None:
    found = make("causal_topk_indices", 2, 6, 2, 3, 4, 1, 2)  # query i sees min(4, (i + 2) // 2) keys
    assert found.shape == (2, 6, 2, 3)
    for query in range(6):
        visible = min(4, (query + 2) // 2)
        for row in found[:, query].reshape(-1, 3):
            kept = [key for key in row if key != 4]
            assert len(kept) == min(3, visible)
            assert kept == sorted(set(kept))
            assert all(key < visible for key in kept)
    sparse = make("attn.sparse_topk_positions", [5, 3], 2, 4)
    assert [(row >= 0).sum() for row in sparse.reshape(-1, 4)] == [4, 4, 2, 3]
    assert sparse[0, 1].max() <= 4
    assert sparse[1, 0].tolist()[:2] == [0, 1]


def test_pages_are_shared_only_where_the_pool_is_small() -> None:
    assert len(np.unique(make("paged_block_table", 3, 4, 12))) == 12
    assert make("paged_block_table", 3, 4, 5).max() < 5


# rule: 001 "A primitive or generator raises outside its domain"
@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("prefix_sum", ([2, -1],), "lengths must not be negative"),
        ("token_indices", ([-1],), "lengths must not be negative"),
        ("chunk_indices", ([2], 0), "the chunk size must be positive, got 0"),
        ("chunk_offsets", ([2], -1), "the chunk size must be positive, got -1"),
        ("paged_block_table", (1, 1, 0), "the pool must hold at least one page"),
        ("paged_block_table", (-1, 1, 2), "batch of paged_block_table must not be negative, got -1"),
        ("topk_ids", (1, 3, 2), "cannot draw 3 distinct ids of 2 experts"),
        ("random_ids", (1, 1, 0), "the upper bound must be positive"),
        ("sample_indices", (3, 2), "cannot draw 3 distinct ids below 2"),
        ("nsa_block_indices", ([2], 0, 1, 1), "the block size must be positive"),
        ("nsa_block_counts", (2, 1, 0), "the number of selected blocks must be positive"),
        ("causal_topk_indices", (1, 1, 1, 1, 1, 0, 0), "the stride must be positive"),
        ("attn.sparse_topk_positions", ([1], 2, 1), "every request must hold its 2 queries"),
        ("key_windows", ([2], 1, 2, "end"), "queries 1 to 3 lie outside the 2 packed tokens"),
        ("moe.layout_metadata", (MASKED, 8, 2), "4 rows of an expert do not fit in a block of max_m = 3"),
        ("moe.layout_metadata", (TIGHT, 4, 0), "balanced_sizes needs a positive count"),
    ],
)
def test_domains(name: str, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(DomainError) as caught:
        make(name, *arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize("layout", [TIGHT, PSUM, PER_ROW, MASKED])
def test_layout_metadata_is_valid(layout: adts.ADTValue) -> None:
    values = make("moe.layout_metadata", layout, 5, 2)
    assert PREDICATES["moe.layout_valid"].function(values, layout, 5, 2)


# --- in rows ---


METADATA = """
forall: {N: Dim, W: Dim, C: Dim, M: Dim, seq_lens: "Seq[Int]"}
params: {chunk: {type: int, default: 4}}
inputs:
  table: {dtype: int32, shape: "[N, W]", values: "paged_block_table(N, W, 64)"}
  offsets: {dtype: int64, shape: "[N + 1]", values: "prefix_sum(seq_lens)"}
  chunks: {dtype: int32, shape: "[C, 2]", values: "chunk_indices(seq_lens, chunk)"}
  x: {dtype: float32, shape: "[M]"}
outputs: {y: {dtype: float32, shape: "[C]"}}
"""


def calls(
    text: str = METADATA, rows: str = "[{W: 3, M: 4, seq_lens: [5, 3], label: row}]", name: str = "T"
) -> list[Call]:
    return cases(entry(simple(text, rows), f"{name}FwdOp"))


# rule: 001 "The generator result is unified with the declaration; shape indices ... are solved by that unification"
def test_results_solve_the_shape_s_indices() -> None:
    (call,) = calls()
    assert {name: call.indices[name] for name in "NWCM"} == {"N": 2, "W": 3, "C": 3, "M": 4}
    assert call.inputs["offsets"].values.tolist() == [0, 5, 8]
    assert call.inputs["offsets"].values.dtype == np.int64
    assert call.inputs["table"].shape == (2, 3)  # N comes from another generator's result


# rule: 001 "not written in the row"
def test_what_a_generator_solves_is_not_written() -> None:
    with pytest.raises(RowError, match=r"row gives irrelevant C; a generator determines it, remove it"):
        calls(rows="[{W: 3, M: 4, C: 3, seq_lens: [5, 3], label: row}]")


# rule: 001 "A Seq[Int] index is written as an integer list or as a call of a value primitive over integer literals"
def test_value_lists_of_rows() -> None:
    (call,) = calls(rows='[{W: 3, M: 4, seq_lens: "balanced_sizes(8, 3)", label: row}]')
    assert call.inputs["offsets"].values.tolist() == [0, 3, 6, 8]
    for text in ("repeat(M, 2)", "prefix_sum(3)", "3", "repeat(2"):
        with pytest.raises(RowError, match=r"seq_lens"):
            calls(rows=f'[{{W: 3, M: 4, seq_lens: "{text}", label: row}}]')


# rule: 001 "Generator arguments may be value-primitive calls"
def test_a_value_primitive_is_a_generator_s_argument() -> None:
    text = METADATA.replace("prefix_sum(seq_lens)", "prefix_sum(balanced_sizes(M, 2))").replace(
        "chunk_indices(seq_lens, chunk)", "chunk_indices(balanced_sizes(M, 2), chunk)"
    )
    text = text.replace(', seq_lens: "Seq[Int]"', "")
    (call,) = calls(text, "[{W: 3, M: 5, label: row}]")
    assert call.inputs["offsets"].values.tolist() == [0, 3, 5]


# rule: 001 "Generators ... overflow of the declared dtype raises"; "A generated tensor declares an integer dtype"
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (METADATA.replace("dtype: int64", "dtype: int16"), "a generated tensor is int32 or int64, got int16"),
        (
            METADATA.replace("dtype: int64", "dtype: int32").replace("prefix_sum(seq_lens)", "as_tensor(seq_lens)"),
            "does not fit int32",
        ),
    ],
)
def test_values_take_the_declared_dtype(text: str, message: str) -> None:
    with pytest.raises(RowError, match=message):
        calls(text, "[{W: 3, M: 4, seq_lens: [5, 3000000000], label: row}]".replace("chunk: 4", ""))


# rule: 001 "A primitive or generator raises outside its domain, naming the declaration that called it"
def test_the_declaration_is_named() -> None:
    with pytest.raises(RowError, match=r"signature\.inputs\.chunks\.values: in 'chunk_indices\(seq_lens, chunk\)'"):
        calls(rows="[{W: 3, M: 4, chunk: 0, seq_lens: [5, 3], label: row}]")


# rule: 001 "A generator's result rank is fixed, or follows its shape argument"
def test_ranks_agree_with_the_shape() -> None:
    wrong = METADATA.replace('shape: "[C, 2]"', 'shape: "[C]"')
    assert any(
        "chunk_indices makes a tensor of rank 2, the shape [C] has 1 axes" in item for item in findings(simple(wrong))
    )


# rule: rules.md 1 "Seed: WORKLOAD_SEED 1235 xor crc32"; 001 "a row always yields the same values"
def test_values_differ_by_op_and_tensor_and_repeat_in_every_process() -> None:
    rows = "[{W: 3, M: 4, seq_lens: [5, 3], label: row}]"
    table = calls(rows=rows)[0].inputs["table"].values.tolist()
    assert table != calls(rows=rows, name="Other")[0].inputs["table"].values.tolist()
    assert table == calls(rows=rows)[0].inputs["table"].values.tolist()
    code = (
        "from tests.manifest.test_generators import calls\n"
        "print(calls()[0].inputs['table'].values.tolist(), 'torch' in __import__('sys').modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == f"{table} False"


# rule: 001 "forall value lists appear only as generator arguments"
def test_value_lists_are_read_by_generators_only() -> None:
    text = METADATA + 'shape_rules: ["len(seq_lens) > 0"]\n'
    assert any("value list of forall and only a generator's argument" in item for item in findings(simple(text)))
