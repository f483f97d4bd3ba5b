"""Candidates in real processes: whatever one does, the search goes on."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import torch
import tuned_kernels as kernels

from tests.autotune.intervals import overlapping
from tileops.autotune import tune
from tileops.autotune.measure import ProcessMeasurer
from tileops.autotune.problem import Problem
from tileops.errors import TuningError
from tileops.jit.store import default_store

pytestmark = pytest.mark.serial


@pytest.fixture(scope="module")
def slowness() -> float:
    """How much longer than two seconds a process needs here to import torch; 1 on a machine that is not overloaded."""
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return max(1.0, (time.monotonic() - start) / 2.0)


def test_a_space_of_traps_gives_the_good_config_in_time(slowness):
    budget = 60.0 * slowness  # for slow machines; the search ends by its points
    for _ in range(3):
        start = time.monotonic()
        (result,) = tune(kernels.Double, kernels.call(), budget=budget, jobs=1).kernels
        assert time.monotonic() - start < budget + 60.0, "one of the traps never ends by itself"
        if result.persisted:  # else timings varied too much at that moment
            break
    assert result.best == {"way": "good"}
    outcomes = {point.config["way"]: point.outcome for point in result.points}
    assert outcomes == {
        "slow": "ok",
        "medium": "ok",
        "good": "ok",
        "abort": "crashed",
        "hang": "timeout",
        "huge": "oom",
        "wrong": "wrong",
        "unwritten": "wrong",
        "uncompilable": "compile_failed",
        "impossible": "invalid",
    }
    causes = {point.config["way"]: point.cause for point in result.points}
    assert "SIGABRT" in causes["abort"]
    assert "unwritten" in causes["unwritten"]
    assert "no such instruction" in causes["uncompilable"]
    assert (torch.ones(1) + 1).item() == 2


def test_a_default_that_crashes_is_an_error_with_causes(slowness):
    with pytest.raises(TuningError, match="SIGABRT"):
        tune(kernels.Broken, kernels.call(), budget=60.0 * slowness, jobs=1)


def measurer(kernel, call, **options) -> ProcessMeasurer:
    return ProcessMeasurer(Problem.of(kernel, call, **options), default_store(), jobs=1)


def test_tensors_that_a_kernel_updates_are_made_afresh(slowness):
    runner = measurer(kernels.Updating, kernels.call(), updated=("output",))
    try:
        for _ in range(3):
            assert runner.check({"way": "good"}, 20.0 * slowness).ok
            assert runner.time({"way": "good"}, 5, 20.0 * slowness).ok
    finally:
        runner.close()


def test_what_a_killed_run_left_behind_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = (
        "import os, signal; from tileops.autotune.measure import _claim\n"
        f"path = {str(tmp_path / 'tileops-tune-killed')!r}\n"
        "os.mkdir(path); claim = _claim(path); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    (tmp_path / "tileops-tune-unclaimed").mkdir()
    problem = Problem.of(kernels.Sound, kernels.call())
    first = ProcessMeasurer(problem, default_store(), jobs=1)
    second = ProcessMeasurer(problem, default_store(), jobs=1)
    assert len(list(tmp_path.glob("tileops-tune-*"))) == 3, "two runs, and what nobody has claimed yet"
    for measurer in (first, second, first):
        measurer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["tileops-tune-unclaimed"]


@pytest.mark.parametrize("kernel", [type("Local", (kernels.Sound,), {"__module__": "__main__"})])
def test_a_class_that_a_worker_cannot_import_is_refused(kernel):
    with pytest.raises(TuningError, match="importable module"):
        tune(kernel, kernels.call())


def test_timed_sections_of_two_processes_do_not_overlap(cache):
    assert overlapping(cache) == []
