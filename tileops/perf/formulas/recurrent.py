"""Costs of linear attention and state space models, by token or by chunk as their signatures say, and of two transforms
whose arithmetic grows with a logarithm.
"""

from __future__ import annotations

from typing import Any

from tileops.perf.formulas.attention import bytes_of


def _over_chunks(length: int, chunk: int, power: int) -> int:
    """Sum over the chunks of ``length`` tokens of what grows with the size c of a chunk.

    Power 1 is the sum of c, 2 of the pairs ``c (c + 1) / 2`` on and below the diagonal, 3 of the products
    ``c (c - 1) (c - 2) / 6`` that the inverse of a unit triangular matrix takes.
    """
    whole, rest = divmod(length, chunk)

    def grown(size: int) -> int:
        return {1: size, 2: size * (size + 1) // 2, 3: size * (size - 1) * (size - 2) // 6}[power]

    return whole * grown(chunk) + grown(rest)


def _delta_products(call: Any) -> tuple[int, int]:
    """``(matrix products, everything else)`` of a delta rule by chunks, forward."""
    index = call.indices
    length, chunk, dk, dv = index["L"], index["chunk_size"], index["DK"], index["DV"]
    heads = index["B"] * index["H"]
    pairs, inverse = _over_chunks(length, chunk, 2), _over_chunks(length, chunk, 3)
    below = pairs - length
    products = 2 * below * dk + 2 * inverse  # keys with keys, and the inverse of their triangle
    products += 2 * pairs * (dk + dv)  # w and u
    products += 3 * 2 * length * dk * dv  # w with the state, the state's update, q with the state
    products += 2 * pairs * (dk + dv)  # queries with keys, and with the corrected values
    other = below + length * (dk + dv)  # beta on the triangle, on keys and on values
    other += length * dk + 2 * length * dv  # scale of q, correction of u, sum of both parts of the output
    return heads * products, heads * other


def delta_net_chunk_fwd(call: Any) -> tuple[int, int]:
    """The delta rule by chunks: triangles within a chunk, products with the state between chunks."""
    products, other = _delta_products(call)
    return products + other, bytes_of(call, *call.tensors)


def delta_net_chunk_bwd(call: Any) -> tuple[int, int]:
    """Two products for each one of the forward call."""
    products, other = _delta_products(call)
    return 2 * products + 2 * other, bytes_of(call, *call.tensors)


def _gla_products(call: Any) -> tuple[int, int]:
    """``(matrix products, everything else)`` of gated linear attention by chunks, forward."""
    index = call.indices
    length, chunk, dk, dv = index["S"], index["chunk_size"], index["K"], index["V"]
    heads = index["B"] * index["H"]
    pairs = _over_chunks(length, chunk, 2)
    products = 2 * pairs * (dk + dv) + 2 * 2 * length * dk * dv
    chunks = -(-length // chunk)
    # Cumulative gates, two exponentials, gated q and k, k to the end of its chunk, scale; decay of the state; sum.
    other = 7 * length * dk + chunks * dk * (dv + 1) + length * dv
    return heads * products, heads * other


def gla_chunk_fwd(call: Any) -> tuple[int, int]:
    """Gated linear attention by chunks."""
    products, other = _gla_products(call)
    return products + other, bytes_of(call, *call.tensors)


def gla_chunk_bwd(call: Any) -> tuple[int, int]:
    """Two products for each one of the forward call; the gated inputs are computed anew."""
    products, other = _gla_products(call)
    return 2 * products + 3 * other, bytes_of(call, *call.tensors)


def _gate_flops(call: Any, channels: int) -> int:
    """Arithmetic of a gate of `channels` per token and head: a bias, softplus or a bounded sigmoid, and a product."""
    if not call.indices["use_gate_in_kernel"]:
        return 0
    per_channel = 4 if call.indices.get("lower_bound") is None else 6
    return channels * (per_channel + (1 if call.present("dt_bias") else 0))


def _flag_flops(call: Any, channels: int) -> int:
    """What the switches of a delta rule with a gate add per token: norms of q and k, beta, the gate."""
    index = call.indices
    per_token = 6 * index["H"] * index["K"] if index["use_qk_l2norm_in_kernel"] else 0
    beta = (4 if index["use_beta_sigmoid_in_kernel"] else 0) + (1 if index["allow_neg_eigval"] else 0)
    return per_token + index["HV"] * (beta + _gate_flops(call, channels))


def gdn_fwd(call: Any) -> tuple[int, int]:
    """The gated delta rule token by token: decay, prediction, correction and output of a K x V state."""
    index = call.indices
    per_token = index["HV"] * 7 * index["K"] * index["V"] + _flag_flops(call, 1)
    return index["B"] * index["S"] * per_token, bytes_of(call, *call.tensors)


def kda_fwd(call: Any) -> tuple[int, int]:
    """As `gdn_fwd`, with a gate per key channel."""
    index = call.indices
    keys, values = index["K"], index["V"]
    per_token = index["HV"] * (7 * keys * values + keys + 2 * values) + _flag_flops(call, keys)
    return index["B"] * index["S"] * per_token, bytes_of(call, *call.tensors)


# --- state space models ---


def _da_cumsum_flops(call: Any) -> int:
    index = call.indices
    per_step = 2 + (1 if call.present("dt_bias") else 0) + (3 if index["dt_softplus"] else 0)
    per_step += (1 if index["dt_min"] > 0 else 0) + (1 if index["dt_max"] < float("inf") else 0)
    return int(index["Bt"] * index["S"] * index["H"] * per_step)


def da_cumsum_fwd(call: Any) -> tuple[int, int]:
    """Step sizes: bias, softplus, limits, product with A, cumulative sum."""
    return _da_cumsum_flops(call), bytes_of(call, *call.tensors)


def cb_producer_fwd(call: Any) -> tuple[int, int]:
    """The lower triangle of C with B in each chunk."""
    index = call.indices
    pairs = _over_chunks(index["S"], index["chunk_len"], 2)
    return index["Bt"] * index["G"] * pairs * 2 * index["N"], bytes_of(call, *call.tensors)


def _scan_flops(index: Any, chunk: int) -> int:
    """Per token and head the state's part of the output, per pair of a chunk its weight and its share."""
    pairs = _over_chunks(index["S"], chunk, 2)
    per_token = 2 * index["P"] * index["N"] + 2 * index["P"] + 1
    return int(index["Bt"] * index["H"] * (index["S"] * per_token + pairs * (2 * index["P"] + 4)))


def ssd_chunk_scan_fwd(call: Any) -> tuple[int, int]:
    """Output of each chunk from the state before it and from its own steps."""
    return _scan_flops(call.indices, call.indices["Q"]), bytes_of(call, *call.tensors)


def mamba2_fwd(call: Any) -> tuple[int, int]:
    """The five stages of a structured state space scan; what lies between them is not moved."""
    index = call.indices
    chunk, heads = index["chunk_len"], index["Bt"] * index["H"]
    state = index["P"] * index["N"]
    flops = _da_cumsum_flops(call) + cb_producer_fwd(call)[0]
    flops += heads * index["S"] * (2 * state + index["P"] + 3)
    flops += heads * -(-index["S"] // chunk) * (2 * state + 1)
    return flops + _scan_flops(index, chunk), bytes_of(call, *call.tensors)


# --- transforms ---


def fft_c2c_fwd(call: Any) -> tuple[int, int]:
    """``5 n log2 n`` per transform of n elements."""
    (shape, _), size = call.tensors["x"], call.indices["n"]
    batch = 1
    for axis in shape[:-1]:
        batch *= axis
    return batch * 5 * size * max(size.bit_length() - 1, 0), bytes_of(call, *call.tensors)


def hadamard_transform_fwd(call: Any) -> tuple[int, int]:
    """A sum per element and stage of the power of two, a product with the base matrix of signs, and the scale."""
    (shape, _), size, base = call.tensors["x"], call.indices["n"], call.indices["base_order"]
    elements = 1
    for axis in shape:
        elements *= axis
    stages = max((size // base).bit_length() - 1, 0)
    return elements * (stages + base - 1 + (call.indices["scale"] != 1)), bytes_of(call, *call.tensors)
