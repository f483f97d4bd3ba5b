"""Ops in tuned mode: what is tuned and when, whose record counts, what stays with the op."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tileops
from tests.autotune.conftest import FakeMeasurer
from tests.ops_runtime.toys import ScaleCall, fresh_kernel, make_op
from tileops import settings
from tileops.autotune.problem import record_key
from tileops.autotune.record import Point, Record, RecordStore, default_records
from tileops.autotune.report import KernelReport, Report
from tileops.autotune.space import TileSpace
from tileops.elementwise import LeakyReluFwdOp
from tileops.kernels.base import TensorSpec
from tileops.norm import RMSNormFwdOp

DEFAULT, BEST = {"unroll": 1}, {"unroll": 4}


@pytest.fixture(autouse=True)
def own_records(tmp_path: Path) -> Iterator[None]:
    with settings.scope(cache_dir=str(tmp_path)):
        yield


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replaces the search by one that finds `BEST` at once; what it was asked."""
    asked: list[dict[str, Any]] = []

    def tune(kernel: Any, call: Any, **options: Any) -> Report:
        asked.append({"kernel": kernel, "call": call, **options})
        found = KernelReport(kernel.__name__, options["op"], "", DEFAULT, BEST, 2e-6, 1e-6, (), 3, 0.1, persisted=False)
        return Report((found,))

    monkeypatch.setattr("tileops.autotune.session.tune", tune)
    return asked


def tunable() -> type:
    return fresh_kernel(
        tile_space=TileSpace({"unroll": (1, 2, 4)}),
        default_config=classmethod(lambda cls, call: dict(DEFAULT)),
        identity=classmethod(lambda cls, call, config: (cls, call.x.dtype, config["unroll"])),
    )


def scale_call(size: int) -> ScaleCall:
    x = TensorSpec.contiguous("float32", (size,))
    return ScaleCall(x, None, x, 2.0)


def record_best(kernel: type, call: ScaleCall, config: dict[str, Any]) -> None:
    points = (Point(DEFAULT, "ok", 2e-6, 1.0), Point(config, "ok", 1e-6, 0.5))
    assert default_records().put(record_key(kernel, call), Record(config, DEFAULT, points))


def test_an_op_never_put_in_tuned_mode_never_tunes(searches: list) -> None:
    kernel = tunable()
    make_op(kernel)()(torch.ones(4))
    assert kernel.builds == [DEFAULT]
    assert not searches


def test_request_tune_searches_at_the_first_build_of_a_problem(searches: list) -> None:
    kernel = tunable()
    op = make_op(kernel)()
    op.request_tune()
    op(torch.ones(4))
    op(torch.ones(4))
    op(torch.ones(2, 4)[0])
    assert len(searches) == 1
    assert searches[0]["op"] == type(op).__name__
    assert kernel.builds == [BEST]
    op(torch.ones(5))
    assert len(searches) == 2
    assert kernel.builds == [BEST]


def test_counted_are_searches_not_records_that_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def measurer(*_: Any) -> Any:
        return FakeMeasurer(lambda config: 1e-3 / config["unroll"])

    monkeypatch.setattr("tileops.autotune.session.ProcessMeasurer", measurer)
    monkeypatch.setattr("tileops.autotune.session.Problem.of", lambda *_, **__: None)
    cls = make_op(tunable())

    def tuned() -> int:
        return tileops.stats(by="op")[cls.__name__].tuned

    op = cls()
    op(torch.ones(4))
    op.autotune()
    assert tuned() == 1
    op.autotune()
    (again,) = cls().autotune(torch.ones(4)).kernels
    assert (again.best, again.measured, tuned()) == (BEST, 0, 1), "from the record"
    other = cls()
    other.request_tune()
    other(torch.ones(4))
    assert tuned() == 1
    other(torch.ones(5))
    assert tuned() == 2, "another problem"


def test_autotune_tunes_what_is_built_and_rebuilds(searches: list) -> None:
    kernel = tunable()
    op = make_op(kernel)()
    op(torch.ones(4))
    report = op.autotune(budget=7.0)
    assert (len(report.kernels), report.kernels[0].best) == (1, BEST)
    assert searches[0]["budget"] == 7.0
    assert op.tune
    op(torch.ones(4))
    assert kernel.builds == [DEFAULT, BEST]
    assert [found.config for found in op.iter_kernels()] == [BEST]
    assert len(searches) == 1


def test_autotune_of_examples_and_calls(searches: list) -> None:
    kernel = tunable()
    op = make_op(kernel)()
    op.autotune(torch.ones(4))
    op.autotune((torch.ones(8), torch.ones(8)), (torch.ones(16),))
    op.autotune(calls=[scale_call(32)])
    sizes = [asked["call"].x.shape[0] for asked in searches]
    assert sizes == [4, 8, 16, 32]
    assert not kernel.builds
    with pytest.raises(TypeError, match="is no call spec of this op"):
        op.autotune(calls=["RMSNormCall"])


def test_autotune_without_anything_says_what_to_pass(searches: list) -> None:
    op = make_op(tunable())()
    report = op.autotune()
    assert report.kernels == ()
    assert "pass example tensors or call specs" in report.note
    assert op.tune
    op(torch.ones(4))
    assert len(searches) == 1


def test_kernels_without_tile_parameters_are_left_alone(searches: list) -> None:
    op = make_op(fresh_kernel())()
    op(torch.ones(4))
    assert "no tile parameters" in op.autotune().note
    assert not searches


def test_a_record_serves_every_op_and_one_that_does_not_fit_is_ignored(searches: list) -> None:
    kernel = tunable()
    record_best(kernel, scale_call(4), BEST)
    record_best(kernel, scale_call(8), {"unroll": 3})
    op = make_op(kernel)()
    op(torch.ones(4))
    op(torch.ones(8))
    assert kernel.builds == [BEST, DEFAULT]
    tuned = make_op(kernel)()
    tuned.request_tune()
    tuned(torch.ones(4))
    assert not searches


def test_records_cost_new_sizes_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other kernels nothing; with those of its own, an op asks once for each problem."""
    asked: list[Any] = []

    def key_of(kernel: type, call: Any) -> Any:
        asked.append(call.x.shape)
        return record_key(kernel, call)

    monkeypatch.setattr("tileops.ops.tuning.record_key", key_of)
    kernel, other = tunable(), tunable()
    kernel.compile_class = classmethod(lambda cls, call: (call.x.dtype, call.bias is None))
    other.__qualname__ = "Other"
    record_best(other, scale_call(1), BEST)
    op = make_op(kernel)()
    for size in range(1, 9):
        op(torch.ones(size, 1))
    assert (asked, kernel.builds) == ([], [DEFAULT])
    # By another process.
    x = TensorSpec.contiguous("float32", (4, 1))
    key = record_key(kernel, ScaleCall(x, None, x, 2.0))
    points = (Point(DEFAULT, "ok", 2e-6, 1.0), Point(BEST, "ok", 1e-6, 0.5))
    assert RecordStore(default_records().root).put(key, Record(BEST, DEFAULT, points))
    default_records()._look_again = 0.0  # as after a second
    for size in range(9, 40):
        op(torch.ones(size, 1))
    assert kernel.builds == [DEFAULT]
    op._reset_plans()
    for size in range(1, 9):
        op(torch.ones(size, 1))
    assert kernel.builds == [DEFAULT, BEST]
    assert asked == [(9, 1), (17, 1), (33, 1), (1, 1), (2, 1), (3, 1), (5, 1)]


def test_nothing_is_measured_under_deterministic_algorithms(searches: list) -> None:
    kernel = tunable()
    record_best(kernel, scale_call(4), BEST)
    op = make_op(kernel)()
    op.request_tune()
    torch.use_deterministic_algorithms(True)
    try:
        op(torch.ones(4))
    finally:
        torch.use_deterministic_algorithms(False)
    assert kernel.builds == [DEFAULT]
    assert not searches


def test_forbidden_compiling_forbids_measuring(searches: list) -> None:
    kernel = tunable()
    op = make_op(kernel)()
    op.request_tune()
    with settings.scope(jit="forbid"):
        op(torch.ones(4))
    assert kernel.builds == [DEFAULT]
    assert not searches


@pytest.mark.nightly
@pytest.mark.in_tree_kernels
def test_tuning_at_the_first_call_writes_once() -> None:
    """A search runs its candidates on tensors of its own."""
    op = LeakyReluFwdOp(negative_slope=0.5, inplace=True)
    op.request_tune()
    x = torch.full((70,), -1.0)
    assert op(x) is x
    assert torch.equal(x, torch.full((70,), -0.5))
    op.autotune(x, budget=20.0)
    assert torch.equal(x, torch.full((70,), -0.5))


@pytest.mark.serial
@pytest.mark.in_tree_kernels
def test_a_real_search_is_recorded_and_found_again() -> None:
    op = RMSNormFwdOp((512,))
    x, weight = torch.randn(64, 512), torch.randn(512)
    before = x.clone(), weight.clone()
    (found,) = op.autotune(x, weight, budget=40.0).kernels
    assert torch.equal(x, before[0])
    assert torch.equal(weight, before[1])
    assert found.measured >= 1
    assert math.isfinite(found.default_seconds)
    expected = torch.nn.functional.rms_norm(x, (512,), weight, torch.finfo(torch.float32).eps)
    torch.testing.assert_close(op(x, weight), expected, rtol=1e-5, atol=1e-5)
    assert [kernel.config for kernel in op.iter_kernels()] == [dict(found.best)]
    if found.persisted:
        (again,) = RMSNormFwdOp((512,)).autotune(x, weight, budget=40.0).kernels
        assert again.measured == 0
        assert again.best == found.best
