"""Operators of mixtures of experts against PyTorch, eager and compiled."""

from __future__ import annotations

import pytest

from benchmarks._cases import Registration, rows
from benchmarks._cases.moe import SHARED_EXPERT_MLP
from benchmarks.conftest import Options
from tileops import bench


@pytest.mark.parametrize(("operator", "case"), rows(SHARED_EXPERT_MLP))
def test_moe(operator: Registration, case: bench.Case, options: Options) -> None:
    runner = bench.Runner(operator.op, case, **options.runner)
    implementations, groups, _ = bench.select(runner, operator.baselines)
    options.record(runner.compare(implementations, groups=groups))
