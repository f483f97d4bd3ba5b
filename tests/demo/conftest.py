"""A model of the demo's architecture, small enough to run in a second: random weights, a byte-level
vocabulary."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from tokenizers import pre_tokenizers

LAYERS, HIDDEN, FFN, HEADS, KV_HEADS = 2, 192, 256, 3, 1
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def write_model(path: Path) -> Path:
    """Writes a GGUF file with the real one's storage types: Q8_0 embedding, Q4_1 matrices, F32 norms."""
    rng = np.random.default_rng(0)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*CONTROL, *letters, "th", "he"]
    vocab = -(-len(tokens) // 32) * 32
    tokens += [f"<unused{i}>" for i in range(vocab - len(tokens))]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(CONTROL) + [1] * (vocab - len(CONTROL)))
    writer.add_token_merges(["t h", "h e"])
    writer.add_eos_token_id(2)

    def matrix(name: str, rows: int, columns: int, kind: gguf.GGMLQuantizationType) -> None:
        weight = rng.standard_normal((rows, columns), dtype=np.float32) / columns**0.5
        writer.add_tensor(name, gguf.quantize(weight, kind), raw_dtype=kind)

    def norm(name: str) -> None:
        writer.add_tensor(name, 1 + rng.standard_normal(HIDDEN, dtype=np.float32) / 8)

    q4, q8 = gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.Q8_0
    head_dim = HIDDEN // HEADS
    matrix("token_embd.weight", vocab, HIDDEN, q8)
    norm("output_norm.weight")
    for index in range(LAYERS):
        block = f"blk.{index}."
        norm(block + "attn_norm.weight")
        norm(block + "ffn_norm.weight")
        matrix(block + "attn_q.weight", HIDDEN, HIDDEN, q4)
        matrix(block + "attn_k.weight", KV_HEADS * head_dim, HIDDEN, q4)
        matrix(block + "attn_v.weight", KV_HEADS * head_dim, HIDDEN, q4)
        matrix(block + "attn_output.weight", HIDDEN, HIDDEN, q4)
        matrix(block + "ffn_gate.weight", FFN, HIDDEN, q4)
        matrix(block + "ffn_up.weight", FFN, HIDDEN, q4)
        matrix(block + "ffn_down.weight", HIDDEN, FFN, q4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf")
