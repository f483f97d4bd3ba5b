"""Speed and accuracy of one decoder against another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import torch


class Decoder(Protocol):
    """What is measured: a decoder with a context that grows."""

    def reset(self) -> None: ...

    def forward(self, ids: torch.Tensor) -> torch.Tensor: ...


class FullDecoder(Decoder, Protocol):
    """A decoder that can return the logits of every position."""

    def forward(self, ids: torch.Tensor, all_logits: bool = False) -> torch.Tensor: ...


@dataclass(frozen=True)
class Speed:
    """Tokens per second, medians over rounds."""

    prefill: float
    decode: float


@torch.inference_mode()
def greedy(decoder: Decoder, prompt: Sequence[int], count: int, eos: int | None = None) -> Iterator[int]:
    """Generates up to `count` tokens after `prompt`, stopping after `eos`."""
    decoder.reset()
    ids = torch.tensor(prompt)
    for _ in range(count):
        token = int(decoder.forward(ids)[-1].argmax())
        yield token
        if token == eos:
            return
        ids = torch.tensor([token])


@torch.inference_mode()
def race(
    decoders: Mapping[str, Decoder],
    prompt: Sequence[int],
    steps: int,
    rounds: int,
    between: Callable[[], None] = lambda: None,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Speed]:
    """Interleaved rounds: every decoder prefills `prompt`, then decodes `steps` tokens after it.

    Args:
        decoders: contenders by name; each runs once before the clocks start.
        between: called before each round, for example to measure the memory bandwidth.
        progress: called with the number of rounds done.
    """
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in decoders}
    for decoder in decoders.values():
        _timed_round(decoder, prompt, 2)
    for index in range(rounds):
        between()
        for name, decoder in decoders.items():
            times[name].append(_timed_round(decoder, prompt, steps))
        progress(index + 1)
    return {
        name: Speed(len(prompt) / median(p for p, _ in rows), steps / median(d for _, d in rows))
        for name, rows in times.items()
    }


def _timed_round(decoder: Decoder, prompt: Sequence[int], steps: int) -> tuple[float, float]:
    decoder.reset()
    ids = torch.tensor(prompt)
    started = time.perf_counter()
    token = int(decoder.forward(ids)[-1].argmax())
    prefilled = time.perf_counter()
    for _ in range(steps):
        token = int(decoder.forward(torch.tensor([token]))[-1].argmax())
    return prefilled - started, time.perf_counter() - prefilled


@dataclass(frozen=True)
class Agreement:
    """How far logits are from the reference's, position by position.

    Attributes:
        max_logit_diff: largest absolute difference of a logit.
        min_cosine: smallest cosine similarity of two logit vectors.
        mean_kl: mean over positions of KL(reference || decoder), in nats.
    """

    max_logit_diff: float
    min_cosine: float
    mean_kl: float


def agreement(logits: torch.Tensor, reference: torch.Tensor) -> Agreement:
    """Compares logits ``[T, vocab]``, in float64, a block of positions at a time."""
    difference, cosine, divergence = 0.0, 1.0, 0.0
    for ours, theirs in zip(logits.split(64), reference.split(64), strict=True):
        a, b = ours.double(), theirs.double()
        difference = max(difference, (a - b).abs().max().item())
        cosine = min(cosine, torch.nn.functional.cosine_similarity(a, b, dim=-1).min().item())
        p, q = b.log_softmax(-1), a.log_softmax(-1)
        divergence += (p.exp() * (p - q)).sum().item()
    return Agreement(difference, cosine, divergence / len(logits))


@torch.inference_mode()
def forced_logits(decoder: FullDecoder, prompt: Sequence[int], continuation: Sequence[int]) -> torch.Tensor:
    """Logits ``[len(continuation), vocab]`` of a decoder that is fed a given continuation one token at a
    time."""
    decoder.reset()
    rows = [decoder.forward(torch.tensor(prompt))[-1]]
    for token in continuation[:-1]:
        rows.append(decoder.forward(torch.tensor([token]))[-1])
    return torch.stack(rows)


@torch.inference_mode()
def passage_logits(decoder: FullDecoder, ids: Sequence[int]) -> torch.Tensor:
    """Logits ``[len(ids), vocab]`` of one prefill."""
    decoder.reset()
    return decoder.forward(torch.tensor(ids), all_logits=True)
