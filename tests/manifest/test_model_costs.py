"""Costs of attention, experts, recurrences and quantised caches: formulas against counting on small calls, and every
traffic that an entry writes out itself by hand.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.manifest.test_entry_costs import one_case
from tileops.manifest import load_all
from tileops.manifest.workload import Call
from tileops.perf.formulas.moe import layout_counts
from tileops.perf.formulas.recurrent import _over_chunks

F32 = [{"T": "float32"}]
PAIR = [{"T": "float32", "KV": "float32"}]
LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=3)


def visible(s_q: int, s_kv: int, causal: bool = True, left: int = -1, right: int = -1) -> np.ndarray:
    """Which keys each query sees, aligned at the bottom right."""
    position = np.arange(s_q)[:, None] + s_kv - s_q
    key = np.arange(s_kv)[None, :]
    seen = np.ones((s_q, s_kv), dtype=bool)
    if causal:
        seen &= key <= position
    if left >= 0:
        seen &= key >= position - left
    if right >= 0:
        seen &= key <= position + right
    return seen


def seen_by(masks: list[np.ndarray]) -> tuple[int, int]:
    """Pairs, and keys that some query sees."""
    return sum(int(mask.sum()) for mask in masks), sum(int(mask.any(axis=0).sum()) for mask in masks)


# --- attention over all visible keys ---


@settings(max_examples=40)
@given(LENGTHS, LENGTHS, st.booleans(), st.integers(-1, 4), st.integers(-1, 2))
def test_packed_attention_is_counted(
    q_lens: list[int], kv_lens: list[int], causal: bool, left: int, right: int
) -> None:
    count = min(len(q_lens), len(kv_lens))
    q_lens, kv_lens = q_lens[:count], kv_lens[:count]
    t_q, t_kv = sum(q_lens), sum(kv_lens)
    call = one_case(
        "GQAVarlenFwdOp",
        q_lens=q_lens,
        kv_lens=kv_lens,
        T_q=t_q,
        T_kv=t_kv,
        H=4,
        H_kv=2,
        D=8,
        is_causal=causal,
        window_size_left=left,
        window_size_right=right,
        dtype_cases=F32,
    )
    scores, keys = seen_by([visible(*pair, causal, left, right) for pair in zip(q_lens, kv_lens, strict=True)])
    flops = 4 * (scores * (4 * 8 + 5) + t_q * 8)
    assert call.roofline() == (flops, 4 * (2 * t_q * 4 * 8 + 2 * keys * 2 * 8) + 2 * 4 * (count + 1))


@settings(max_examples=40)
@given(LENGTHS, st.integers(1, 3), st.integers(-1, 4))
def test_paged_attention_is_counted(kv_lens: list[int], s_q: int, left: int) -> None:
    kv_lens = [max(length, s_q) for length in kv_lens]
    batch = len(kv_lens)
    call = one_case(
        "GQAPagedFwdOp",
        S_q=s_q,
        H=4,
        H_kv=2,
        D=8,
        NP=40,
        PS=2,
        W=6,
        cache_lens=kv_lens,
        window_size_left=left,
        dtype_cases=PAIR,
    )
    scores, keys = seen_by([visible(s_q, length, True, left) for length in kv_lens])
    flops = 4 * (scores * 37 + batch * s_q * 8)
    pages = min(keys, sum(-(-length // 2) for length in kv_lens))
    moved = 4 * (2 * batch * s_q * 4 * 8 + 2 * keys * 2 * 8) + 4 * batch + 4 * pages
    assert call.roofline() == (flops, moved)
    packed = one_case(
        "GQAPagedFwdOp",
        T_q=s_q * batch,
        H=4,
        H_kv=2,
        D=8,
        NP=40,
        PS=2,
        W=6,
        q_lens=[s_q] * batch,
        cache_lens=kv_lens,
        window_size_left=left,
        some=["cu_seqlens_q"],
        dtype_cases=PAIR,
    )
    assert packed.roofline() == (flops, moved + 4 * (batch + 1))


def test_prefill_over_pages_by_hand() -> None:
    row = {"q_lens": [2, 1], "cache_lens": [3, 0], "T_q": 3, "H": 4, "H_kv": 2, "D": 8, "PT": 40, "W": 4}
    row |= {"page_size": 2, "max_seqlen_q": 2}
    scores = 4 + 5 + 1
    flops = 4 * (scores * 37 + 3 * 8)
    kept = 4 * (2 * 3 * 4 * 8 + 2 * 3 * 2 * 8) + 4 * 3 + 4 * 2  # q, o, k_new, v_new, offsets, lengths
    # Three cached rows are read and three new ones written, in each of the two pools; four pages are named.
    plain = one_case("GQAPrefillPagedWithKVCacheFwdOp", **row, dtype_cases=F32)
    assert plain.roofline() == (flops, kept + 2 * 6 * 2 * 8 * 4 + 4 * 4)
    rotated = one_case("GQAPrefillPagedWithKVCacheFwdOp", **row, fuse_rope=True, max_position=64, dtype_cases=F32)
    assert rotated.roofline()[0] == flops + 4 * 8 * 3 * (4 + 2)
    small = one_case("GQAPrefillPagedWithKVCacheFwdOp", **row, cache_dtype="float8_e4m3fn", dtype_cases=F32)
    assert small.roofline() == (flops + 2 * 3 * 2 * 8, kept + 2 * 6 * 2 * 8 + 4 * 4 + 2 * 4)


def test_latent_attention_by_hand() -> None:
    paged = one_case(
        "MLAPagedFwdOp", S_q=2, H=4, D=12, NP=8, PS=2, W=4, cache_lens=[5], kv_lora_rank=8, dtype_cases=PAIR
    )
    moved = 4 * (2 * 4 * 12 + 2 * 4 * 8 + 4 * 2 + 5 * 12) + 4 + 3 * 4
    assert paged.roofline() == (4 * (9 * (24 + 16 + 5) + 2 * 8), moved)
    packed = one_case("MLAVarlenFwdOp", q_lens=[2], kv_lens=[3], T_q=2, T_kv=3, H=4, DN=8, PE=4, DV=6, dtype_cases=F32)
    moved = 4 * (2 * 4 * 12 + 3 * 4 * 8 + 3 * 4 + 3 * 4 * 6 + 2 * 4 * 6 + 2 * 4) + 2 * 2 * 4
    assert packed.roofline() == (4 * (5 * (24 + 12 + 5) + 2 * 6), moved)
    decode = one_case(
        "MHADecodePagedWithKVCacheFwdOp", S_q=1, H=2, D=8, N_kv=16, W=4, page_size=2, kv_lens=[5, 0], dtype_cases=F32
    )
    assert decode.roofline() == (2 * (5 * 37 + 2 * 8), 4 * (2 * 2 * 2 * 8 + 2 * 5 * 2 * 8) + 2 * 4 + 3 * 4)


# --- attention over selected keys ---


@settings(max_examples=40)
@given(LENGTHS, st.integers(1, 4))
def test_compressed_attention_is_counted(lengths: list[int], block: int) -> None:
    chunks = sum(-(-length // block) for length in lengths)
    scores = sum((token + 1) // block for length in lengths for token in range(length))
    row: dict[str, Any] = {"seq_lens": lengths, "C": chunks, "H": 4, "H_kv": 2, "DK": 8, "block_size": block}
    attended = one_case("NSACompressedVarlenFwdOp", **row, DV=6, dtype_cases=F32)
    assert attended.roofline()[0] == 4 * (scores * (16 + 12 + 5) + sum(lengths) * 6)
    chosen = one_case("NSATopKVarlenFwdOp", **row, selected_block_num=2, dtype_cases=F32)
    unread = chosen.inputs["lse_in"].nbytes
    given_bytes = sum(item.nbytes for item in (*chosen.inputs.values(), *chosen.outputs.values()))
    assert chosen.roofline() == (scores * (4 * (16 + 7) + 2), given_bytes - unread)


@settings(max_examples=40)
@given(LENGTHS, st.integers(1, 3), st.integers(1, 3))
def test_attention_over_blocks_is_counted(lengths: list[int], block: int, selected: int) -> None:
    call = one_case(
        "NSAVarlenFwdOp", seq_lens=lengths, H=32, H_kv=2, D=4, K=selected, block_size=block, dtype_cases=F32
    )
    blocks, counts = call.inputs["block_indices"].values, call.inputs["block_counts"].values
    assert blocks is not None
    assert counts is not None
    scores, token = 0, 0
    for length in lengths:
        for position in range(length):
            for head in range(2):
                for chosen in blocks[token, head, : counts[token, head]]:
                    scores += sum(1 for key in range(chosen * block, (chosen + 1) * block) if key <= position)
            token += 1
    assert call.roofline()[0] == 16 * scores * (16 + 5) + token * 32 * 4


def test_attention_over_chosen_rows_is_counted() -> None:
    row = {"B": 2, "S": 3, "S_kv": 8, "H": 4, "H_kv": 2, "D": 8, "K": 4, "dim_tail": 2, "q_start_index_s": 1}
    call = one_case("DSADecodeWithKVCacheFwdOp", **row, dtype_cases=F32)
    chosen = call.inputs["indices"].values
    assert chosen is not None
    rows = sum(len(set(chosen[b, :, h].ravel().tolist()) - {8}) for b in range(2) for h in range(2))
    scores = int((chosen < 8).sum())
    moved = 4 * (2 * 3 * 4 * (10 + 8) + rows * 10) + 4 * chosen.size
    assert call.roofline() == (2 * scores * (20 + 16 + 5) + 2 * 3 * 4 * 8, moved)
    paged = one_case("DSAPagedFwdOp", S_q=2, H=4, NP=16, PS=2, W=4, K=3, cache_lens=[5, 3])
    chosen = paged.inputs["indices"].values
    assert chosen is not None
    rows = sum(len(set(one.ravel().tolist()) - {-1}) for one in chosen)
    scores = int((chosen >= 0).sum())
    flops = 4 * (scores * (2 * 576 + 2 * 512 + 5) + 2 * 2 * 512) + 512 * rows
    moved = 2 * 2 * 2 * 4 * (576 + 512) + 4 * (2 * 2 * 3 + 2 + 2 * 4 * 2) + 656 * rows + 4 * min(rows, 8)
    assert paged.roofline() == (flops, moved)


@pytest.mark.parametrize("clean", [True, False])
def test_the_indexer_is_counted(clean: bool) -> None:
    call = one_case(
        "FP8LightningIndexerFwdOp",
        B=2,
        S=3,
        S_kv=7,
        H=4,
        G=2,
        D=8,
        seq_lens=[4, 3],
        clean_logits=clean,
        some=["index_k_scale"],
        dtype_cases=[{"T": "float8_e4m3fn"}],
    )
    seen = 1 + 2 + 3  # the last three tokens are the second request, whose keys begin at 4
    kept = 2 * 3 * 4 * 8 + 4 * 3 * 4 + 2 * 4 * 3
    written = 2 * 2 * 4 * (3 * 7 if clean else seen)
    assert call.roofline() == (2 * seen * (4 * 19 + 2), kept + 2 * 3 * 2 * (8 + 4) + written)
    select = one_case("TopKSelectFwdOp", B=2, S=3, S_kv=7, G=2, topk=4)
    assert select.roofline() == (2 * 3 * 7 * 2, 4 * (2 * 3 * 7 * 2 + 2 * 2 * 3 + 2 * 3 * 2 * 4))


# --- caches and rotary tables: only the rows in use are moved ---


def test_cache_traffic_by_hand() -> None:
    row = {"N": 3, "H_kv": 2, "D": 4, "NP": 5, "PS": 2}
    plain = one_case("PagedKVCacheWriteFwdOp", **row, dtype_cases=PAIR)
    assert plain.roofline() == (0, 2 * 2 * 3 * 2 * 4 * 4 + 3 * 8)
    small = [{"T": "float32", "KV": "float8_e4m3fn"}]
    scaled = one_case("PagedKVCacheWriteFwdOp", **row, SK=[2], some=["k_scale"], dtype_cases=small)
    assert scaled.roofline() == (2 * 24, 2 * 24 * (4 + 1) + 3 * 8 + 2 * 2 * 4)
    row = {"C": 8, "PE": 4, "NP": 5, "PS": 2}
    plain = one_case("MLAKVCacheWriteFwdOp", **row, N=3, dtype_cases=PAIR)
    assert plain.roofline() == (0, 2 * 3 * 12 * 4 + 3 * 8)
    rotated = one_case(
        "MLAKVCacheWriteFwdOp", **row, P=7, R=1, pos_lens=[2, 1], some=["cos_sin_cache"], dtype_cases=PAIR
    )
    assert rotated.roofline() == (8 * 3, 2 * 3 * 12 * 4 + 3 * 8 + 3 * 8 + 3 * 2 * 4)
    row = {"lens": [3, 2], "N": 5, "E": [2, 4], "NP": 9, "PS": 2, "W": 3}
    plain = one_case("PagedKVCacheGatherFwdOp", **row, dtype_cases=PAIR)
    assert plain.roofline() == (0, 2 * 5 * 8 * 4 + 3 * 4 + 5 * 4)
    scaled = one_case("PagedKVCacheGatherFwdOp", **row, some=["scale"], dtype_cases=small)
    assert scaled.roofline() == (40, 5 * 8 * (4 + 1) + 3 * 4 + 5 * 4 + 4)


def test_rotated_heads_leave_the_values_alone() -> None:
    call = one_case(
        "FusedQKNormRoPEFwdOp",
        seq_lens=[3],
        D=8,
        P=16,
        R=2,
        num_heads=4,
        num_kv_heads=2,
        dtype_cases=[{"T": "float32", "C": "float32", "I": "int32"}],
    )
    assert call.roofline() == (3 * 6 * (4 * 8 + 8 * 2), 4 * (2 * 3 * 6 * 8 + 2 * 8 + 3 * 4) + 4 * 3)


def test_convolution_states_of_other_sequences_stay() -> None:
    call = one_case("CausalConv1dFwdOp", S=5, E=3, W=4, NS=7, seq_lens=[2, 3], activation="silu", dtype_cases=F32)
    moved = 4 * (2 * 15 + 12 + 3 + 2 + 2 * 2 * 9) + 2
    assert call.roofline() == (15 * (7 + 5), moved)
    row = {"Bt": 2, "E": 3, "W": 4, "NS": 7, "some": ["bias", "conv_state_indices"]}
    call = one_case("CausalConv1dUpdateFwdOp", **row, dtype_cases=F32)
    assert call.roofline() == (6 * 8, 4 * (2 * 6 + 12 + 3 + 2 + 2 * 2 * 9))


def test_speculative_sampling_reads_one_pair_of_rows() -> None:
    call = one_case("ChainSpeculativeSamplingFwdOp", B=2, N=3, V=10)
    assert call.roofline() == (2 * 6 + 5 * 20, 4 * (2 * 20 + 2 * 6 + 6 + 8 + 2) + 16)


# --- experts ---

LAYOUTS: list[dict[str, Any]] = [
    {"contiguous": {"packing": "tight", "metadata_kind": "physical_psum", "alignment": 1}},
    {"contiguous": {"packing": "tight", "metadata_kind": "per_row", "alignment": 1}},
    {"contiguous": {"packing": "aligned", "metadata_kind": "physical_psum", "alignment": 4}},
    {"contiguous": {"packing": "aligned", "metadata_kind": "per_row", "alignment": 4}},
    {"masked": {"max_m": 5}},
]


def grouped(name: str, layout: dict[str, Any], **row: Any) -> Call:
    held = {} if "masked" in layout else {"P": 24}
    return one_case(name, layout=layout, E=3, **held, **row)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_grouped_products_move_rows_with_a_token(layout: dict[str, Any]) -> None:
    rows = 15 if "masked" in layout else 24 - 3 * (layout["contiguous"]["alignment"] - 1)
    call = grouped("MoEGroupedGemmFwdOp", layout, N=4, K=8, activation="silu_and_mul", dtype_cases=[{"D": "float32"}])
    metadata = call.inputs["layout_metadata"]
    assert metadata.values is not None
    assert sum(layout_counts(call.indices["layout"], metadata.values.tolist(), 3)) == rows
    flops, moved = call.roofline()
    assert flops == 2 * rows * 8 * 8 + 6 * rows * 4
    assert moved == 4 * (rows * 8 + 3 * 8 * 8 + rows * 4) + metadata.nbytes
    call = grouped("MoEExpertMLPFwdOp", layout, H=8, F=4, dtype_cases=[{"D": "float32"}])
    assert call.roofline() == (rows * (6 * 32 + 24), 4 * (2 * rows * 8 + 3 * (64 + 32)) + metadata.nbytes)
    call = grouped("MoEGroupedGemmFP8FwdOp", layout, N=128, K=256, out_dtype="float32")
    moved = rows * (256 + 2 * 4 + 128 * 4) + 3 * (128 * 256 + 2 * 4) + metadata.nbytes
    assert call.roofline() == (2 * rows * 128 * 258, moved)


def test_permutations_move_routes_only() -> None:
    aligned = LAYOUTS[2]
    before = one_case(
        "MoEPrePermuteFwdOp", T=5, K=2, H=8, layout=aligned, num_local_experts=3, dtype_cases=[{"D": "float32"}]
    )
    assert before.roofline() == (0, 4 * (5 * 8 + 10 + 10 * 8 + 3 + 10))
    after = one_case("MoEPostPermuteFwdOp", P=24, T=5, K=2, H=8, layout=aligned, dtype_cases=[{"D": "float32"}])
    assert after.roofline() == (2 * 10 * 8, 4 * (10 * 8 + 10 + 10 + 5 * 8))


def test_only_chosen_experts_are_read() -> None:
    row = {"T": 2, "E": 16, "H": 8, "F": 4, "dtype_cases": [{"D": "float32"}]}
    call = one_case("FusedMoEExpertsFwdOp", K=3, routed_scaling_factor=2.0, **row)
    chosen = call.inputs["topk_ids"].values
    assert chosen is not None
    used = len(np.unique(chosen))
    flops = 6 * (6 * 32 + 24 + 16) + 16
    assert call.roofline() == (flops, 4 * (2 * 16 + 2 * 6 + used * (64 + 32)))
    routing = 2 * (4 * 16 + 3 * 16 + 6 + 16)
    whole = one_case(
        "FusedMoEFwdOp",
        top_k=3,
        scoring_func="sigmoid",
        renormalize=True,
        routed_scaling_factor=2.0,
        some=["correction_bias"],
        **row,
    )
    moved = 4 * (2 * 16 + 32 + 16 + 6 * (64 + 32))
    assert whole.roofline() == (flops + routing, moved)
    shared = one_case(
        "FusedMoESharedExpertFwdOp",
        top_k=3,
        S=4,
        scoring_func="sigmoid",
        renormalize=True,
        routed_scaling_factor=2.0,
        some=["correction_bias", "shared_w_gate_up"],
        **row,
    )
    assert shared.roofline() == (flops + routing + 6 * 2 * 4 * 9, moved + 4 * (64 + 32 + 16))


@pytest.mark.parametrize(("renormalize", "per_token"), [(False, 3 * 16 + 16 + 3 + 48), (True, 3 * 16 + 48 + 6)])
def test_routing_by_softmax(renormalize: bool, per_token: int) -> None:
    call = one_case("FusedTopKFwdOp", T=2, E=16, top_k=3, renormalize=renormalize, dtype_cases=[{"D": "float32"}])
    assert call.roofline() == (2 * per_token, 4 * (2 * 16 + 2 * 2 * 3))


# --- recurrences and transforms ---


@given(st.integers(0, 20), st.integers(1, 6))
def test_chunks_are_counted(length: int, chunk: int) -> None:
    ends = [*range(0, length, chunk), length]
    sizes = [stop - start for start, stop in pairwise(ends)]
    assert _over_chunks(length, chunk, 1) == sum(sizes)
    assert _over_chunks(length, chunk, 2) == sum(1 for size in sizes for i in range(size) for _ in range(i + 1))
    triples = sum(1 for size in sizes for i in range(size) for j in range(i) for _ in range(j))
    assert _over_chunks(length, chunk, 3) == triples


def test_gates_cost_what_their_switches_ask_for() -> None:
    row: dict[str, Any] = {
        "B": 1,
        "S": 2,
        "H": 2,
        "HV": 4,
        "K": 8,
        "V": 4,
        "dtype_cases": [{"T": "float32", "TG": "float32"}],
    }
    plain = one_case("GDNFwdOp", **row).roofline()[0]
    assert plain == 2 * 4 * 7 * 32
    switches = {"use_qk_l2norm_in_kernel": True, "use_beta_sigmoid_in_kernel": True, "use_gate_in_kernel": True}
    all_on = one_case("GDNFwdOp", **row, **switches, allow_neg_eigval=True).roofline()[0]
    assert all_on == plain + 2 * (6 * 2 * 8 + 4 * (4 + 1 + 5))
    plain = one_case("KDAFwdOp", **row).roofline()[0]
    assert plain == 2 * 4 * (7 * 32 + 8 + 2 * 4)
    bounded = one_case("KDAFwdOp", **row, use_gate_in_kernel=True, lower_bound=-5.0).roofline()[0]
    assert bounded == plain + 2 * 4 * 8 * 6


def test_the_scan_costs_its_stages() -> None:
    shape: dict[str, Any] = {"Bt": 2, "S": 10, "H": 4, "P": 8, "G": 2, "N": 4}
    steps = one_case("DaCumsumFwdOp", Bt=2, S=10, H=4, chunk_len=4, dt_softplus=True, some=["dt_bias"])
    assert steps.roofline()[0] == 2 * 10 * 4 * (2 + 1 + 3)
    half = [{"T": "float16"}]
    cb = one_case("CBProducerFwdOp", Bt=2, S=10, G=2, N=4, chunk_len=4, dtype_cases=half)
    pairs = 10 + 10 + 3
    assert cb.roofline()[0] == 2 * 2 * pairs * 8
    chunks: dict[str, Any] = {"NC": 3, "Q": 4, "dtype_cases": [{"T": "float16", "TD": "float32"}]}
    states = one_case("SSDChunkStateFwdOp", **shape, **chunks)
    passing = one_case("SSDStatePassingFwdOp", Bt=2, NC=3, H=4, P=8, N=4)
    scan = one_case("SSDChunkScanFwdOp", **shape, **chunks)
    assert scan.roofline()[0] == 2 * 4 * (10 * (2 * 32 + 16 + 1) + pairs * (16 + 4))
    whole = one_case("Mamba2FwdOp", **shape, chunk_len=4, dt_softplus=True, some=["dt_bias"], dtype_cases=half)
    assert whole.roofline()[0] == sum(one.roofline()[0] for one in (steps, cb, states, passing, scan))
    assert whole.roofline()[1] == sum(item.nbytes for item in (*whole.inputs.values(), *whole.outputs.values()))


def test_backward_by_chunks_takes_twice_the_products() -> None:
    row = {"B": 1, "H": 2, "L": 10, "DK": 8, "DV": 4, "chunk_size": 4, "dtype_cases": F32}
    forward = one_case("DeltaNetChunkFwdOp", **row).roofline()[0]
    assert one_case("DeltaNetChunkBwdOp", **row).roofline()[0] == 2 * forward
    row = {"B": 1, "S": 10, "H": 2, "K": 8, "V": 4, "chunk_size": 4, "dtype_cases": [{"T": "float32", "TG": "float32"}]}
    forward = one_case("GLAChunkFwdOp", **row).roofline()[0]
    assert 2 * forward <= one_case("GLAChunkBwdOp", **row).roofline()[0] <= 3 * forward


def test_transforms_by_hand() -> None:
    fourier = one_case("FFTC2CFwdOp", B=[3], n=8, dtype_cases=[{"T": "complex64"}])
    assert fourier.roofline() == (3 * 5 * 8 * 3, 2 * 3 * 8 * 8)
    hadamard = one_case("HadamardTransformFwdOp", B=[3], n=48, base_order=12, scale=0.5, dtype_cases=F32)
    assert hadamard.roofline() == (3 * 48 * (2 + 11 + 1), 2 * 3 * 48 * 4)


def test_whole_composites_name_entries() -> None:
    entries = load_all()
    named = {stage.op for entry in entries.values() for stage in entry.composition if stage.op is not None}
    assert named <= entries.keys()
    assert sum(1 for entry in entries.values() if entry.composition) >= 6
