"""Matrix multiplication against PyTorch, eager and compiled."""

from __future__ import annotations

import pytest

from benchmarks._cases.gemm import GEMM
from benchmarks.conftest import Options
from tileops import bench


@pytest.mark.parametrize("case", bench.cases(GEMM.op), ids=str)
def test_gemm(case: bench.Case, options: Options) -> None:
    runner = bench.Runner(GEMM.op, case, **options.runner)
    implementations, groups, _ = bench.select(runner, GEMM.baselines)
    options.record(runner.compare(implementations, groups=groups))
