"""The decoder on our operators against the decoder in plain PyTorch."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from tileops import jit
from tileops.kernels.gemm import paths
from tileops.workloads import demo
from tileops.workloads.smollm2 import measure
from tileops.workloads.smollm2.gguf_file import GGUFFile
from tileops.workloads.smollm2.model import EXACT_LAYERS, TileOpsDecoder
from tileops.workloads.smollm2.reference import Formulation, TorchDecoder, onednn_packed
from tileops.workloads.smollm2.weights import load_weights

pytestmark = pytest.mark.in_tree_kernels
JSON_FIELDS = (
    "text",
    "prefill_tok_s",
    "decode_tok_s",
    "torch_prefill_tok_s",
    "torch_decode_tok_s",
    "max_logit_diff",
    "min_cosine",
    "mean_kl",
    "compiled",
    "loaded",
    "compile_s",
    "ttft_s",
)
PROMPT = [1, 40, 41, 50, 60, 61, 62, 7]


def test_float32_logits_agree(model_path: Path) -> None:
    weights = load_weights(GGUFFile(model_path), torch.float32)
    ours, reference = TileOpsDecoder(weights, 64), TorchDecoder(weights, 64)
    answer = list(measure.greedy(reference, PROMPT, 12))
    assert list(measure.greedy(ours, PROMPT, 12)) == answer
    result = measure.agreement(
        measure.forced_logits(ours, PROMPT, answer), measure.forced_logits(reference, PROMPT, answer)
    )
    assert result.max_logit_diff < 1e-4
    assert result.mean_kl < 1e-8


@pytest.mark.parametrize(
    ("dtype", "exact_layers"),
    [(torch.bfloat16, (0, 0)), (torch.bfloat16, (1, 0)), (torch.bfloat16, (0, 1)), (torch.float16, EXACT_LAYERS)],
)
def test_narrow_dtypes_stay_close_to_float32(
    model_path: Path, dtype: torch.dtype, exact_layers: tuple[int, int]
) -> None:
    file = GGUFFile(model_path)
    ours = TileOpsDecoder(load_weights(file, dtype), 64, exact_layers=exact_layers)
    exact = TorchDecoder(load_weights(file, torch.float32), 64)
    result = measure.agreement(measure.passage_logits(ours, PROMPT * 4), measure.passage_logits(exact, PROMPT * 4))
    assert result.min_cosine > 0.999
    assert result.mean_kl < 2e-3


def test_exact_layers_compute_the_same_in_float32(model_path: Path) -> None:
    """All that is left of bfloat16 is the head, and the rounding of the weights."""
    weights = load_weights(GGUFFile(model_path), torch.bfloat16)
    ours = TileOpsDecoder(weights, 64, exact_layers=(1, 1))
    assert {packed.layout for packed in ours.packs[:-1]} == {paths.NARROWED}
    values = replace(
        weights,
        layers=tuple(layer.to(torch.float32) for layer in weights.layers),
        embedding=weights.embedding.float(),
    )
    exact = TorchDecoder(values, 64)
    result = measure.agreement(measure.passage_logits(ours, PROMPT), measure.passage_logits(exact, PROMPT))
    assert result.min_cosine > 0.99999
    result = measure.agreement(
        measure.forced_logits(ours, PROMPT, [9, 30, 31]), measure.forced_logits(exact, PROMPT, [9, 30, 31])
    )
    assert result.min_cosine > 0.99999


def test_unpacked_weights_give_the_same_logits(model_path: Path) -> None:
    weights = load_weights(GGUFFile(model_path), torch.float32)
    packed, plain = TileOpsDecoder(weights, 64), TileOpsDecoder(weights, 64, packed=False)
    torch.testing.assert_close(
        measure.passage_logits(plain, PROMPT), measure.passage_logits(packed, PROMPT), atol=1e-5, rtol=1e-5
    )


def test_a_growing_context_compiles_nothing_after_the_second_step(model_path: Path) -> None:
    weights = load_weights(GGUFFile(model_path), torch.bfloat16)
    decoder = TileOpsDecoder(weights, 128)
    tokens = measure.greedy(decoder, PROMPT, 64)
    for _ in range(3):
        next(tokens)
    before = jit.stats().compiled
    for _ in tokens:
        pass
    assert jit.stats().compiled == before


@pytest.mark.parametrize("attention", ["sdpa", "folded", "manual"])
@pytest.mark.parametrize("norm", ["fused", "manual"])
def test_reference_formulations_agree(model_path: Path, attention: str, norm: str) -> None:
    weights = load_weights(GGUFFile(model_path), torch.float32)
    plain, other = TorchDecoder(weights, 64), TorchDecoder(weights, 64)
    other.prefill_form = other.decode_form = Formulation(attention, norm)
    torch.testing.assert_close(
        measure.forced_logits(other, PROMPT, [9, 30, 31]), measure.forced_logits(plain, PROMPT, [9, 30, 31])
    )


def test_reference_continues_a_context_in_chunks(model_path: Path) -> None:
    weights = load_weights(GGUFFile(model_path), torch.float32)
    for decoder in (TorchDecoder(weights, 64), TileOpsDecoder(weights, 64)):
        with torch.inference_mode():
            whole = measure.passage_logits(decoder, PROMPT)[-1]
            decoder.reset()
            decoder.forward(torch.tensor(PROMPT[:3]))
            chunked = decoder.forward(torch.tensor(PROMPT[3:]))[-1]
        torch.testing.assert_close(chunked, whole, atol=1e-5, rtol=1e-4)


def test_packed_baseline_agrees(model_path: Path) -> None:
    weights = load_weights(GGUFFile(model_path), torch.float32)
    torch.testing.assert_close(
        measure.passage_logits(onednn_packed(weights, 64), PROMPT),
        measure.passage_logits(TorchDecoder(weights, 64), PROMPT),
        atol=1e-4,
        rtol=1e-4,
    )


def test_agreement_notices_a_wrong_logit() -> None:
    reference = torch.randn(5, 300)
    assert measure.agreement(reference, reference) == measure.Agreement(0.0, pytest.approx(1.0), pytest.approx(0.0))
    wrong = reference.clone()
    wrong[3, 17] += 50
    result = measure.agreement(wrong, reference)
    assert result.max_logit_diff == pytest.approx(50, rel=1e-5)
    assert result.min_cosine < 0.9
    assert result.mean_kl > 1


def test_demo_reports_everything(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "ROUNDS", 2)
    monkeypatch.setattr(demo, "DECODE", 4)
    console = Console(record=True, width=40, force_terminal=False)
    result = demo.run(
        "the [/heat]",
        dtype="float32",
        max_tokens=6,
        model=str(model_path),
        against=("packed",),
        console=console,
    )
    written = json.loads(json.dumps(result.to_dict()))
    for name in JSON_FIELDS:
        assert written[name] == getattr(result, name)
    assert result.first_difference is None
    assert 0 < result.max_logit_diff < 1e-3
    assert result.against["packed"]["decode_tok_s"] > 0
    text = console.export_text()
    assert text.startswith("the [/heat]\n"), "as it was given"
    assert "TileOPs" in text
    assert re.search("largest logit difference.*cosine similarity.*mean KL", text), "a file has no width"


@pytest.mark.parametrize("options", [{"dtype": "int8"}, {"against": ("magic",)}])
def test_demo_refuses_unknown_choices_before_loading(options: dict) -> None:
    with pytest.raises(ValueError, match="expected one of"):
        demo.run("x", model="/nonexistent", **options)
