"""The decoder's weights, dequantised and fused, as both implementations take them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tileops.workloads.smollm2.gguf_file import GGUFFile


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a Llama-style decoder."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rope_base: float
    norm_eps: float

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> ModelConfig:
        meta = file.metadata
        hidden_size, num_heads = meta["llama.embedding_length"], meta["llama.attention.head_count"]
        return cls(
            num_layers=meta["llama.block_count"],
            hidden_size=hidden_size,
            intermediate_size=meta["llama.feed_forward_length"],
            num_heads=num_heads,
            num_kv_heads=meta["llama.attention.head_count_kv"],
            head_dim=hidden_size // num_heads,
            vocab_size=len(meta["tokenizer.ggml.tokens"]),
            rope_base=meta["llama.rope.freq_base"],
            norm_eps=meta["llama.attention.layer_norm_rms_epsilon"],
        )

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim


@dataclass(frozen=True)
class LayerWeights:
    """Weights of one layer; matrices are ``[out_features, in_features]``.

    Attributes:
        attn_norm, ffn_norm: always float32, as the file stores them.
        qkv: query, key and value projections stacked, ``[(num_heads + 2 num_kv_heads) head_dim, hidden]``.
        gate_up: gate and up projections stacked, ``[2 intermediate, hidden]``.
    """

    attn_norm: torch.Tensor
    qkv: torch.Tensor
    output: torch.Tensor
    ffn_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True)
class ModelWeights:
    """All weights; the embedding ``[vocab, hidden]`` is also the output head, the norms are float32."""

    config: ModelConfig
    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def matrices(self) -> list[torch.Tensor]:
        """Every matrix that is multiplied by, in the order of use; the head last."""
        return [w for x in self.layers for w in (x.qkv, x.output, x.gate_up, x.down)] + [self.embedding]


def load_weights(file: GGUFFile, dtype: torch.dtype) -> ModelWeights:
    """Dequantises every matrix to `dtype`, which is float32, bfloat16 or float16."""
    config = ModelConfig.from_gguf(file)

    def layer(index: int) -> LayerWeights:
        def load(name: str) -> torch.Tensor:
            return file.tensor(f"blk.{index}.{name}.weight", dtype)

        query = _half_split_rows(load("attn_q"), config.num_heads)
        key = _half_split_rows(load("attn_k"), config.num_kv_heads)
        return LayerWeights(
            attn_norm=file.tensor(f"blk.{index}.attn_norm.weight", torch.float32),
            qkv=torch.cat([query, key, load("attn_v")]),
            output=load("attn_output"),
            ffn_norm=file.tensor(f"blk.{index}.ffn_norm.weight", torch.float32),
            gate_up=torch.cat([load("ffn_gate"), load("ffn_up")]),
            down=load("ffn_down"),
        )

    return ModelWeights(
        config=config,
        embedding=file.tensor("token_embd.weight", dtype),
        layers=tuple(layer(index) for index in range(config.num_layers)),
        final_norm=file.tensor("output_norm.weight", torch.float32),
    )


def _half_split_rows(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorders the rows of a query or key projection from interleaved rotary pairs (2i, 2i + 1), as GGUF
    files of Llama models store them, to pairs (i, i + head_dim / 2)."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)
