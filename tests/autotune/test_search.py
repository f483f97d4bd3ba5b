"""What a search measures and chooses, with times made up."""

from __future__ import annotations

import logging
import math

import pytest
import tuned_kernels as kernels

from tests.autotune.conftest import noise_of
from tileops import settings
from tileops.autotune import Report, config_for, lookup, on_tune, tune
from tileops.autotune.measure import Result
from tileops.autotune.record import default_records
from tileops.errors import TuningError

CALL = kernels.call()
VALID = [(a, b) for a in range(8) for b in range(4) if a >= b]


def bowl(config) -> float:
    """Fastest at a = 6, b = 2."""
    return 1e-3 * (1 + 0.1 * (config["a"] - 6) ** 2 + 0.2 * (config["b"] - 2) ** 2)


def test_a_small_space_is_measured_whole_and_the_default_first(fake):
    measurer = fake(bowl)
    (result,) = tune(kernels.Grid, CALL, measurer=measurer).kernels
    assert result.best == {"a": 6, "b": 2}
    assert result.default == {"a": 3, "b": 1}
    assert measurer.checked[0] == result.default
    assert {(point.config["a"], point.config["b"]) for point in result.points} == set(VALID)
    assert result.measured == len(VALID) - 1
    assert result.speedup == pytest.approx(bowl({"a": 3, "b": 1}) / bowl({"a": 6, "b": 2}))
    assert measurer.published == [{"a": 6, "b": 2}]
    assert measurer.closed
    assert lookup(kernels.Grid, CALL) == {"a": 6, "b": 2}


def test_a_large_space_is_sampled_without_repeats(fake, cache):
    measurer = fake(lambda config: 1e-3 * (1 + abs(config["a"] - 11) + abs(config["b"] - 4) + config["flag"]))
    (result,) = tune(kernels.Large, CALL, measurer=measurer, trials=40, seed=3).kernels
    texts = [point.text for point in result.points]
    assert len(set(texts)) == len(texts) == 40
    assert result.best_seconds < 0.4 * result.default_seconds, "finds most of the way from 16 to 1 in 40 of 400"
    assert (cache / "studies.log").exists()


def test_the_same_seed_searches_the_same_points(fake, tmp_path):
    runs = []
    for n in range(2):
        with settings.scope(cache_dir=str(tmp_path / str(n))):
            measurer = fake(lambda config: 1e-3 * (1 + config["a"] * 0.1 + config["b"]))
            (result,) = tune(kernels.Large, CALL, measurer=measurer, trials=25, seed=7).kernels
            runs.append([point.text for point in result.points])
    assert runs[0] == runs[1]


def test_nothing_is_measured_twice(fake, monkeypatch):
    tune(kernels.Grid, CALL, measurer=fake(bowl))
    again = fake(bowl)
    (result,) = tune(kernels.Grid, CALL, measurer=again).kernels
    assert (result.measured, again.checked, result.best) == (0, [], {"a": 6, "b": 2})
    wider = kernels.TileSpace({"a": tuple(range(8)), "b": (*range(4), 9)})
    monkeypatch.setattr(kernels.Grid, "tile_space", wider)
    more = fake(bowl)
    (result,) = tune(kernels.Grid, CALL, measurer=more).kernels
    assert result.measured == 40 - len(VALID), "the new points only"
    assert result.best == {"a": 6, "b": 2}


def test_a_tie_goes_to_the_first_in_the_order_of_the_space(fake, tmp_path):
    choices = set()
    for seed in range(50):
        with settings.scope(cache_dir=str(tmp_path / str(seed))):
            measurer = fake(
                lambda config: {"slow": 2e-3, "medium": 1e-3, "good": 1e-3}[config["way"]],
                noise_of(seed, 1.0, 1.001),
            )
            (result,) = tune(kernels.Sound, CALL, measurer=measurer).kernels
            choices.add(result.best["way"])
    assert choices == {"medium"}


def test_a_default_that_is_as_fast_stays(fake):
    measurer = fake(lambda config: {"slow": 1.01e-3, "medium": 1e-3, "good": 1e-3}[config["way"]])
    (result,) = tune(kernels.Sound, CALL, measurer=measurer).kernels
    assert result.best == {"way": "slow"}
    assert result.persisted


def test_noise_and_contention_do_not_change_the_choice(fake, tmp_path):
    """50 seeds: a noisy machine, and another process on it for the first or the second half of the session."""
    with settings.scope(cache_dir=str(tmp_path / "quiet")):
        quiet = fake(bowl)
        tune(kernels.Grid, CALL, measurer=quiet)
    halves = range(quiet.samples // 2), range(quiet.samples // 2, quiet.samples)
    choices = set()
    for seed in range(50):
        busy, chance = ((), *halves)[seed % 3], noise_of(seed, 1.0, 1.05)
        measurer = fake(bowl, lambda n, chance=chance, busy=busy: chance(n) * (3.0 if n in busy else 1.0))
        with settings.scope(cache_dir=str(tmp_path / str(seed))):
            (result,) = tune(kernels.Grid, CALL, measurer=measurer).kernels
        choices.add((result.best["a"], result.best["b"]))
    assert choices == {(6, 2)}


def test_timings_that_vary_too_much_are_not_recorded(fake):
    measurer = fake(bowl, noise_of(0, 1.0, 20.0))
    (result,) = tune(kernels.Grid, CALL, measurer=measurer).kernels
    assert result.best == result.default
    assert not result.persisted
    assert "vary" in result.note
    assert lookup(kernels.Grid, CALL) is None


@pytest.mark.parametrize(
    "bad",
    [math.inf, math.nan, 0.0, Result("crashed", cause="died"), Result("timeout", cause="late")],
)
def test_when_everything_fails_the_causes_are_named_and_nothing_is_recorded(fake, bad):
    measurer = fake(lambda config: bad)
    with pytest.raises(TuningError, match="default config failed") as caught:
        tune(kernels.Grid, CALL, measurer=measurer)
    for config in ('{"a":3,"b":1}', '{"a":0,"b":0}', '{"a":1,"b":0}'):
        assert f"\n  {config}: " in str(caught.value), "the default and two more: do all fail in the same way?"
    assert measurer.closed
    assert lookup(kernels.Grid, CALL) is None


def test_candidates_that_fail_are_outcomes(fake, caplog):
    def seconds(config):
        return {"slow": 4e-3, "medium": Result("wrong", cause="off by one"), "good": math.nan}[config["way"]]

    with caplog.at_level(logging.INFO, "tileops.autotune"):
        (result,) = tune(kernels.Sound, CALL, measurer=fake(seconds)).kernels
    assert result.outcomes == {"ok": 1, "crashed": 1, "wrong": 1}
    assert result.best == {"way": "slow"}
    assert result.persisted
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1, "failures are for the debug level"
    assert lines[0].startswith("Sound: way=slow 4000.0 us, default way=slow 4000.0 us: 1.00x, 2 measured in ")
    assert lines[0].endswith("s, 1 crashed, 1 wrong")


def test_a_candidate_that_fails_later_is_not_chosen(fake):
    calls = []

    def seconds(config):
        if config["way"] == "good":
            calls.append(1)
            if len(calls) > 6:
                return Result("crashed", cause="died at last")
            return 1e-3
        return {"slow": 4e-3, "medium": 2e-3}[config["way"]]

    (result,) = tune(kernels.Sound, CALL, measurer=fake(seconds)).kernels
    assert result.best == {"way": "medium"}


def test_a_spent_budget_gives_the_best_so_far(fake, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("tileops.autotune.session.time.monotonic", lambda: clock[0])

    def seconds(config):
        clock[0] += 0.5
        return bowl(config)

    (result,) = tune(kernels.Grid, CALL, measurer=fake(seconds), budget=20.0).kernels
    assert result.seconds <= 22.0
    assert "cut off" in result.note
    assert result.persisted


def test_a_value_that_is_added_to_a_large_space_costs_new_points_only(fake, monkeypatch):
    first = fake(lambda config: 1e-3 * (1 + config["a"]))
    tune(kernels.Large, CALL, measurer=first, trials=20)
    wider = {**kernels.Large.tile_space.parameters, "b": tuple(range(11))}
    monkeypatch.setattr(kernels.Large, "tile_space", kernels.TileSpace(wider))
    more = fake(lambda config: 1e-3 * (1 + config["a"]))
    (result,) = tune(kernels.Large, CALL, measurer=more, trials=25).kernels
    assert result.measured == 5
    assert len(result.points) == 25
    known = {str(config) for config in first.checked}
    again = [config for config in more.checked if str(config) in known and config != result.default]
    assert len(again) <= 4, "only to confirm the best of them"


def test_effort_sets_the_bounds(fake):
    (result,) = tune(kernels.Large, CALL, measurer=fake(bowl_of_large), effort="quick").kernels
    assert len(result.points) == 16
    (result,) = tune(kernels.Large, CALL, measurer=fake(bowl_of_large), effort="quick", trials=18).kernels
    assert len(result.points) == 18


def bowl_of_large(config) -> float:
    return 1e-3 * (1 + abs(config["a"] - 11) + abs(config["b"] - 4))


def test_hooks_are_told_of_every_result(fake):
    seen = []
    stop = on_tune(seen.append)
    report = tune(kernels.Sound, CALL, measurer=fake(lambda config: 1e-3))
    again = tune(kernels.Sound, CALL, measurer=fake(lambda config: 1e-3))
    assert seen == [report.kernels[0], again.kernels[0]]
    stop()
    stop()
    tune(kernels.Sound, CALL, measurer=fake(lambda config: 1e-3))
    assert len(seen) == 2


def test_plots_show_each_parameter(fake, tmp_path):
    reports = [tune(kernel, CALL, measurer=fake(lambda config: 1e-3)) for kernel in (kernels.Grid, kernels.Sound)]
    Report.merge(reports).plot(tmp_path / "tuning.svg")
    drawn = (tmp_path / "tuning.svg").read_text()
    assert "<svg" in drawn
    for word in ("a", "b", "way", "Grid", "Sound"):
        assert f"<!-- {word}" in drawn
    with pytest.raises(TuningError, match="nothing to plot"):
        Report().plot(tmp_path / "empty.png")


def test_a_budget_that_is_spent_on_compiling_is_no_error(fake, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("tileops.autotune.session.time.monotonic", lambda: clock[0])

    class SlowCompiler(fake):
        def compile(self, configs, limit, budget):
            clock[0] += 7.0
            return super().compile(configs, limit, budget)

    (result,) = tune(kernels.Grid, CALL, measurer=SlowCompiler(lambda config: Result("timeout")), budget=10.0).kernels
    assert (result.best, result.measured, result.persisted) == (result.default, 0, False)
    assert "give a larger budget" in result.note
    assert lookup(kernels.Grid, CALL) is None


def test_a_budget_for_the_default_alone_records_nothing(fake, monkeypatch, caplog):
    clock = [0.0]
    monkeypatch.setattr("tileops.autotune.session.time.monotonic", lambda: clock[0])

    class Busy(fake):
        def compile(self, configs, limit, budget):
            assert budget <= 15.0
            first = clock[0] == 0.0
            clock[0] += 3.0 if first else budget
            return [Result("ok") if first else Result("timeout", cause="not compiled") for _ in configs]

    report = tune(kernels.Grid, CALL, measurer=Busy(bowl), budget=15.0)
    (result,) = report.kernels
    assert (result.best, result.outcomes, result.persisted) == (result.default, {"ok": 1}, False)
    assert "no other config was measured within 15 s, nothing was recorded" in report.table()
    assert "nothing was recorded" in caplog.text
    assert lookup(kernels.Grid, CALL) is None
    (result,) = tune(kernels.Grid, CALL, measurer=fake(bowl)).kernels
    assert (result.best, result.persisted) == ({"a": 6, "b": 2}, True), "the next search measures"


def test_what_the_budget_cuts_off_is_measured_by_the_next_search(fake, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("tileops.autotune.session.time.monotonic", lambda: clock[0])

    class Slow(fake):
        def compile(self, configs, limit, budget):
            clock[0] += 2.0 * len(configs)
            ended = clock[0] > 15.0
            return [Result("timeout", cause="cut off") if ended and n else Result("ok") for n, _ in enumerate(configs)]

    (first,) = tune(kernels.Grid, CALL, measurer=Slow(bowl), budget=20.0).kernels
    assert first.persisted
    assert "goes on from there" in first.note
    assert set(first.outcomes) == {"ok"}
    (second,) = tune(kernels.Grid, CALL, measurer=fake(bowl)).kernels
    assert second.measured == len(VALID) - len(first.points)
    assert second.best == {"a": 6, "b": 2}


@pytest.mark.parametrize(
    ("options", "single", "words"),
    [({}, True, "one valid config"), ({"trials": 1}, False, "trials=1 is the default alone")],
)
def test_where_nothing_can_be_compared_nothing_is_measured(fake, options, single, words, monkeypatch):
    if single:
        monkeypatch.setattr(kernels.Sound, "tile_space", kernels.TileSpace({"way": ("slow",)}))
    measurer = fake(bowl)
    (result,) = tune(kernels.Sound, CALL, measurer=measurer, **options).kernels
    assert words in result.note
    assert (measurer.checked, result.persisted, result.best) == ([], False, {"way": "slow"})
    assert lookup(kernels.Sound, CALL) is None


@pytest.mark.parametrize(("again", "chosen"), [(0.95, "good"), (0.99, "slow"), (1.1, "slow")])
def test_a_small_gain_must_show_again_in_a_fresh_process(fake, again, chosen):
    def seconds(config):
        gain = again if measurer.renewed else 0.96
        return 1e-3 * {"slow": 1.0, "medium": 1.2, "good": gain}[config["way"]]

    measurer = fake(seconds)
    report = tune(kernels.Sound, CALL, measurer=measurer)
    (result,) = report.kernels
    assert (result.best, result.persisted) == ({"way": chosen}, True)
    assert measurer.renewed == 1
    assert result.speedup == pytest.approx(1 / again if chosen == "good" else 1.0)
    taken_back = "Sound: the 1.04x that the search saw was not confirmed, the default stays"
    assert report.table().splitlines()[2:] == ([taken_back] if chosen == "slow" else [])


def test_trials_bound_the_search(fake):
    (result,) = tune(kernels.Grid, CALL, measurer=fake(bowl), trials=5).kernels
    assert len(result.points) == 5


def test_a_kernel_without_tile_parameters_is_left_alone():
    report = tune(kernels.Plain, CALL)
    assert report.kernels == ()
    assert "no tile parameters" in report.note
    assert config_for(kernels.Plain, CALL, tuned=True) == {"way": "slow"}


def test_the_progress_listener_is_told(fake):
    seen = []
    tune(kernels.Grid, CALL, measurer=fake(bowl), progress=seen.append)
    assert {item.phase for item in seen} == {"compile", "measure", "confirm"}
    assert seen[-1].best == pytest.approx(bowl({"a": 3, "b": 1}) / bowl({"a": 6, "b": 2}))
    assert str(seen[-1]).startswith("tuning Grid: ")


def test_reports_are_plain_values_and_tables(fake):
    report = tune(kernels.Sound, CALL, op="DoubleFwdOp", measurer=fake(lambda config: 1e-3))
    content = report.to_dict()
    assert content["kernels"][0]["op"] == "DoubleFwdOp"
    assert content["kernels"][0]["outcomes"] == {"ok": 3}
    assert content["kernels"][0]["near_best"] == 3
    assert content["kernels"][0]["default_us"] == pytest.approx(1000.0)
    assert report.table().splitlines()[1].split()[:2] == ["Sound", "way=slow"]
    assert default_records().get is not None


def test_a_second_machine_uses_what_a_shared_study_holds(fake, tmp_path):
    def seconds(config):
        return 1e-3 * (1 + abs(config["a"] - 11) + abs(config["b"] - 4))

    results = []
    for machine in range(2):
        directory = str(tmp_path / str(machine))
        with settings.scope(cache_dir=directory, tune_storage=f"sqlite:///{tmp_path}/study.db"):
            measurer = fake(seconds)
            results += tune(kernels.Large, CALL, measurer=measurer, trials=30, seed=machine).kernels
    first, second = results
    assert first.measured == 29
    assert second.measured == 0
    assert second.best == first.best, "confirmed here, and recorded"
    assert second.speedup == pytest.approx(first.speedup)
    assert second.persisted
