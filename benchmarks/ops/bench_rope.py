"""Rotary position embeddings against PyTorch, eager and compiled."""

from __future__ import annotations

import pytest

from benchmarks._cases.rope import LONG_ROPE, ROPE, ROPE_LLAMA31, ROPE_NEOX_POSITION_IDS, YARN
from benchmarks.conftest import Options
from tileops import bench


@pytest.mark.parametrize("case", bench.cases(ROPE.op), ids=str)
def test_rope(case: bench.Case, options: Options) -> None:
    runner = bench.Runner(ROPE.op, case, **options.runner)
    implementations, groups, _ = bench.select(runner, ROPE.baselines)
    options.record(runner.compare(implementations, groups=groups))


@pytest.mark.parametrize("case", bench.cases(ROPE_LLAMA31.op), ids=str)
def test_rope_llama31(case: bench.Case, options: Options) -> None:
    runner = bench.Runner(ROPE_LLAMA31.op, case, **options.runner)
    implementations, groups, _ = bench.select(runner, ROPE_LLAMA31.baselines)
    options.record(runner.compare(implementations, groups=groups))


@pytest.mark.parametrize("case", bench.cases(YARN.op), ids=str)
def test_yarn(case: bench.Case, options: Options) -> None:
    runner = bench.Runner(YARN.op, case, **options.runner)
    implementations, groups, _ = bench.select(runner, YARN.baselines)
    options.record(runner.compare(implementations, groups=groups))


@pytest.mark.parametrize("case", bench.cases(LONG_ROPE.op), ids=str)
def test_long_rope(case: bench.Case, options: Options) -> None:
    runner = bench.Runner(LONG_ROPE.op, case, **options.runner)
    implementations, groups, _ = bench.select(runner, LONG_ROPE.baselines)
    options.record(runner.compare(implementations, groups=groups))


@pytest.mark.parametrize("case", bench.cases(ROPE_NEOX_POSITION_IDS.op), ids=str)
def test_rope_neox_position_ids(case: bench.Case, options: Options) -> None:
    runner = bench.Runner(ROPE_NEOX_POSITION_IDS.op, case, **options.runner)
    implementations, groups, _ = bench.select(runner, ROPE_NEOX_POSITION_IDS.baselines)
    options.record(runner.compare(implementations, groups=groups))
