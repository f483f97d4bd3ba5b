"""The decoder as `torch.compile` likes it best: static cache, position as a tensor, weights frozen into the
graph.

Freezing lets Inductor pack the weights for oneDNN, which is what makes it PyTorch's fastest form; compiling
takes half a minute.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tileops.workloads.smollm2.reference import rotary_tables, with_norms_in_dtype
from tileops.workloads.smollm2.weights import LayerWeights, ModelWeights


class _StaticDecoder(nn.Module):
    """One graph for a fixed number of tokens: writes them at `positions`, attends over the whole cache."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, weights: ModelWeights, max_len: int) -> None:
        super().__init__()
        config = weights.config
        self.config, self.max_len = config, max_len
        for index, layer in enumerate(weights.layers):
            for name, value in vars(layer).items():
                self.register_parameter(f"{name}_{index}", nn.Parameter(value, requires_grad=False))
            shape = (config.num_kv_heads, max_len, config.head_dim)
            self.register_buffer(f"keys_{index}", torch.zeros(shape, dtype=weights.dtype))
            self.register_buffer(f"values_{index}", torch.zeros(shape, dtype=weights.dtype))
        self.embedding = nn.Parameter(weights.embedding, requires_grad=False)
        self.final_norm = nn.Parameter(weights.final_norm, requires_grad=False)
        cos, sin = rotary_tables(config, max_len, weights.dtype)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def _layer(self, index: int) -> LayerWeights:
        return LayerWeights(**{name: getattr(self, f"{name}_{index}") for name in LayerWeights.__annotations__})

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        config, T = self.config, ids.shape[0]
        eps, half = config.norm_eps, config.head_dim // 2
        rotated = config.q_size + config.kv_size
        x = self.embedding[ids]
        cos, sin = self.cos[positions], self.sin[positions]
        bias = torch.where(torch.arange(self.max_len) <= positions[-1], 0.0, float("-inf")).to(x.dtype)[
            None, None, None
        ]
        for index in range(config.num_layers):
            layer, keys, values = (
                self._layer(index),
                getattr(self, f"keys_{index}"),
                getattr(self, f"values_{index}"),
            )
            qkv = F.linear(F.rms_norm(x, (config.hidden_size,), layer.attn_norm, eps), layer.qkv)
            qk = qkv[:, :rotated].view(T, -1, config.head_dim).transpose(0, 1)
            qk = qk * cos + torch.cat([qk[..., half:], qk[..., :half]], dim=-1) * sin
            q, k = qk[: config.num_heads], qk[config.num_heads :]
            v = qkv[:, rotated:].view(T, config.num_kv_heads, config.head_dim).transpose(0, 1)
            keys.index_copy_(1, positions, k)
            values.index_copy_(1, positions, v)
            if T == 1:
                folded = q.reshape(1, config.num_kv_heads, -1, config.head_dim)
                o = F.scaled_dot_product_attention(folded, keys[None], values[None], attn_mask=bias).reshape(1, -1)
            else:
                o = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, enable_gqa=True)
                o = o[0].transpose(0, 1).reshape(T, -1)
            x = x + F.linear(o, layer.output)
            gate, up = F.linear(F.rms_norm(x, (config.hidden_size,), layer.ffn_norm, eps), layer.gate_up).chunk(
                2, dim=-1
            )
            x = x + F.linear(F.silu(gate) * up, layer.down)
        return F.linear(F.rms_norm(x[-1:], (config.hidden_size,), self.final_norm, eps), self.embedding)


class FrozenDecoder:
    """`torch.compile` with freezing, for prefills of one fixed length from an empty cache and single tokens.

    Args:
        weights: the model.
        max_len: capacity of the cache in tokens; decoding attends over all of it.
    """

    def __init__(self, weights: ModelWeights, max_len: int) -> None:
        import torch._inductor.config as inductor

        with torch.no_grad(), inductor.patch(freezing=True):
            self._module = _StaticDecoder(with_norms_in_dtype(weights), max_len).eval()
            self._step = torch.compile(self._module, dynamic=False, fullgraph=True)
        self.max_len = max_len
        self.position = 0

    def reset(self) -> None:
        """Forgets the context."""
        self.position = 0

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Appends tokens; returns the logits ``[1, vocab]`` of the last."""
        import torch._inductor.config as inductor

        start = self.position
        if start and ids.numel() > 1:
            raise ValueError("FrozenDecoder prefills from an empty cache only; call reset() first")
        self.position = start + ids.numel()
        # no_grad, not inference_mode: freezing folds parameters only when they are ordinary tensors.
        with torch.inference_mode(False), torch.no_grad(), inductor.patch(freezing=True):
            return self._step(ids.clone(), torch.arange(start, self.position))
