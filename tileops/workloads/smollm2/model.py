"""The decoder on TileOPs operators.

Only the embedding lookup, copies (into the KV cache, between dtypes) and views are PyTorch's; everything
computed is an operator's. The residual stream and the norms are float32 whatever the dtype of the matrices:
rounding the stream sixty times would cost more accuracy than everything else together, and it is too small
to matter for speed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tileops.attention import GQADenseFwdOp
from tileops.elementwise import AddFwdOp, SiluAndMulFwdOp
from tileops.gemm import GemmFwdOp, pack
from tileops.norm import RMSNormFwdOp
from tileops.rope import RoPENeoxPositionIdsFwdOp
from tileops.workloads.smollm2.weights import ModelWeights


class TileOpsDecoder:
    """Llama-style decoder with a preallocated KV cache, batch 1.

    Args:
        weights: the model.
        max_len: capacity of the cache in tokens.
        packed: pack the matrices once; the packs live as long as the decoder.
    """

    def __init__(self, weights: ModelWeights, max_len: int, packed: bool = True) -> None:
        config, dtype = weights.config, weights.dtype
        self.weights, self.config, self.max_len = weights, config, max_len
        self.norm = RMSNormFwdOp((config.hidden_size,), eps=config.norm_eps)
        self.gemm = GemmFwdOp()
        self.rope = RoPENeoxPositionIdsFwdOp(base=config.rope_base, max_position=max_len)
        self.attention = GQADenseFwdOp(is_causal=True)
        self.silu_and_mul = SiluAndMulFwdOp()
        self.add = AddFwdOp()
        self.packs = [pack(matrix) for matrix in weights.matrices] if packed else []
        shape = (config.num_layers, 1, max_len, config.num_kv_heads, config.head_dim)
        self.keys, self.values = torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)
        self.positions = torch.arange(max_len)
        self.position = 0

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
        config, weights = self.config, self.weights
        norm, gemm, add, rope = self.norm, self.gemm, self.add, self.rope
        T, start = ids.numel(), self.position
        stop = start + T
        H, H_kv, D = config.num_heads, config.num_kv_heads, config.head_dim
        dtype, positions = weights.dtype, self.positions[start:stop]
        # One call for the views of all layers: a slice each would cost a decoding step half a millisecond.
        new_keys, new_values = self.keys[:, 0, start:stop].unbind(), self.values[:, 0, start:stop].unbind()
        keys, values = self.keys[:, :, :stop].unbind(), self.values[:, :, :stop].unbind()
        x = F.embedding(ids, weights.embedding).float()
        for index, layer in enumerate(weights.layers):
            qkv = gemm(norm(x, layer.attn_norm).to(dtype), layer.qkv)
            qk, v = qkv.view(T, -1, D).split((H + H_kv, H_kv), dim=1)
            q, k = rope(qk, positions).split((H, H_kv), dim=1)
            new_keys[index].copy_(k)
            new_values[index].copy_(v)
            o = self.attention(q[None], keys[index], values[index])
            x = add(x, gemm(o.view(T, -1), layer.output).float())
            gate_up = gemm(norm(x, layer.ffn_norm).to(dtype), layer.gate_up)
            x = add(x, gemm(self.silu_and_mul(gate_up), layer.down).float())
        self.position = stop
        if not all_logits:
            x = x[-1:]
        return gemm(norm(x, weights.final_norm).to(dtype), weights.embedding)
