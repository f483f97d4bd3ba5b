"""What a user gets: the built wheel, away from the source tree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests import processes

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.xdist_group("wheel"), pytest.mark.in_tree_kernels]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
    ]
    subprocess.run([*command, str(ROOT)], check=True, capture_output=True, text=True, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment in which the wheel's files shadow the checkout."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    cache = tmp_path_factory.mktemp("cache")
    cache.chmod(0o700)
    return {**os.environ, "PYTHONPATH": str(folder), "TILEOPS_CACHE_DIR": str(cache)}


def run(installed: dict[str, str], *arguments: str, code: str | None = None) -> str:
    program = ("-c", code) if code else ("-m", "tileops.cli.main")
    result = processes.run(*program, *arguments, env=installed, cwd="/")
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_only_the_package_is_installed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"tileops"}
    assert "tileops/py.typed" in names
    assert any(name.startswith("tileops/manifest/spec/") and name.endswith(".yaml") for name in names)
    assert "tileops/workloads/smollm2/passage.txt" in names


def test_the_wheel_shadows_the_checkout(installed: dict[str, str]) -> None:
    assert installed["PYTHONPATH"] in run(installed, code="import tileops; print(tileops.__file__)")


def test_ops_are_listed(installed: dict[str, str]) -> None:
    assert {row["op"] for row in json.loads(run(installed, "ops", "--json"))} >= {"RMSNormFwdOp", "GemmFwdOp"}


def test_demo_runs(installed: dict[str, str], tiny_model: Path) -> None:
    found = json.loads(run(installed, "demo", "--model", str(tiny_model), "--prompt", "the", "--no-compare", "--json"))
    assert found["ttft_s"] > 0
    assert found["reference_text"] is found["torch_decode_tok_s"] is None  # not measured: neither empty nor zero


@pytest.fixture(scope="module")
def small(installed: dict[str, str]) -> str:
    """The smallest case of an operator."""
    cases = json.loads(run(installed, "show", "RMSNormFwdOp", "--json"))["cases"]
    return min(cases, key=lambda case: case["bytes"])["id"]


def test_bench_runs(installed: dict[str, str], small: str, tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    options = ("--case", small, "--budget", "0.2", "--save", str(out), "--json")
    printed = json.loads(run(installed, "bench", "RMSNormFwdOp", *options))
    assert json.loads(out.read_text()) == printed
    (row,) = printed
    assert row["op"] == "RMSNormFwdOp"
    assert row["ours_us"] > 0


def test_tune_runs(installed: dict[str, str], small: str) -> None:
    options = ("--budget", "10", "--trials", "2", "--jobs", "1")
    assert "best" in run(installed, "tune", "RMSNormFwdOp", "--case", small, *options)
