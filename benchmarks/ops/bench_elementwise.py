"""Elementwise operators against PyTorch, eager and compiled."""

from __future__ import annotations

import pytest

from benchmarks._cases.elementwise import ADD, SILU_AND_MUL
from benchmarks.conftest import Options
from tileops import bench


@pytest.mark.parametrize("case", bench.cases(ADD.op), ids=str)
def test_add(case: bench.Case, options: Options) -> None:
    runner = bench.Runner(ADD.op, case, **options.runner)
    implementations, groups, _ = bench.select(runner, ADD.baselines)
    options.record(runner.compare(implementations, groups=groups))


@pytest.mark.parametrize("case", bench.cases(SILU_AND_MUL.op), ids=str)
def test_silu_and_mul(case: bench.Case, options: Options) -> None:
    runner = bench.Runner(SILU_AND_MUL.op, case, **options.runner)
    implementations, groups, _ = bench.select(runner, SILU_AND_MUL.baselines)
    options.record(runner.compare(implementations, groups=groups))
