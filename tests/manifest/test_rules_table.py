"""The tables of rules and of known failures: every test and every fault that they name exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.manifest import test_mutations

ROOT = Path(__file__).resolve().parents[2]
TEXT, FAILURES = ((ROOT / "docs" / page).read_text() for page in ("manifest-rules.md", "known-failures.md"))
ROWS = [
    (rule, re.findall(r"`((?:[^`])+)`", held))
    for rule, held in re.findall(r"^\| (.+?) \| (`.+`) \|$", (TEXT + FAILURES).replace(r"\|", "\0"), re.MULTILINE)
]
IDS = sorted({name.replace("\0", "|") for _, names in ROWS for name in names})
FAULTS = {f"{entry} {change}" for entry, change, _ in test_mutations.ROWS}


@cache
def functions(path: Path) -> frozenset[str]:
    """Test functions of a file, by its text alone."""
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_there_is_a_row_for_every_rule() -> None:
    assert len(ROWS) >= 150
    assert len({rule for rule, _ in ROWS}) == len(ROWS)
    assert len(ROWS) == len(re.findall(r"^\| (?!rule |kind of failure |--)", TEXT + FAILURES, re.MULTILINE))


@pytest.mark.parametrize("name", IDS)
def test_what_a_rule_names_exists(name: str) -> None:
    if name.startswith(("BASE ", "GROUPED ")):
        assert name in FAULTS
        return
    file, _, function = name.partition("::")
    path = ROOT / "tests" / file if "/" in file else Path(__file__).with_name(file)
    assert function.startswith("test_")
    assert function in functions(path)
