"""Operators of mixtures of experts against PyTorch, eager and compiled."""

from __future__ import annotations

import pytest

from benchmarks._cases.moe import SHARED_EXPERT_MLP
from benchmarks.conftest import Options
from tileops import bench


@pytest.mark.parametrize("case", bench.cases(SHARED_EXPERT_MLP.op), ids=str)
def test_shared_expert_mlp(case: bench.Case, options: Options) -> None:
    runner = bench.Runner(SHARED_EXPERT_MLP.op, case, **options.runner)
    implementations, groups, _ = bench.select(runner, SHARED_EXPERT_MLP.baselines)
    options.record(runner.compare(implementations, groups=groups))
