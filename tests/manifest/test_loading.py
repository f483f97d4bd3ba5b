"""Files and merging: the layout's rules, lenient and strict loading, what is opened."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.manifest.helpers import BASE, base, entry
from tileops import manifest
from tileops.errors import ManifestError
from tileops.manifest import loading

ENTRY = "{family: %s, status: spec-only, signature: {}, workloads: [{label: a}], roofline: {flops: '0'}}"


def write(directory: Path, **files: str) -> Path:
    for name, text in files.items():
        (directory / f"{name}.yaml").write_text(text)
    return directory


def merged(directory: Path) -> dict[str, loading.RawEntry]:
    return loading.merge(loading.read_file(path) for path in loading.spec_files(directory))


def test_shards_of_a_family_are_merged(tmp_path: Path) -> None:
    write(tmp_path, toy=f"AFwdOp: {ENTRY % 'toy'}", toy_more=f"BFwdOp: {ENTRY % 'toy'}", types="adts: {}")
    assert list(merged(tmp_path)) == ["AFwdOp", "BFwdOp"]
    assert [path.name for path in loading.family_files("toy", tmp_path)] == ["toy.yaml", "toy_more.yaml"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a spec file is a non-empty mapping"),
        ("- a", "a spec file is a non-empty mapping"),
        ("AFwdOp: 3", "AFwdOp: an entry is a mapping of fields"),
        ("3: {}", "the key 3 is no operator name"),
        ("AFwdOp: {status: spec-only}", "AFwdOp: family: the entry names no family"),
        (f"AFwdOp: {ENTRY % 'other'}", "'other' does not fit the file name; move the entry to other.yaml"),
        (f"AFwdOp: {ENTRY % 'toy'}\nAFwdOp: {ENTRY % 'toy'}", "line 2: the key 'AFwdOp' occurs twice"),
        ("AFwdOp: {family: toy, family: toy}", "the key 'family' occurs twice"),
        ("AFwdOp: {", "not well-formed YAML"),
        ("AFwdOp: !!python/object:os.system {}", "not well-formed YAML"),
    ],
)
def test_faulty_files(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path, toy=text)
    with pytest.raises(ManifestError) as caught:
        merged(tmp_path)
    assert str(caught.value).startswith("toy.yaml: ")
    assert message in str(caught.value)


def test_mixed_families_and_duplicates(tmp_path: Path) -> None:
    write(tmp_path, toy_b_c=f"AFwdOp: {ENTRY % 'toy'}\nBFwdOp: {ENTRY % 'toy_b'}")
    with pytest.raises(ManifestError, match="the file mixes the families toy, toy_b"):
        merged(tmp_path)
    (tmp_path / "toy_b_c.yaml").unlink()
    write(tmp_path, toy=f"AFwdOp: {ENTRY % 'toy'}", toy_b=f"AFwdOp: {ENTRY % 'toy'}")
    with pytest.raises(ManifestError, match=r"toy_b.yaml: AFwdOp: the operator is also in toy.yaml"):
        merged(tmp_path)


def test_undecodable_and_deep_files(tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_bytes(b"\xff\xfe\xfa\x00")
    with pytest.raises(ManifestError, match=r"toy\.yaml"):
        merged(tmp_path)


def test_one_family_opens_its_own_files_only(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    original = loading.read_yaml
    monkeypatch.setattr(loading, "read_yaml", lambda path: opened.append(path.name) or original(path))
    loading._cached_file.cache_clear()
    try:
        loading.read_family("norm")
        assert opened == ["norm.yaml"]
        opened.clear()
        found = loading.find("GemmFwdOp")
        assert not opened  # its own lines stand alone
        aliased = loading.find("ReluFwdOp")
        assert all(name.startswith("elementwise") for name in opened)
        whole = loading.read_all()
        assert [found, aliased] == [whole["GemmFwdOp"], whole["ReluFwdOp"]]
    finally:
        loading._cached_file.cache_clear()


def test_lookup() -> None:
    assert manifest.load_entry("GemmFwdOp").family == "gemm"
    rope = {"RoPEFwdOp", "RoPELlama31FwdOp", "YaRNFwdOp", "LongRoPEFwdOp", "RoPENeoxPositionIdsFwdOp"}
    assert set(manifest.load_family("rope")) == rope
    assert manifest.load_entry("GemmFwdOp") is manifest.load_all()["GemmFwdOp"]
    assert manifest.try_load_entry("NoSuchFwdOp") is None
    with pytest.raises(ManifestError, match="the manifest has no entry 'NoSuchFwdOp'"):
        manifest.load_entry("NoSuchFwdOp")


def test_an_unreadable_field_is_a_problem_of_its_entry() -> None:
    fields = base()
    fields["signature"]["inputs"]["b"]["shape"] = "[K, "
    fields["signature"]["params"]["groups"] = {"type": "number", "default": 1}
    broken = entry(fields)
    assert [problem.field for problem in broken.problems] == [
        "signature.params.groups.type",
        "signature.inputs.b.shape",
    ]
    assert "b" not in broken.signature.inputs
    assert list(broken.signature.inputs) == ["a", "ids", "bias"]


def test_declarations_print_as_people_write_them() -> None:
    signature = entry(BASE).signature
    assert str(signature.params["limit"]) == "int | None = None"
    assert str(signature.params["inplace"]) == "bool = False, keyword-only"
    assert str(signature.inputs["a"]) == "T Mat[transposed, M, K], written where inplace"
    assert str(signature.inputs["bias"]) == "float32 [N], optional"
    assert str(signature.outputs["output"]) == "T Mat[transposed, M, K], is a"


# rule: 001 "An error names the file": faults of YAML itself
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("AFwdOp: &a {family: toy, signature: *a}", "line 1: a value contains itself; write it out"),
        ("AFwdOp: {family: toy, [a]: b}", "line 1: a key is a name, not a list or a mapping"),
        ("AFwdOp:\n  family: toy\n  family: toy", "line 3: the key 'family' occurs twice in one mapping"),
        ("AFwdOp: {family: !thing {a: b}}", "not well-formed YAML"),
        ("AFwdOp: {family: *nobody}", "not well-formed YAML"),
    ],
)
def test_yaml_that_is_no_plain_tree(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "toy.yaml").write_text(text)
    with pytest.raises(ManifestError) as caught:
        loading.read_yaml(tmp_path / "toy.yaml")
    assert message in str(caught.value)


def test_a_tree_is_what_yaml_says(tmp_path: Path) -> None:
    text = "a: &x [1, 2.5, true, null, 'text', 0x10]\nb: *x\nc: {<<: {p: 1, q: 2}, q: 3}\n'1': ''\n"
    (tmp_path / "toy.yaml").write_text(text)
    assert loading.read_yaml(tmp_path / "toy.yaml") == yaml.safe_load(text)
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert loading.read_yaml(tmp_path / "empty.yaml") is None
