"""Normalisation against PyTorch, eager and compiled."""

from __future__ import annotations

import pytest

from benchmarks._cases.norm import RMS_NORM, RMS_NORM_BWD
from benchmarks.conftest import Options
from tileops import bench


@pytest.mark.parametrize("case", bench.cases(RMS_NORM.op), ids=str)
def test_rms_norm(case: bench.Case, options: Options) -> None:
    runner = bench.Runner(RMS_NORM.op, case, **options.runner)
    implementations, groups, _ = bench.select(runner, RMS_NORM.baselines)
    options.record(runner.compare(implementations, groups=groups))


@pytest.mark.parametrize("case", bench.cases(RMS_NORM_BWD.op), ids=str)
def test_rms_norm_bwd(case: bench.Case, options: Options) -> None:
    runner = bench.Runner(RMS_NORM_BWD.op, case, **options.runner)
    implementations, groups, _ = bench.select(runner, RMS_NORM_BWD.baselines)
    options.record(runner.compare(implementations, groups=groups))
