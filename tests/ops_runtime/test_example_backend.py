"""The example backend, installed where only it is seen, passes its own tests and those of every target."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import processes

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.xdist_group("example_backend"), pytest.mark.in_tree_kernels]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the package is installed, entry point and all."""
    source = tmp_path_factory.mktemp("source") / "reference_backend"
    shutil.copytree(ROOT / "examples" / "reference_backend", source)
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(site), str(source)], check=True, capture_output=True, text=True)
    path = os.pathsep.join([str(site), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "EXAMPLE": str(source)}


def run(environment: dict[str, str], folder: Path, *arguments: str) -> str:
    # The plugin is named because a checkout may have been installed before it had one.
    options = ("-q", "-p", "no:cacheprovider", "-p", "tileops.testing.options")
    done = processes.run("-m", "pytest", *options, *arguments, cwd=folder, env=environment)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def test_its_own_tests(environment: dict[str, str], tmp_path: Path) -> None:
    assert "9 passed" in run(environment, tmp_path, f"{environment['EXAMPLE']}/tests")


def test_the_suite_of_every_target(environment: dict[str, str], tmp_path: Path) -> None:
    options = ("--tileops-target", "reference", "--tileops-device", "cpu", "--tileops-row-limit", "1MiB", "-vv")
    shown = run(environment, tmp_path, "--pyargs", "tileops.testing", *options)
    for name in ("RMSNormFwdOp", "SiluAndMulFwdOp"):
        for test in ("test_rows", "test_layouts", "test_export"):
            assert f"{test}[{name}] PASSED" in shown
    assert "GemmFwdOp" not in shown


def test_an_unknown_target_is_a_usage_error(environment: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="there are builtin, reference"):
        run(environment, tmp_path, "--pyargs", "tileops.testing", "--tileops-target", "nobody")
