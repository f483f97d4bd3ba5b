"""The decoder in plain PyTorch: the numerical reference, and the speed to beat.

For each kind of step (prefill or one token) the reference uses the fastest of the formulations that PyTorch
offers on this machine: `choose_formulations` measures them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch
import torch.nn.functional as F

from tileops.workloads.smollm2.weights import ModelConfig, ModelWeights

Linear = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Formulation:
    """Which PyTorch formulation a step uses.

    Attributes:
        attention: ``sdpa`` (``enable_gqa``), ``folded`` (the query heads of a group become query positions;
            one token only, where no mask is needed) or ``manual`` (matmul, softmax, matmul).
        norm: ``fused`` (``F.rms_norm``) or ``manual``.
    """

    attention: str
    norm: str


def with_norms_in_dtype(weights: ModelWeights) -> ModelWeights:
    """The weights with norms in the matrices' dtype, as a PyTorch model of that dtype has them."""
    dtype = weights.dtype
    layers = tuple(
        replace(layer, attn_norm=layer.attn_norm.to(dtype), ffn_norm=layer.ffn_norm.to(dtype))
        for layer in weights.layers
    )
    return replace(weights, layers=layers, final_norm=weights.final_norm.to(dtype))


def rotary_tables(config: ModelConfig, max_len: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines ``[max_len, head_dim]`` of every position, such that ``x cos + swap_halves(x) sin`` rotates."""
    frequencies = config.rope_base ** (-torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim)
    angles = torch.outer(torch.arange(max_len, dtype=torch.float64), frequencies)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([cos, cos], dim=1).to(dtype), torch.cat([-sin, sin], dim=1).to(dtype)


class TorchDecoder:
    """Llama-style decoder with a preallocated KV cache, batch 1.

    Args:
        weights: the model.
        max_len: capacity of the cache in tokens.
        linear: ``linear(x, weight)``; replaced by baselines that pack weights.
    """

    def __init__(self, weights: ModelWeights, max_len: int, linear: Linear = F.linear) -> None:
        config = weights.config
        self.weights, self.config, self.max_len, self.linear = (
            with_norms_in_dtype(weights),
            config,
            max_len,
            linear,
        )
        self.prefill_form = self.decode_form = Formulation("sdpa", "fused")
        dtype = weights.dtype
        self.cos, self.sin = rotary_tables(config, max_len, dtype)
        shape = (config.num_layers, 1, config.num_kv_heads, max_len, config.head_dim)
        self.keys, self.values = torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)
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
        config, linear, weights = self.config, self.linear, self.weights
        T, start = ids.numel(), self.position
        stop = start + T
        form = self.decode_form if T == 1 else self.prefill_form
        x = F.embedding(ids, weights.embedding)[None]
        for index, layer in enumerate(weights.layers):
            h = self._norm(x, layer.attn_norm, form)
            qkv = linear(h, layer.qkv)
            rotated = config.q_size + config.kv_size
            qk = qkv[..., :rotated].view(1, T, -1, config.head_dim).transpose(1, 2)
            qk = self._rope(qk, start, stop)
            q, k = qk[:, : config.num_heads], qk[:, config.num_heads :]
            v = qkv[..., rotated:].view(1, T, config.num_kv_heads, config.head_dim).transpose(1, 2)
            self.keys[index, :, :, start:stop] = k
            self.values[index, :, :, start:stop] = v
            o = self._attention(q, self.keys[index, :, :, :stop], self.values[index, :, :, :stop], form)
            x = x + linear(o, layer.output)
            h = self._norm(x, layer.ffn_norm, form)
            gate, up = linear(h, layer.gate_up).chunk(2, dim=-1)
            x = x + linear(F.silu(gate) * up, layer.down)
        self.position = stop
        if not all_logits:
            x = x[:, -1:]
        return linear(self._norm(x, weights.final_norm, form), weights.embedding)[0]

    def _norm(self, x: torch.Tensor, weight: torch.Tensor, form: Formulation) -> torch.Tensor:
        eps = self.config.norm_eps
        if form.norm == "fused":
            return F.rms_norm(x, (x.shape[-1],), weight, eps)
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight

    def _rope(self, x: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        half = x.shape[-1] // 2
        swapped = torch.cat([x[..., half:], x[..., :half]], dim=-1)
        return x * self.cos[start:stop] + swapped * self.sin[start:stop]

    def _attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, form: Formulation) -> torch.Tensor:
        """q ``[1, H, T, D]``, k and v ``[1, H_kv, S, D]`` -> ``[1, T, H D]``, causal and bottom-right
        aligned."""
        T, S, D = q.shape[2], k.shape[2], q.shape[3]
        groups = self.config.num_heads // self.config.num_kv_heads
        if form.attention == "folded" and T == 1:
            o = F.scaled_dot_product_attention(q.view(1, -1, groups, D), k, v)
            return o.reshape(1, 1, -1)
        # is_causal aligns top-left, so that a rectangular problem needs an explicit mask.
        mask = None if T in (1, S) else torch.ones(T, S, dtype=torch.bool).tril(S - T)
        if form.attention == "manual":
            scores = q.reshape(-1, groups * T, D) @ k[0].transpose(1, 2) * D**-0.5
            if T > 1:
                visible = torch.ones(T, S, dtype=torch.bool).tril(S - T)
                scores = scores.view(-1, groups, T, S).masked_fill(~visible, float("-inf")).view(-1, groups * T, S)
            o = (scores.softmax(-1) @ v[0]).view(1, -1, T, D)
        else:
            o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=T == S and T > 1, enable_gqa=True)
        return o.transpose(1, 2).reshape(1, T, -1)

    @torch.inference_mode()
    def choose_formulations(self, prompt: Sequence[int], rounds: int = 3) -> None:
        """Measures every formulation on `prompt` and on one token after it, and keeps the fastest of each
        kind."""
        ids = torch.tensor(prompt)
        for step, attentions in (
            ("prefill_form", ("sdpa", "manual")),
            ("decode_form", ("sdpa", "folded", "manual")),
        ):
            forms = [Formulation(attention, norm) for attention in attentions for norm in ("fused", "manual")]
            times: dict[Formulation, list[float]] = {form: [] for form in forms}
            for _ in range(rounds):
                for form in forms:
                    setattr(self, step, form)
                    times[form].append(self._time_step(ids, decode=step == "decode_form"))
            setattr(self, step, min(forms, key=lambda form: median(times[form])))

    def _time_step(self, ids: torch.Tensor, decode: bool) -> float:
        self.reset()
        if decode:
            self.position = ids.numel()
            ids = ids[:1]
        started = time.perf_counter()
        self.forward(ids)
        return time.perf_counter() - started


def onednn_packed(weights: ModelWeights, max_len: int) -> TorchDecoder:
    """The reference with every matrix packed once for oneDNN: PyTorch's strongest eager form."""
    packed = {id(w): torch.ops.mkldnn._reorder_linear_weight(w, 1) for w in weights.matrices}

    def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, packed[id(weight)], None, "none", [], "")

    return TorchDecoder(weights, max_len, linear)
