"""The decoder on TileOPs operators.

Only the embedding lookup, copies (into the KV cache, between dtypes) and views are PyTorch's; everything
computed is an operator's. The residual stream and the norms are float32 whatever the dtype of the matrices:
rounding the stream sixty times would cost more accuracy than everything else together, and it is too small
to matter for speed.

A bfloat16 model computes its first two layers and its last one in float32, from the same bfloat16 weights, which packs
hold as such. The first layers decide which tokens get the massive activations that later layers attend to as sinks, and
rounding turns some of these decisions; the last layers make half of what error is left. Without them the smallest
cosine similarity of the logits to the float32 reference's, over 576 positions, is 0.998; with them 0.9991 (PyTorch's
own bfloat16: 0.971), and more layers in float32 make it surer (`docs/measurements/demo.md`). Decoding, which memory
limits, costs the same; each exact layer adds a twenty-fifth to a prefill.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from tileops.attention import GQADenseFwdOp
from tileops.elementwise import AddFwdOp, SiluAndMulFwdOp
from tileops.gemm import GemmFwdOp, pack
from tileops.norm import RMSNormFwdOp
from tileops.rope import RoPENeoxPositionIdsFwdOp
from tileops.workloads.smollm2.weights import ModelWeights

#: How many of the first and of the last layers of a bfloat16 model compute in float32.
EXACT_LAYERS = (2, 1)


class TileOpsDecoder:
    """Llama-style decoder with a preallocated KV cache, batch 1.

    Args:
        weights: the model.
        max_len: capacity of the cache in tokens.
        packed: pack the matrices once; the packs live as long as the decoder.
        exact_layers: how many of the first and of the last layers compute in float32 where the weights are bfloat16.
    """

    def __init__(
        self,
        weights: ModelWeights,
        max_len: int,
        packed: bool = True,
        exact_layers: tuple[int, int] = EXACT_LAYERS,
    ) -> None:
        config, dtype = weights.config, weights.dtype
        self.weights, self.config, self.max_len = weights, config, max_len
        first, last = exact_layers if dtype == torch.bfloat16 else (0, 0)
        kinds = [
            torch.float32 if index < first or index >= config.num_layers - last else dtype
            for index in range(config.num_layers)
        ]
        self.layers = [layer.to(kind) for layer, kind in zip(weights.layers, kinds, strict=True)]
        self.norm = RMSNormFwdOp((config.hidden_size,), eps=config.norm_eps)
        self.gemm = GemmFwdOp()
        self.rope = RoPENeoxPositionIdsFwdOp(base=config.rope_base, max_position=max_len)
        self.attention = GQADenseFwdOp(is_causal=True)
        self.silu_and_mul = SiluAndMulFwdOp()
        self.add = AddFwdOp()
        # An answer is to begin at once; `settle` is for long runs.
        matrices = [matrix for layer in self.layers for matrix in layer.matrices] + [weights.embedding]
        self.packs = [pack(matrix, huge_pages="later") for matrix in matrices] if packed else []
        # Keys and values of a token side by side, so that one copy stores both.
        H, H_kv = config.num_heads, config.num_kv_heads
        self.caches = [
            torch.zeros(kinds.count(kind), 1, max_len, 2 * H_kv, config.head_dim, dtype=kind)
            for kind in dict.fromkeys(kinds)
        ]
        # Where a layer's views are among those of all caches.
        order = sorted(range(config.num_layers), key=lambda index: kinds[index] != kinds[0])
        self.places = [order.index(index) for index in range(config.num_layers)]
        # A position for each head vector of queries, keys and values: position 0 leaves values as they are, so one
        # call takes the projections whole.
        rotated = torch.arange(H + 2 * H_kv) < H + H_kv
        self.positions = torch.arange(max_len)[:, None] * rotated
        self.position = 0

    def settle(self) -> None:
        """Spends half a second on what makes later steps faster."""
        for packed in self.packs:
            packed.use_huge_pages()

    def reset(self) -> None:
        """Forgets the context."""
        self.position = 0

    def forward(self, ids: torch.Tensor, all_logits: bool = False) -> torch.Tensor:
        """Appends tokens to the context.

        Args:
            ids: token ids, int64 ``[T]``.
            all_logits: return the logits of every position instead of the last.

        Returns:
            Logits ``[1, vocab]``, or ``[T, vocab]``, in the weights' dtype.
        """
        config, weights, dtype = self.config, self.weights, self.weights.dtype
        norm, gemm, add, rope = self.norm, self.gemm, self.add, self.rope
        T, start = ids.numel(), self.position
        stop = start + T
        H, H_kv, D = config.num_heads, config.num_kv_heads, config.head_dim
        positions = self.positions[start:stop].view(-1)
        # One call for the views of many layers: a slice each would cost a decoding step half a millisecond.
        entries, keys, values = (
            [view for cache in self.caches for view in cache[:, :, rows, heads].unbind()]
            for rows, heads in (
                (slice(start, stop), slice(None)),
                (slice(stop), slice(H_kv)),
                (slice(stop), slice(H_kv, None)),
            )
        )
        narrowed, widened = _converter(T, config.hidden_size, dtype), _converter(T, config.hidden_size, torch.float32)
        x = F.embedding(ids, weights.embedding).float()
        for layer, index in zip(self.layers, self.places, strict=True):
            exact = layer.qkv.dtype == torch.float32
            narrow, wide = (_unchanged, _unchanged) if exact else (narrowed, widened)
            qkv = gemm(narrow(norm(x, layer.attn_norm)), layer.qkv)
            turned = rope(qkv.view(-1, 1, D), positions).view(1, T, -1, D)
            q, entry = torch.split_with_sizes(turned, (H, 2 * H_kv), 2)
            entries[index].copy_(entry)
            o = self.attention(q, keys[index], values[index])
            x = add(x, wide(gemm(o.view(T, -1), layer.output)))
            gate_up = gemm(narrow(norm(x, layer.ffn_norm)), layer.gate_up)
            x = add(x, wide(gemm(self.silu_and_mul(gate_up), layer.down)))
        self.position = stop
        if not all_logits:
            x = x[-1:]
        return gemm(norm(x, weights.final_norm).to(dtype), weights.embedding)


def _converter(rows: int, columns: int, dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    """Converts to `dtype` in memory that the next conversion reuses: half the price of ``.to``, and of its cache
    lines."""
    return torch.empty(rows, columns, dtype=dtype).copy_


def _unchanged(x: torch.Tensor) -> torch.Tensor:
    return x
