"""The model's tokenizer, built from the vocabulary and merges in the GGUF file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_CONTROL = 3  # token type of <|im_start|> and its like


class ChatTokenizer:
    """Byte-level BPE with single digits, and the chat template for one user message.

    Args:
        metadata: metadata of the GGUF file.

    Attributes:
        eos: id of the token that ends an answer.
    """

    SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"

    def __init__(self, metadata: dict[str, Any]) -> None:
        tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
        # The byte-level alphabet has no white space, so what separates is the only one.
        merges = [(left, right) for left, right in map(str.split, metadata["tokenizer.ggml.merges"])]
        vocabulary = {token: index for index, token in enumerate(tokens)}
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, fuse_unk=False))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens(
            [
                AddedToken(t, special=True, normalized=False)
                for t, kind in zip(tokens, types, strict=True)
                if kind == _CONTROL
            ]
        )
        self._tokenizer = tokenizer
        self.eos: int = metadata["tokenizer.ggml.eos_token_id"]

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; control tokens written in it are recognised."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int], skip_control: bool = True) -> str:
        """Text of `ids`; an unfinished multi-byte character shows as U+FFFD."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_control)

    def encode_chat(self, message: str) -> list[int]:
        """Token ids of the chat template around one user message, up to where the answer begins."""
        return self.encode(
            f"<|im_start|>system\n{self.SYSTEM}<|im_end|>\n<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n"
        )
