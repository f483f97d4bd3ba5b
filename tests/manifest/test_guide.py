"""The author's guide: its entries are valid and make calls, its code runs, and what it says of faults is said."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.manifest.helpers import entry, mutated
from tileops.manifest import load_all, validate
from tileops.manifest.explain import explain
from tileops.manifest.validate import check_entry
from tileops.manifest.workload import cases

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "manifest.md").read_text()
BLOCKS = re.findall(r"```([^\n]+)\n(.*?)```", GUIDE, re.DOTALL)
ENTRIES = [item for kind, text in BLOCKS if kind == "yaml" for item in yaml.safe_load(text).items()]
SECTIONS = re.split(r"^## ", GUIDE, flags=re.MULTILINE)[1:]


def blocks(kind: str) -> list[str]:
    return [text for found, text in BLOCKS if found == kind]


@pytest.mark.parametrize("section", SECTIONS, ids=[text.splitlines()[0] for text in SECTIONS])
def test_every_section_has_a_worked_example(section: str) -> None:
    assert "```yaml" in section or "```python" in section


@pytest.mark.parametrize(("name", "fields"), ENTRIES, ids=[name for name, _ in ENTRIES])
def test_entries_are_valid(name: str, fields: dict[str, Any]) -> None:
    toy = entry(fields, name, f"{fields['family']}.yaml")
    assert [str(item) for item in check_entry(toy, frozenset(load_all()))] == []
    assert all(call.roofline()[1] > 0 for call in cases(toy))
    assert list(explain(toy))


@pytest.mark.parametrize("text", blocks("python"))
def test_python_runs(text: str) -> None:
    exec(compile(text, "docs/manifest.md", "exec"), {})


def test_the_faulty_entry_gets_the_diagnostics_that_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (faulty,), (shown,) = blocks("yaml faulty"), blocks("text")
    (tmp_path / "examples.yaml").write_text(faulty)
    assert validate.main(["--static", "--spec-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().out == shown


ROWS = re.findall(r"^\| `(.+?)` \| (.+?) \|$", GUIDE, re.MULTILINE)


@pytest.mark.parametrize(("form", "rewrite"), ROWS)
def test_rejected_forms_are_rejected_with_their_rewrite(form: str, rewrite: str) -> None:
    assert len(ROWS) == 7
    names = {"x": "a", "output": "norm", "half": "other", "k": "groups", "dim": "(0, 1)", "n": "2"}

    def change(fields: dict[str, Any]) -> None:
        text = re.sub(r"\b(x|output|half|k|dim|n)\b(?!\()", lambda match: names[match[1]], form)
        fields["signature"]["shape_rules"].append(text)

    (found,) = mutated(change)
    assert found.startswith("signature.shape_rules[2]: ")
    # What to write instead is named: the field, the primitive or the presence test of the guide's second column.
    key = re.search(r"shape:|\[\*S\]|let: \{|not present\(\w+\)|per_axis\(|unique_axes\(", rewrite)
    assert key is not None
    assert key[0] in found
