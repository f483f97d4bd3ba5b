"""Attention against PyTorch, eager and compiled."""

from __future__ import annotations

import pytest

from benchmarks._cases.attention import GQA_DENSE
from benchmarks.conftest import Options
from tileops import bench


@pytest.mark.parametrize("case", bench.cases(GQA_DENSE.op), ids=str)
def test_gqa_dense(case: bench.Case, options: Options) -> None:
    runner = bench.Runner(GQA_DENSE.op, case, **options.runner)
    implementations, groups, _ = bench.select(runner, GQA_DENSE.baselines)
    options.record(runner.compare(implementations, groups=groups))
