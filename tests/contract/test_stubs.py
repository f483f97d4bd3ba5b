"""What editors and type checkers see: stubs are current, and typed calls of every operator pass."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tileops import manifest
from tileops.ops.elementwise.family import PointwiseOp

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "typed_calls.py"

WRONG_CALLS = """
import torch
from tileops.elementwise import AddFwdOp
from tileops.gemm import GemmFwdOp
from tileops.norm import RMSNormFwdOp

x = torch.ones(2, 2)
GemmFwdOp()(x)  # call-arg
GemmFwdOp(trans_c=True)  # call-arg
GemmFwdOp()(x, 3)  # arg-type
RMSNormFwdOp("wide")  # arg-type
RMSNormFwdOp((2,))(x, scale=x)  # call-arg
AddFwdOp(2)  # call-arg
result: int = AddFwdOp()(x, x)  # assignment
"""


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_stubs", ROOT / "scripts" / "gen_stubs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_stubs_are_current(generator: ModuleType) -> None:
    stale = [
        family
        for family in generator.families()
        if not (path := ROOT / "tileops" / f"{family}.pyi").exists() or path.read_text() != generator.render(family)
    ]
    assert not stale, f"run `python scripts/gen_stubs.py`: the stubs of {', '.join(stale)} are not current"


def test_the_example_calls_every_operator_that_is_written_out() -> None:
    called = {node.func.id for node in ast.walk(ast.parse(EXAMPLE.read_text())) if _is_named_call(node)}
    implemented = {
        name
        for name, entry in manifest.load_all(strict=False).items()
        if entry.implemented
        and not issubclass(getattr(importlib.import_module(f"tileops.{entry.family}"), name), PointwiseOp)
    }
    assert implemented - called == set(), f"add a call of each to {EXAMPLE.relative_to(ROOT)}"


def _is_named_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def test_the_type_checker_takes_right_calls_and_refuses_wrong_ones(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong_calls.py"
    wrong.write_text(WRONG_CALLS)
    # With the options, and hence the cache, of `make lint`; errors of other files are its business.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", str(EXAMPLE), str(wrong)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    reported = [line.split(": ", 1) for line in done.stdout.splitlines() if ": error: " in line]
    assert not [text for place, text in reported if "typed_calls" in place], done.stdout
    expected = {
        number: line.rpartition("# ")[2] for number, line in enumerate(WRONG_CALLS.splitlines(), 1) if "  # " in line
    }
    found = {
        int(place.split(":")[1]): text.rpartition("[")[2].rstrip("]") for place, text in reported if wrong.name in place
    }
    assert found == expected, done.stdout + done.stderr
