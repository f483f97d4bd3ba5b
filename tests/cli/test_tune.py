"""`tileops tune`: what it searches, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import tileops
from tileops import settings
from tileops.cli.main import app
from tileops.cli.tune import _problems
from tileops.elementwise import SiluAndMulFwdOp
from tileops.errors import TileOpsError
from tileops.norm import RMSNormFwdOp

pytestmark = pytest.mark.in_tree_kernels


@pytest.fixture
def calls(tmp_path) -> Path:
    path = tmp_path / "calls.jsonl"
    with tileops.record(path):
        for rows in (3, 4, 100):
            RMSNormFwdOp(normalized_shape=(64,))(torch.ones(rows, 64))
        SiluAndMulFwdOp()(torch.ones(3, 64))
    return path


def run(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["tune", *map(str, arguments)])
    if isinstance(done.exception, TileOpsError):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.output if code else done.stdout  # without what is said of a busy machine


def test_recorded_calls_are_tuned_once_for_each_problem(calls):
    found = _problems(None, None, calls)
    assert [(op, call.x.shape) for op, _, call in found] == [
        ("RMSNormFwdOp", (3, 64)),
        ("RMSNormFwdOp", (100, 64)),
        ("SiluAndMulFwdOp", (3, 64)),
    ], "three and four rows are one problem"
    assert len(_problems(["SiluAndMulFwdOp"], None, calls)) == 1


def test_every_operator_with_tile_parameters_has_cases_to_tune():
    tunable = {op for op, _, _ in _problems(None, None, None)}
    assert tunable >= {"RMSNormFwdOp", "GemmFwdOp", "GQADenseFwdOp", "SiluAndMulFwdOp"}


@pytest.mark.serial
def test_a_recorded_call_is_tuned_with_a_journal_a_plot_and_a_bound(calls, tmp_path):
    with settings.scope(cache_dir=str(tmp_path / "cache")):
        options = ("--effort", "quick", "--budget", 120, "--trials", 2, "--jobs", 1, "--no-progress")
        said = run("SiluAndMulFwdOp", "--calls", calls, *options, "--storage", tmp_path / "study.log",
                   "--plot", tmp_path / "tuning.png", "--json")  # fmt: skip
    (kernel,) = json.loads(said)["kernels"]
    assert kernel["measured"] == 1
    assert (tmp_path / "study.log").exists()
    assert (tmp_path / "tuning.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "arguments",
    [
        ("RMSNormFwdOp", "--case", "no-such-case"),
        ("RMSNormFwdOp", "GemmFwdOp", "--case", "x"),
        ("--case", "x"),
        ("RMSNormFwdOp", "--case", "x", "--calls", "y"),
        ("RMSNormFwdOp", "--effort", "none"),
        ("NoSuchOp",),
    ],
)
def test_bad_usage(arguments):
    assert run(*arguments, code=2)


def test_a_calls_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(TileOpsError, match="cannot read"):
        run("--calls", tmp_path / "none")
