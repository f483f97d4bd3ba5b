"""Costs that no inline formula expresses: ``f(call) -> (flops, bytes)``, named by `roofline.func` of an
entry.

`call` is a `tileops.manifest.roofline.CallView`. FLOPs are the least arithmetic of the algorithm, one per
add, multiply, divide, transcendental or select; bytes the least traffic, each distinct element that is needed
once. No torch here.
"""

from __future__ import annotations

from tileops.perf.formulas.attention import (
    gqa_dense_fwd,
    gqa_paged_fwd,
    gqa_prefill_paged_fwd,
    gqa_varlen_fwd,
    mha_decode_paged_fwd,
    mla_paged_fwd,
    mla_varlen_fwd,
    visible_range,
    visible_scores,
)
from tileops.perf.formulas.moe import (
    fused_moe_experts_fwd,
    fused_moe_fwd,
    fused_moe_shared_expert_fwd,
    fused_topk_fwd,
    moe_expert_mlp_fwd,
    moe_grouped_gemm_fp8_fwd,
    moe_grouped_gemm_fwd,
)
from tileops.perf.formulas.pool import (
    adaptive_avg_pool2d_fwd,
    adaptive_max_pool2d_fwd,
    avg_pool_fwd,
    max_pool_fwd,
)
from tileops.perf.formulas.recurrent import (
    cb_producer_fwd,
    da_cumsum_fwd,
    delta_net_chunk_bwd,
    delta_net_chunk_fwd,
    fft_c2c_fwd,
    gdn_fwd,
    gla_chunk_bwd,
    gla_chunk_fwd,
    hadamard_transform_fwd,
    kda_fwd,
    mamba2_fwd,
    ssd_chunk_scan_fwd,
)
from tileops.perf.formulas.selected_attention import (
    dsa_decode_fwd,
    dsa_paged_fwd,
    lightning_indexer_fwd,
    nsa_compressed_varlen_fwd,
    nsa_topk_varlen_fwd,
    nsa_varlen_fwd,
    topk_select_fwd,
)

__all__ = [
    "adaptive_avg_pool2d_fwd",
    "adaptive_max_pool2d_fwd",
    "avg_pool_fwd",
    "cb_producer_fwd",
    "da_cumsum_fwd",
    "delta_net_chunk_bwd",
    "delta_net_chunk_fwd",
    "dsa_decode_fwd",
    "dsa_paged_fwd",
    "fft_c2c_fwd",
    "fused_moe_experts_fwd",
    "fused_moe_fwd",
    "fused_moe_shared_expert_fwd",
    "fused_topk_fwd",
    "gdn_fwd",
    "gla_chunk_bwd",
    "gla_chunk_fwd",
    "gqa_dense_fwd",
    "gqa_paged_fwd",
    "gqa_prefill_paged_fwd",
    "gqa_varlen_fwd",
    "hadamard_transform_fwd",
    "kda_fwd",
    "lightning_indexer_fwd",
    "mamba2_fwd",
    "max_pool_fwd",
    "mha_decode_paged_fwd",
    "mla_paged_fwd",
    "mla_varlen_fwd",
    "moe_expert_mlp_fwd",
    "moe_grouped_gemm_fp8_fwd",
    "moe_grouped_gemm_fwd",
    "nsa_compressed_varlen_fwd",
    "nsa_topk_varlen_fwd",
    "nsa_varlen_fwd",
    "ssd_chunk_scan_fwd",
    "topk_select_fwd",
    "visible_range",
    "visible_scores",
]
