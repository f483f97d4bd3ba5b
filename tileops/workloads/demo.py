"""`tileops demo`: a language model answers a prompt on TileOPs operators, beside the same model in plain
PyTorch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from tileops import jit
from tileops.workloads.smollm2 import measure
from tileops.workloads.smollm2.gguf_file import GGUFFile
from tileops.workloads.smollm2.model import TileOpsDecoder
from tileops.workloads.smollm2.model_file import find_model
from tileops.workloads.smollm2.reference import TorchDecoder, onednn_packed
from tileops.workloads.smollm2.tokenizer import ChatTokenizer
from tileops.workloads.smollm2.weights import ModelWeights, load_weights

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float16": torch.float16}
BASELINES = ("packed", "freezing")
PREFILL, DECODE, ROUNDS = 512, 64, 5
DEFAULT_PROMPT = "What is the capital of France, and what is it known for?"


@dataclass
class DemoResult:
    """What the demo measured. Speeds are tokens per second, times seconds. What needs PyTorch's model is None where
    that was left out.

    Attributes:
        text: the answer, by greedy decoding.
        start_s: loading, packing and the first token, imports excluded.
        ttft_s: from the first forward to the first token, compiling included.
        compiled: kernels compiled in this process until the answer was complete.
        loaded: kernels loaded from the cache.
        compile_s: seconds spent compiling.
        max_logit_diff: largest difference from the float32 PyTorch reference, fed the same tokens.
        min_cosine: smallest cosine similarity of two logit vectors.
        mean_kl: mean KL(reference || ours) over a passage of 512 tokens, in nats.
        torch_mean_kl: the same of PyTorch's own model in this dtype.
        first_difference: index of the first token that differs from the reference's answer, or None.
        first_difference_margin: the reference's top-2 logit margin there.
        read_gb_s: memory read bandwidth measured between the rounds.
        against: further PyTorch baselines by name, with their speeds.
    """

    dtype: str
    prompt: str
    text: str = ""
    reference_text: str | None = None
    start_s: float = 0.0
    ttft_s: float = 0.0
    compiled: int = 0
    loaded: int = 0
    compile_s: float = 0.0
    prefill_tok_s: float | None = None
    decode_tok_s: float | None = None
    torch_prefill_tok_s: float | None = None
    torch_decode_tok_s: float | None = None
    max_logit_diff: float | None = None
    min_cosine: float | None = None
    mean_kl: float | None = None
    torch_mean_kl: float | None = None
    first_difference: int | None = None
    first_difference_margin: float | None = None
    read_gb_s: float | None = None
    against: dict[str, dict[str, float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def run(
    prompt: str = DEFAULT_PROMPT,
    *,
    dtype: str = "bfloat16",
    max_tokens: int = DECODE,
    model: str | None = None,
    against: Sequence[str] = (),
    compare: bool = True,
    console: Console | None = None,
) -> DemoResult:
    """Runs the demo.

    Args:
        prompt: the user's message; the chat template is applied.
        dtype: ``bfloat16``, ``float32`` or ``float16``.
        max_tokens: most tokens of the answer.
        model: GGUF file; by default found or fetched.
        against: further baselines, of ``packed`` (oneDNN-packed weights) and ``freezing`` (torch.compile).
        compare: also run and measure the PyTorch reference.
        console: where to print; standard output by default.

    Raises:
        ValueError: an unknown dtype or baseline.
        ModelFileError: the model is not there and could not be fetched.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r}: expected one of {', '.join(DTYPES)}")
    for name in against:
        if name not in BASELINES:
            raise ValueError(f"against {name!r}: expected one of {', '.join(BASELINES)}")
    console = console or Console()
    result = DemoResult(dtype=dtype, prompt=prompt)
    path = find_model(model)

    started = time.perf_counter()
    file = GGUFFile(path)
    tokenizer = ChatTokenizer(file.metadata)
    weights = load_weights(file, DTYPES[dtype])
    ids = tokenizer.encode_chat(prompt)
    capacity = max(PREFILL + DECODE, len(ids) + max_tokens) + 8
    decoder = TileOpsDecoder(weights, capacity)
    _answer(result, decoder, tokenizer, ids, max_tokens, started, console)
    if compare:
        _compare(result, decoder, weights, file, tokenizer, ids, max_tokens, against, console)
    return result


def _answer(
    result: DemoResult,
    decoder: TileOpsDecoder,
    tokenizer: ChatTokenizer,
    ids: list[int],
    max_tokens: int,
    started: float,
    console: Console,
) -> None:
    _say(console, result.prompt, style="bold")
    loaded_at = time.perf_counter()
    tokens: list[int] = []
    for token in measure.greedy(decoder, ids, max_tokens, tokenizer.eos):
        if not tokens:
            result.ttft_s = time.perf_counter() - loaded_at
            result.start_s = time.perf_counter() - started
        tokens.append(token)
        text = tokenizer.decode(tokens)
        # A multi-byte character arrives in pieces; print it when it is whole.
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            console.print(text[len(result.text) :], end="", markup=False, highlight=False, soft_wrap=True)
            result.text = text
    console.print()
    stats = jit.stats()
    result.compiled, result.loaded, result.compile_s = stats.compiled, stats.loaded, stats.compile_seconds
    _say(
        console,
        f"\n{len(tokens)} tokens; first token after {result.ttft_s:.2f} s "
        f"({result.start_s:.2f} s with loading and packing the weights)",
    )
    if result.compiled:
        _say(
            console,
            f"{result.compiled} kernels compiled in {result.compile_s:.1f} s, {result.loaded} loaded from "
            "the cache; the next run compiles nothing",
        )
    else:
        _say(console, f"nothing was compiled: {result.loaded} kernels came from the cache")


def _compare(
    result: DemoResult,
    decoder: TileOpsDecoder,
    weights: ModelWeights,
    file: GGUFFile,
    tokenizer: ChatTokenizer,
    ids: list[int],
    max_tokens: int,
    against: Sequence[str],
    console: Console,
) -> None:
    passage = tokenizer.encode(files("tileops.workloads.smollm2").joinpath("passage.txt").read_text("utf-8"))[:PREFILL]
    reference = TorchDecoder(weights, decoder.max_len)
    with _status(console, "choosing PyTorch's fastest formulations"):
        reference.choose_formulations(passage)
    exact = (
        reference
        if weights.dtype == torch.float32
        else TorchDecoder(load_weights(file, torch.float32), decoder.max_len)
    )
    with _status(console, "comparing logits with the float32 reference"):
        _measure_accuracy(result, decoder, reference, exact, tokenizer, ids, passage, max_tokens)
    contenders: dict[str, measure.Decoder] = {"tileops": decoder, "torch": reference}
    with _status(console, "preparing baselines"):
        decoder.settle()
        for name in against:
            contenders[name] = _baseline(name, weights, decoder.max_len)
    bandwidths: list[float] = []
    with _status(console, "measuring") as update:
        speeds = measure.race(
            contenders,
            passage,
            DECODE,
            ROUNDS,
            between=lambda: bandwidths.append(_read_bandwidth()),
            progress=lambda done: update(f"measuring: round {done} of {ROUNDS}"),
        )
    ours, theirs = speeds.pop("tileops"), speeds.pop("torch")
    result.prefill_tok_s, result.decode_tok_s = ours.prefill, ours.decode
    result.torch_prefill_tok_s, result.torch_decode_tok_s = theirs.prefill, theirs.decode
    result.read_gb_s = median(bandwidths)
    result.against = {name: {"prefill_tok_s": s.prefill, "decode_tok_s": s.decode} for name, s in speeds.items()}
    _print_report(result, {"PyTorch (eager)": theirs, **speeds}, ours, reference, console)


def _measure_accuracy(
    result: DemoResult,
    decoder: TileOpsDecoder,
    reference: TorchDecoder,
    exact: TorchDecoder,
    tokenizer: ChatTokenizer,
    ids: list[int],
    passage: list[int],
    max_tokens: int,
) -> None:
    answer = list(measure.greedy(exact, ids, max_tokens, tokenizer.eos))
    result.reference_text = tokenizer.decode(answer)
    ours = list(measure.greedy(decoder, ids, max_tokens, tokenizer.eos))
    expected = measure.forced_logits(exact, ids, answer)
    result.first_difference = next(
        (i for i, pair in enumerate(zip(ours, answer, strict=False)) if pair[0] != pair[1]), None
    )
    if result.first_difference is not None:
        top = expected[result.first_difference].topk(2).values
        result.first_difference_margin = (top[0] - top[1]).item()
    stepwise = measure.agreement(measure.forced_logits(decoder, ids, answer), expected)
    expected = measure.passage_logits(exact, passage)
    whole = measure.agreement(measure.passage_logits(decoder, passage), expected)
    result.max_logit_diff = max(stepwise.max_logit_diff, whole.max_logit_diff)
    result.min_cosine = min(stepwise.min_cosine, whole.min_cosine)
    result.mean_kl = whole.mean_kl
    result.torch_mean_kl = (
        0.0 if reference is exact else measure.agreement(measure.passage_logits(reference, passage), expected).mean_kl
    )


def _baseline(name: str, weights: ModelWeights, max_len: int) -> measure.Decoder:
    if name == "packed":
        return onednn_packed(weights, max_len)
    from tileops.workloads.smollm2.frozen import FrozenDecoder

    return FrozenDecoder(weights, max_len)


def _read_bandwidth(megabytes: int = 256) -> float:
    """GB/s of summing float32 from memory."""
    data = torch.ones(megabytes << 18)
    times = []
    for _ in range(3):
        started = time.perf_counter()
        data.sum()
        times.append(time.perf_counter() - started)
    return data.nbytes / min(times) / 1e9


def _print_report(
    result: DemoResult,
    others: dict[str, measure.Speed],
    ours: measure.Speed,
    reference: TorchDecoder,
    console: Console,
) -> None:
    table = Table(
        "",
        "prefill tokens/s",
        "decode tokens/s",
        "TileOPs / PyTorch",
        title=f"{PREFILL} tokens, then {DECODE}",
    )
    table.add_row("TileOPs", f"{ours.prefill:.0f}", f"{ours.decode:.1f}", "")
    for name, speed in others.items():
        ratio = f"{ours.prefill / speed.prefill:.2f}x, {ours.decode / speed.decode:.2f}x"
        table.add_row(name, f"{speed.prefill:.0f}", f"{speed.decode:.1f}", ratio)
    console.print(table)
    _say(
        console,
        f"{result.dtype}, {torch.get_num_threads()} threads, memory reads {result.read_gb_s:.0f} GB/s; "
        f"PyTorch uses {reference.prefill_form.attention}/{reference.prefill_form.norm} for prefill and "
        f"{reference.decode_form.attention}/{reference.decode_form.norm} for decoding (attention/norm)",
    )
    _say(
        console,
        f"largest logit difference from the float32 reference {result.max_logit_diff:.2g}, "
        f"cosine similarity >= {result.min_cosine:.6f}, mean KL {result.mean_kl:.2g}"
        + (f" (PyTorch's own {result.dtype}: {result.torch_mean_kl:.2g})" if result.torch_mean_kl else ""),
    )
    if result.first_difference is None:
        _say(console, "the answer equals the float32 reference's token for token")
    else:
        _say(
            console,
            f"the answer differs from the float32 reference's at token {result.first_difference}, where the "
            f"reference's two best logits are {result.first_difference_margin:.3g} apart",
        )


def _say(console: Console, text: str, style: str | None = None) -> None:
    """A line as it is: a prompt may hold brackets. A terminal's is broken between words, a file's not at all."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=not console.is_terminal)


@contextmanager
def _status(console: Console, text: str) -> Iterator:
    """A spinner with a line of text on a terminal; one plain line elsewhere."""
    if not console.is_terminal:
        console.print(text, style="dim")
        yield lambda text: None
        return
    with console.status(text) as status:
        yield status.update
