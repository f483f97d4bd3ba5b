"""`scripts/device_check.py` without a GPU: what it says, and what its report holds when results differ."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from tests.ptx.ptxsim.conformance import Case, cases

SCRIPT = Path(__file__).parents[2] / "scripts/device_check.py"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("device_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path / "out")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "No CUDA GPU is visible" in result.stdout
    assert "numba-cuda" in result.stdout
    assert not (tmp_path / "out").exists()


def test_the_list_of_wheels_names_what_is_missing(script: ModuleType, capsys, monkeypatch) -> None:
    monkeypatch.setitem(script.WHEELS, "no-such-distribution", ("no_such_module", ">=1", "testing"))
    assert script.print_wheels() == ["no-such-distribution"]
    assert "MISSING" in capsys.readouterr().out


def test_a_wrong_instruction_is_reported_with_an_example(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def pretended(case: Case) -> np.ndarray:
        result = script.in_interpreter(case).copy()
        if case.name == "add.f32":
            result[3] += 1
        if case.name == "neg.f32":
            raise RuntimeError("illegal instruction")
        return result

    monkeypatch.setattr(script, "on_gpu", pretended)
    result = script.check_instructions(tmp_path)
    assert not result["passed"]
    assert result["confirmed"] == result["of"] - 2
    status = {row["instruction"]: row["status"] for row in result["rows"]}
    assert status["add.f32"] == "MISMATCH"
    assert status["neg.f32"] == "ERROR RuntimeError: illegal instruction"
    assert status["fma.rn.f32"] == "confirmed"
    assert "1 of 2048; element 3: inputs" in capsys.readouterr().out
    script.write_report(
        tmp_path, {"machine": {"gpu": "pretended"}, "stages": {"instructions": result | {"seconds": 1.0}}}
    )
    assert json.loads((tmp_path / "report.json").read_text())["stages"]["instructions"]["confirmed"] > 300
    assert "| `fma.rn.f32` | confirmed |" in (tmp_path / "report.md").read_text()


def test_cases_are_assembled_for_the_gpu_at_hand(script: ModuleType) -> None:
    case = next(item for item in cases() if item.name == "shfl.sync.bfly.b32")
    assert script.assembled(case, "sm_90a").code[:4] == b"\x7fELF"
