"""The author's guide: every example of it is valid, and runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.manifest.helpers import entry, mutated
from tileops.manifest.validate import check_entry
from tileops.manifest.workload import cases

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "manifest.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", GUIDE, re.DOTALL)
ENTRIES = [item for kind, text in BLOCKS if kind == "yaml" for item in yaml.safe_load(text).items()]


@pytest.mark.parametrize(("name", "fields"), ENTRIES, ids=[name for name, _ in ENTRIES])
def test_entries_are_valid(name: str, fields: dict) -> None:
    toy = entry(fields, name, f"{fields['family']}.yaml")
    assert [str(item) for item in check_entry(toy)] == []
    assert all(call.roofline()[1] > 0 for call in cases(toy))


@pytest.mark.parametrize("text", [text for kind, text in BLOCKS if kind == "python"])
def test_python_runs(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(text, "docs/manifest.md", "exec"), {})


ROWS = re.findall(r"^\| `(.+?)` \| (.+?) \|$", GUIDE, re.MULTILINE)


@pytest.mark.parametrize("form", [form for form, _ in ROWS])
def test_rejected_forms_are_rejected(form: str) -> None:
    assert len(ROWS) == 7

    def change(fields: dict) -> None:
        names = {"x": "a", "output": "norm", "half": "other", "k": "groups"}
        text = re.sub(r"\b(x|output|half|k)\b(?=[ ,.])", lambda match: names[match[1]], form)
        fields["signature"]["shape_rules"].append(text)

    assert any("signature.shape_rules[2]" in item for item in mutated(change))
