"""Rotary position embeddings against PyTorch, eager and compiled."""

from __future__ import annotations

import pytest

from benchmarks._cases.rope import ROPE, ROPE_NEOX_POSITION_IDS
from benchmarks.conftest import Options
from tileops import bench


@pytest.mark.parametrize("case", bench.cases(ROPE.op), ids=str)
def test_rope(case: bench.Case, options: Options) -> None:
    runner = bench.Runner(ROPE.op, case, **options.runner)
    implementations, groups, _ = bench.select(runner, ROPE.baselines)
    options.record(runner.compare(implementations, groups=groups))


@pytest.mark.parametrize("case", bench.cases(ROPE_NEOX_POSITION_IDS.op), ids=str)
def test_rope_neox_position_ids(case: bench.Case, options: Options) -> None:
    runner = bench.Runner(ROPE_NEOX_POSITION_IDS.op, case, **options.runner)
    implementations, groups, _ = bench.select(runner, ROPE_NEOX_POSITION_IDS.baselines)
    options.record(runner.compare(implementations, groups=groups))
