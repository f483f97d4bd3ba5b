"""Costs of mixtures of experts. Only the weights of experts with rows are read, and of a padded layout only the rows
that hold a token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tileops.perf.formulas.attention import bytes_of, part_of


def routing_flops(tokens: int, experts: int, top_k: int, scoring: str, renormalize: bool, biased: bool) -> int:
    """Arithmetic of choosing `top_k` of `experts` for each token.

    Sigmoid scores are 4 each; of a softmax, maximum, difference and exponential, and unless the chosen weights are
    normalised anew the sum and a division per choice. A bias adds 1 per score, choosing `top_k` per score, and
    normalising anew 2 per choice.
    """
    if scoring == "sigmoid":
        per_token = 4 * experts
    else:
        per_token = 3 * experts + (0 if renormalize else experts + top_k)
    per_token += top_k * experts + (2 * top_k if renormalize else 0) + (experts if biased else 0)
    return tokens * per_token


def expert_flops(tokens: int, top_k: int, inner: int, hidden: int, scaled: bool) -> int:
    """Arithmetic of a gated MLP per route, the weighted sum, and a scaling of the result."""
    return tokens * top_k * (6 * inner * hidden + 6 * inner + 2 * hidden) + (tokens * hidden if scaled else 0)


def layout_counts(layout: Any, metadata: Sequence[int], experts: int) -> list[int]:
    """Rows of each expert that the metadata of a grouped layout tells."""
    if layout.kind == "masked":
        return list(metadata)
    if layout.metadata_kind == "per_row" or getattr(layout.metadata_kind, "value", None) == "per_row":
        owned = Counter(metadata)
        return [owned[expert] for expert in range(experts)]
    starts = [0, *(-(-stop // layout.alignment) * layout.alignment for stop in metadata[:-1])]
    return [stop - start for start, stop in zip(starts, metadata, strict=True)]


def fused_topk_fwd(call: Any) -> tuple[int, int]:
    """Routing; reads the scores, writes the choices."""
    index = call.indices
    biased = call.present("correction_bias")
    flops = routing_flops(index["T"], index["E"], index["top_k"], index["scoring_func"], index["renormalize"], biased)
    return flops, bytes_of(call, *call.tensors)


def fused_moe_experts_fwd(call: Any) -> tuple[int, int]:
    """The chosen experts of each token; `output` is only written."""
    index = call.indices
    used = len(set(call.metadata_values("topk_ids").reshape(-1).tolist()))
    flops = expert_flops(index["T"], index["K"], index["F"], index["H"], index["routed_scaling_factor"] != 1)
    moved = bytes_of(call, "hidden_states", "topk_weights", "topk_ids", "output")
    return flops, moved + part_of(call, "w_gate_up", used, index["E"]) + part_of(call, "w_down", used, index["E"])


def _routed(call: Any) -> tuple[int, int]:
    """Routing and routed experts from scores. The experts that were chosen are known once the call completed; before
    that, routes are taken to fall on different experts.
    """
    index = call.indices
    tokens, experts, top_k = index["T"], index["E"], index["top_k"]
    used = min(tokens * top_k, experts)
    stage = call.stages.get("routed_experts")
    if stage is not None:
        used = len(set(stage.metadata_values("topk_ids").reshape(-1).tolist()))
    flops = routing_flops(
        tokens,
        experts,
        top_k,
        index["scoring_func"],
        index["renormalize"],
        call.present("correction_bias"),
    )
    flops += expert_flops(tokens, top_k, index["F"], index["H"], index["routed_scaling_factor"] != 1)
    moved = bytes_of(call, "hidden_states", "gating_output", "correction_bias")
    return flops, moved + part_of(call, "w_gate_up", used, experts) + part_of(call, "w_down", used, experts)


def fused_moe_fwd(call: Any) -> tuple[int, int]:
    """Routing, then the chosen experts of each token."""
    flops, moved = _routed(call)
    return flops, moved + call.bytes("output")


def fused_moe_shared_expert_fwd(call: Any) -> tuple[int, int]:
    """`fused_moe_fwd`, and the expert of all tokens where its weights are passed."""
    flops, moved = _routed(call)
    index = call.indices
    if call.present("shared_w_gate_up"):
        flops += 6 * index["T"] * index["S"] * (index["H"] + 1)
    return flops, moved + bytes_of(call, "shared_w_gate_up", "shared_w_down", "shared_output", "routed_output")


def _grouped(call: Any) -> tuple[int, int, int]:
    """``(rows with a token, experts with rows, rows of the layout)``."""
    index = call.indices
    layout, experts = index["layout"], index["E"]
    counts = layout_counts(layout, call.metadata_values("layout_metadata").tolist(), experts)
    held = experts * layout.max_m if layout.kind == "masked" else index["P"]
    return sum(counts), sum(1 for count in counts if count), held


def moe_grouped_gemm_fwd(call: Any) -> tuple[int, int]:
    """The product of each row with its expert's matrix, and a gated activation where one is fused."""
    index = call.indices
    rows, used, held = _grouped(call)
    gated = call.present("activation")
    width = 2 * index["N"] if gated else index["N"]
    flops = 2 * rows * width * index["K"] + (6 * rows * index["N"] if gated else 0)
    moved = call.bytes("layout_metadata") + part_of(call, "b", used, index["E"])
    return flops, moved + part_of(call, "a", rows, held) + part_of(call, "output", rows, held)


def moe_grouped_gemm_fp8_fwd(call: Any) -> tuple[int, int]:
    """As `moe_grouped_gemm_fwd`; each partial sum over 128 elements is multiplied by two scales."""
    index = call.indices
    rows, used, held = _grouped(call)
    flops = 2 * rows * index["N"] * (index["K"] + index["K"] // 128)
    moved = call.bytes("layout_metadata")
    moved += part_of(call, "b", used, index["E"]) + part_of(call, "b_scale", used, index["E"])
    return flops, moved + sum(part_of(call, name, rows, held) for name in ("a", "a_scale", "output"))


def moe_expert_mlp_fwd(call: Any) -> tuple[int, int]:
    """A gated MLP of each row with its expert's matrices."""
    index = call.indices
    rows, used, held = _grouped(call)
    flops = rows * (6 * index["F"] * index["H"] + 6 * index["F"])
    moved = call.bytes("layout_metadata")
    moved += part_of(call, "w_gate_up", used, index["E"]) + part_of(call, "w_down", used, index["E"])
    return flops, moved + part_of(call, "expert_input", rows, held) + part_of(call, "output", rows, held)
