"""Which record a call finds, and when it is applied."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import pytest
import torch
import tuned_kernels as kernels

from tests.store.helpers import OTHER_CPU, run
from tileops import settings
from tileops.autotune import config_for, lookup, tune, tuning_refusal
from tileops.autotune.problem import record_key
from tileops.autotune.record import Point, Record, RecordStore, default_records
from tileops.errors import CacheWarning
from tileops.jit.artifact import differences
from tileops.kernels.base import TensorSpec


def ways(config) -> float:
    return {"slow": 4e-3, "medium": 2e-3, "good": 1e-3}[config["way"]]


def difference(left, right) -> list[str]:
    return list(differences(record_key(kernels.Sound, left).fields, record_key(kernels.Sound, right).fields))


def test_calls_of_a_bucket_share_a_record():
    base = kernels.call(100)
    assert difference(base, kernels.call(128)) == []
    assert difference(base, kernels.call(129)) == ["problem.output", "problem.x"]
    assert difference(base, replace(base, scale=2.0)) == [], "a float only scales what is computed"
    assert difference(base, replace(base, exact=False)) == ["options.exact"]
    assert "tensors.x.dtype" in difference(base, kernels.call(100, "bfloat16"))
    strided = TensorSpec("cpu", "float32", (100, 8), (16, 1), 4)
    assert "tensors.x.layout" in difference(base, replace(base, x=strided))


def test_the_instruction_set_is_part_of_the_device():
    before = record_key(kernels.Sound, kernels.call())
    with settings.scope(cpu=OTHER_CPU):
        after = record_key(kernels.Sound, kernels.call())
    assert list(differences(before.fields, after.fields)) == ["device"]


def test_a_second_process_finds_the_record(fake, cache):
    tune(kernels.Sound, kernels.call(), op="DoubleFwdOp", measurer=fake(ways))
    printed = run(
        f"import sys; sys.path.insert(0, {str(kernels.__file__).rpartition('/')[0]!r})\n"
        "import tuned_kernels as kernels\n"
        "from tileops.autotune import lookup\n"
        "print(lookup(kernels.Sound, kernels.call())['way'])\n"
        "print('torch' in sys.modules, 'optuna' in sys.modules)",
        env={"TILEOPS_CACHE_DIR": str(cache)},
    )
    assert printed.split() == ["good", "False", "False"]


def test_a_record_says_where_it_comes_from(fake):
    tune(kernels.Sound, kernels.call(), op="DoubleFwdOp", measurer=fake(ways))
    record = default_records().get(record_key(kernels.Sound, kernels.call()), fresh=True)
    assert record.config == {"way": "good"}
    assert record.default == {"way": "slow"}
    assert record.speedup == pytest.approx(4.0)
    assert record.op == "DoubleFwdOp"
    assert [point.config["way"] for point in record.points] == ["slow", "medium", "good"]
    assert {"torch", "numba", "tileops", "sources", "threads", "host", "time"} <= record.environment.keys()


def test_a_record_that_cannot_be_kept_serves_this_process_and_says_so(fake, tmp_path):
    (tmp_path / "file").write_text("no directory")
    with settings.scope(cache_dir=str(tmp_path / "file")):
        with pytest.warns(CacheWarning):
            (result,) = tune(kernels.Sound, kernels.call(), measurer=fake(ways)).kernels
        assert (result.best, result.persisted) == ({"way": "good"}, False)
        assert "only this process knows it" in result.note
        assert "Not a directory" in result.note
        assert lookup(kernels.Sound, kernels.call()) == {"way": "good"}


def test_a_record_is_not_applied_where_it_is_not_valid(fake, caplog):
    tune(kernels.Bounded, kernels.call(16), measurer=fake(ways))
    assert lookup(kernels.Bounded, kernels.call(16)) == {"way": "good"}
    with caplog.at_level(logging.WARNING, "tileops.autotune"):
        for rows in (17, 24, 24):
            assert lookup(kernels.Bounded, kernels.call(rows)) is None
    assert len(caplog.records) == 1


@pytest.mark.parametrize("config", [{"way": "gone"}, {"other": 1}, {}, {"way": "good", "more": 1}])
def test_a_record_that_no_longer_fits_is_ignored(config):
    key = record_key(kernels.Sound, kernels.call())
    default_records().put(key, Record(config, {"way": "slow"}, (Point(config, "ok", 1e-3, 0.5),)))
    assert lookup(kernels.Sound, kernels.call()) is None


def test_failures_are_tried_again_after_an_edit(fake, monkeypatch):
    from tileops.autotune.measure import Result

    failing = fake(lambda config: Result("crashed") if config["way"] == "good" else ways(config))
    tune(kernels.Sound, kernels.call(), measurer=failing)
    again = fake(ways)
    tune(kernels.Sound, kernels.call(), measurer=again)
    assert again.checked == [], "the same sources fail in the same way"
    monkeypatch.setattr("tileops.autotune.record.source_fingerprint", lambda package: "edited")
    (result,) = tune(kernels.Sound, kernels.call(), measurer=again).kernels
    assert result.best == {"way": "good"}
    assert result.measured == 1


def test_a_damaged_record_is_a_miss(cache, fake):
    from tileops.errors import CacheWarning

    tune(kernels.Sound, kernels.call(), measurer=fake(ways))
    store = RecordStore(cache)
    store.disk.put(record_key(kernels.Sound, kernels.call()).digest, b"noise")
    with pytest.warns(CacheWarning, match="damaged"):
        assert store.get(record_key(kernels.Sound, kernels.call())) is None


def test_an_op_that_is_not_tuned_takes_the_default(fake):
    tune(kernels.Sound, kernels.call(), measurer=fake(ways))
    assert config_for(kernels.Sound, kernels.call(), tuned=False) == {"way": "slow"}
    assert config_for(kernels.Sound, kernels.call(), tuned=True) == {"way": "good"}


@pytest.mark.parametrize("reason", ["forbid", "deterministic", "tracing"])
def test_where_nothing_may_be_measured_the_default_runs(fake, caplog, monkeypatch, reason):
    measurer = fake(ways)
    with settings.scope(jit="forbid" if reason == "forbid" else "lazy"):
        if reason == "tracing":
            monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        if reason == "deterministic":
            torch.use_deterministic_algorithms(True)
        try:
            assert tuning_refusal() is not None
            with caplog.at_level(logging.WARNING, "tileops.autotune"):
                for _ in range(3):
                    chosen = config_for(kernels.Sound, kernels.call(), tuned=True, measurer=measurer)
                    assert chosen == {"way": "slow"}
            assert len(caplog.records) == 1
            (result,) = tune(kernels.Sound, kernels.call(), measurer=measurer).kernels
            assert result.best == {"way": "slow"}
        finally:
            torch.use_deterministic_algorithms(False)
    assert measurer.samples == 0


def test_deterministic_algorithms_use_no_record(fake):
    tune(kernels.Sound, kernels.call(), measurer=fake(ways))
    torch.use_deterministic_algorithms(True)
    try:
        assert config_for(kernels.Sound, kernels.call(), tuned=True) == {"way": "slow"}
    finally:
        torch.use_deterministic_algorithms(False)


def test_threads_tune_a_problem_once(fake):
    measurer = fake(ways)
    barrier = threading.Barrier(8)
    chosen = []

    def work() -> None:
        barrier.wait()
        chosen.append(config_for(kernels.Sound, kernels.call(), tuned=True, measurer=measurer)["way"])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert chosen == ["good"] * 8
    assert measurer.checked.count({"way": "medium"}) == 1
