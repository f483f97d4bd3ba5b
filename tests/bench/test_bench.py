"""The benchmark package: cases, interleaving, checks before timing, reports."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests import processes
from tests.store.helpers import environment
from tileops import bench
from tileops.bench import baselines, ceiling, report, timing
from tileops.bench import case as bench_case
from tileops.bench.runner import Implementation
from tileops.elementwise import AddFwdOp, DropoutFwdOp, HardswishFwdOp
from tileops.norm import RMSNormFwdOp
from tileops.workloads import numerics, workload

pytestmark = pytest.mark.in_tree_kernels


def case_named(op: type, id_: str) -> bench.Case:
    return next(item for item in bench.cases(op) if item.id == id_)


ROOT = Path(__file__).resolve().parents[2]
SMALL = "smollm2-decode-float32"


class Clock:
    """Time that passes only when a contender says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []

    def contender(self, name: str, seconds: Callable[[int], float]) -> Callable[[], None]:
        calls = 0

        def call() -> None:
            nonlocal calls
            self.order.append(name)
            self.now += seconds(calls)
            calls += 1

        return call


def test_contenders_take_turns_and_the_median_ignores_outliers() -> None:
    clock = Clock()
    fast = clock.contender("fast", lambda n: 0.1 if n % 5 else 9.0)
    slow = clock.contender("slow", lambda n: 0.3)
    first, second = timing.measure([fast, slow], budget_s=50.0, clock=lambda: clock.now)
    assert first.median == pytest.approx(0.1)
    assert second.median == pytest.approx(0.3)
    measured = clock.order[-8:]
    assert measured in (["fast", "slow", "slow", "fast"] * 2, ["slow", "fast", "fast", "slow"] * 2)


def test_a_spent_budget_still_gives_the_least_number_of_rounds() -> None:
    clock = Clock()
    (quick,) = timing.measure([clock.contender("a", lambda n: 0.2)], budget_s=0.0, clock=lambda: clock.now)
    assert len(quick.samples) == timing.MIN_ROUNDS
    (slow,) = timing.measure([clock.contender("a", lambda n: 2.0)], budget_s=0.0, clock=lambda: clock.now)
    assert len(slow.samples) == timing.MIN_ROUNDS_SLOW


def test_short_calls_are_repeated_within_a_sample() -> None:
    clock = Clock()
    timing.measure([clock.contender("a", lambda n: 1e-5)], budget_s=0.0, clock=lambda: clock.now)
    assert len(clock.order) >= timing.MIN_ROUNDS * round(timing.SAMPLE_S / 1e-5)


def test_every_implemented_operator_has_cases_and_a_workload() -> None:
    chosen = bench.selected()
    for name in {item.op for item in chosen}:
        assert bench.registered(name)
        assert len({item.id for item in chosen if item.op == name}) >= 8
        assert workload(name).op == name


def test_inputs_of_a_case_are_reproducible() -> None:
    case = case_named(AddFwdOp, "smollm2-residual-decode-float32")
    first, second = case.inputs(), case.inputs()
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], first[1])


def test_cold_inputs_are_copied_beyond_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_case, "cache_bytes", lambda: 8 << 20)
    case = case_named(AddFwdOp, "llama-8b-residual-512-float32")
    sets = case.input_sets(cold=("other",))
    nbytes = sets[0][1].numel() * 4
    assert len(sets) * nbytes > 8 << 20
    assert len({item[1].data_ptr() for item in sets}) == len(sets)
    assert len({item[0].data_ptr() for item in sets}) == 1
    assert all(torch.equal(item[1], sets[0][1]) for item in sets)


def test_contenders_do_not_warm_the_cache_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_case, "cache_bytes", lambda: 20 << 20)
    monkeypatch.setattr(
        "tileops.bench.runner.workload", lambda op: SimpleNamespace(reference=torch.add, cold=["other"])
    )
    case = case_named(AddFwdOp, "llama-8b-residual-512-float32")
    runner = bench.Runner(AddFwdOp, case, budget_s=0.01)
    read: list[int] = []

    def plain(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        read.append(next(i for i, item in enumerate(runner.input_sets) if item[1] is other))
        return x + other

    def one_round(calls: list[Any], **_: Any) -> list[timing.Timing]:
        read.clear()
        for call in calls:
            call()
        return [timing.Timing(1.0, (1.0,)) for _ in calls]

    monkeypatch.setattr("tileops.bench.runner.measure", one_round)
    runner.compare({"first": plain, "second": plain})
    sets = len(runner.input_sets)
    assert read == [sets // 3, sets * 2 // 3]


def test_compare_reports_ratios_and_the_fastest_of_a_group() -> None:
    runner = bench.Runner(RMSNormFwdOp, case_named(RMSNormFwdOp, SMALL), budget_s=0.05)
    implementations, groups, missing = bench.select(runner, ["torch", "no-such-baseline"])
    assert missing == {"no-such-baseline": "not registered for this operator"}
    result = runner.compare(implementations, groups=groups)
    assert set(result.baselines) == {"torch"}
    assert result.notes["torch"] in workload("RMSNormFwdOp").torch
    row = result.to_json()
    assert list(row) == [
        "op", "case", "device", "dtype", "ours_us", "baselines", "ratio", "flops", "bytes", "efficiency",
    ]  # fmt: skip
    assert row["ratio"]["torch"] == pytest.approx(row["baselines"]["torch"] / row["ours_us"])
    assert row["flops"] == 4 * 576
    assert row["efficiency"] > 0


def test_a_wrong_result_is_never_timed() -> None:
    case = case_named(RMSNormFwdOp, SMALL)
    wrong = SimpleNamespace(calls=0)

    def zeros(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wrong.calls += 1
        return torch.zeros_like(x)

    with pytest.raises(bench.WrongResultError, match="baseline zeros"):
        bench.Runner(RMSNormFwdOp, case, budget_s=0.01).compare({"zeros": zeros})
    assert wrong.calls == 1

    class Broken:
        def __call__(self, *tensors: Any) -> torch.Tensor:
            return torch.zeros_like(tensors[0])

    with pytest.raises(bench.WrongResultError, match="output 0"):
        bench.Runner(Broken(), case, budget_s=0.01).compare({})


def test_an_implementation_may_bring_arguments_and_a_reset() -> None:
    runner = bench.Runner(RMSNormFwdOp, case_named(RMSNormFwdOp, SMALL), budget_s=0.01)
    seen: list[int] = []
    sets = [(0,), (1,), (2,)]

    def run(number: int) -> None:
        seen.append(number)

    item = Implementation(run, args=sets, reset=lambda: seen.append(-1), noncomparable_reason="returns nothing")
    runner.compare({"other": item})
    assert seen[0] == -1
    start = seen[1]
    assert seen[1:5] == [(start + step) % 3 for step in range(4)]


def test_what_calls_write_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    (case,) = bench.selected(["HardswishFwdOp"], case="mobilenet-v3-inplace", dtype="bfloat16")
    runner = bench.Runner(HardswishFwdOp, case)
    kept = runner.inputs[0].clone()
    met: list[bool] = []

    def baseline(x: torch.Tensor) -> torch.Tensor:
        met.append(torch.equal(x, kept))
        return torch.nn.functional.hardswish(x, inplace=True)

    def one_sample_each(calls: list[Any], *, restore: Callable[[], None], **_: Any) -> list[timing.Timing]:
        for call in calls:
            restore()
            call()
        return [timing.Timing(1.0, (1.0,)) for _ in calls]

    monkeypatch.setattr("tileops.bench.runner.measure", one_sample_each)
    runner.compare({"first": baseline, "second": baseline})
    assert met == [True] * 4


def test_samples_of_calls_that_write_are_short_and_begin_afresh() -> None:
    clock = Clock()
    call = clock.contender("call", lambda n: 1e-5)
    timing.measure([call], budget_s=0.0, restore=lambda: clock.order.append("restore"), clock=lambda: clock.now)
    assert clock.order[-timing.MAX_REWRITES - 1 :] == ["restore", *["call"] * timing.MAX_REWRITES]


def test_the_machine_has_limits() -> None:
    found = ceiling.peaks()
    assert found.of("bfloat16") >= found.of("float32") > 1e8
    assert found.of("float16") == found.of("float32")
    for read, written in ((1000, 4096), (0, 100_000), (5_000_000, 64)):
        assert ceiling.memory_probe(read, written)().nbytes >= written * 0.9


def result_like(op: str, dtype: str, ours_us: float, torch_us: float, compile_us: float) -> bench.Result:
    def made(us: float) -> timing.Timing:
        return timing.Timing(us * 1e-6, (us * 1e-6,))

    baselines = {"torch": made(torch_us), "torch-compile": made(compile_us)}
    return bench.Result(op, f"case-{dtype}", "cpu", dtype, made(ours_us), baselines, 10, 20, 1.0)


def test_means_are_taken_over_cases_then_operators() -> None:
    results = [
        result_like("A", "float32", 60, 120, 30),
        result_like("A", "float32", 10, 80, 900),
        result_like("B", "float32", 100, 50, 1000),
    ]
    assert report.operator_means(results, "torch") == pytest.approx({"A": 4.0, "B": 0.5})
    # The second case of A takes ours too little time for torch.compile to count, whatever torch.compile takes.
    assert report.operator_means(results, "torch-compile") == pytest.approx({"A": 0.5, "B": 10.0})
    lines = "\n".join(bench.summary(results))
    assert "B case-float32: x0.50 of torch" in lines
    assert "A case-float32: x0.50 of torch-compile" in lines, "also where torch.compile takes less than that"
    short = bench.summary([result_like("A", "float32", 10, 80, 900)])
    assert short[-1].split() == ["total", "(mean", "of", "operators)", "-", "-"]  # no call of torch.compile counts


def test_a_run_writes_its_results_as_json_and_names_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    path = tmp_path / "results.json"
    session = bench.run(["RMSNormFwdOp"], case="smollm2-decode", budget=0.01, json_path=path, show=shown.append)
    assert [row["dtype"] for row in json.loads(path.read_text())] == ["float32", "bfloat16", "float16"]
    assert not session.failures
    assert sum("smollm2-decode" in line for line in shown) >= 3

    def wrong(*tensors: Any, **params: Any) -> torch.Tensor:
        return torch.zeros(1, 576, dtype=torch.float64)

    broken = workload("RMSNormFwdOp")
    monkeypatch.setattr("tileops.bench.runner.workload", lambda op: SimpleNamespace(reference=wrong, cold=broken.cold))
    session = bench.run(["RMSNormFwdOp"], case=SMALL, budget=0.01)
    assert not session.results
    assert "RMSNormFwdOp smollm2-decode-float32" in session.failures


def test_pytest_takes_the_benchmarks_of_the_checkout() -> None:
    file = "benchmarks/ops/bench_norm.py"  # one of the files will do: collecting all takes seconds
    options = ("--collect-only", "-qq", "-p", "no:cacheprovider", "--tileops-budget", "1", "--tileops-device", "cpu")
    found = processes.run("-m", "pytest", file, *options, env=environment(), cwd=ROOT)
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"{file}: {len(bench.cases('RMSNormFwdOp')) + len(bench.cases('RMSNormBwdOp'))}\n" in found.stdout


def test_cases_are_chosen_by_the_size_of_their_outputs() -> None:
    small = bench.selected(["AddFwdOp", "SinusoidalFwdOp"], max_output=4096)
    assert {case.op for case in small} == {"AddFwdOp", "SinusoidalFwdOp"}
    assert all(output.nbytes <= 4096 for case in small for output in case.call.outputs.values())
    assert len(small) < len(bench.selected(["AddFwdOp", "SinusoidalFwdOp"]))


def test_baselines_may_agree_on_what_is_no_number() -> None:
    expected = torch.tensor([1.0, float("nan"), float("inf"), 2.0], dtype=torch.float64)
    assert numerics.normalized_error(expected.float(), expected) == 0.0
    for place, value in ((0, float("nan")), (1, 0.0), (2, float("-inf"))):
        wrong = expected.clone()
        wrong[place] = value
        assert not numerics.normalized_error(wrong, expected) < 1.0
    beyond = torch.tensor([1e5, 2.0], dtype=torch.float64)
    assert numerics.normalized_error(beyond.half(), beyond) == 0.0
    assert not numerics.normalized_error(torch.tensor([65504.0, 2.0]).half(), beyond) < 1.0


def test_baselines_that_draw_other_random_numbers_are_timed() -> None:
    runner = bench.Runner(DropoutFwdOp, bench.selected(["DropoutFwdOp"], max_output=4096)[0], budget_s=0.01)
    found, groups, missing = baselines.select(runner, ["torch"])
    assert set(runner.compare(found, groups=groups).baselines) == {"torch"}
    assert not missing
