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

    @property
    def matrices(self) -> tuple[torch.Tensor, ...]:
        """The matrices in the order of use."""
        return self.qkv, self.output, self.gate_up, self.down

    def to(self, dtype: torch.dtype) -> LayerWeights:
        """The layer with its matrices in another dtype."""
        qkv, output, gate_up, down = (matrix.to(dtype) for matrix in self.matrices)
        return LayerWeights(self.attn_norm, qkv, output, self.ffn_norm, gate_up, down)


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
        return [matrix for layer in self.layers for matrix in layer.matrices] + [self.embedding]


def load_weights(file: GGUFFile, dtype: torch.dtype) -> ModelWeights:
    """Dequantises every matrix to `dtype`, which is float32, bfloat16 or float16."""
    _keep_freed_memory()
    config = ModelConfig.from_gguf(file)

    def stacked(index: int, *names: str) -> torch.Tensor:
        """Projections with the same input, one below the other."""
        places = [f"blk.{index}.{name}.weight" for name in names]
        heights = [file.tensors[place].shape[0] for place in places]
        matrix = torch.empty(sum(heights), file.tensors[places[0]].shape[1], dtype=dtype)
        for name, place, part in zip(names, places, matrix.split(heights), strict=True):
            # Files of Llama models store the rows of queries and keys for interleaved rotary pairs.
            file.read_into(place, part, config.head_dim if name in ("attn_q", "attn_k") else 1)
        return matrix

    def layer(index: int) -> LayerWeights:
        return LayerWeights(
            attn_norm=file.tensor(f"blk.{index}.attn_norm.weight", torch.float32),
            qkv=stacked(index, "attn_q", "attn_k", "attn_v"),
            output=stacked(index, "attn_output"),
            ffn_norm=file.tensor(f"blk.{index}.ffn_norm.weight", torch.float32),
            gate_up=stacked(index, "ffn_gate", "ffn_up"),
            down=stacked(index, "ffn_down"),
        )

    return ModelWeights(
        config=config,
        embedding=file.tensor("token_embd.weight", dtype),
        layers=tuple(layer(index) for index in range(config.num_layers)),
        final_norm=file.tensor("output_norm.weight", torch.float32),
    )


def _keep_freed_memory() -> None:
    """Lets the C library keep the memory of activations that are freed.

    glibc maps blocks larger than any freed so far anew, and returns freed memory beyond twice that size to the system:
    every prefill would then pay for the page faults of its activations, in any implementation. A large block that is
    freed once, without being touched, raises both limits.
    """
    torch.empty(31 << 20, dtype=torch.uint8)
