"""Rotary position embeddings against PyTorch, eager and compiled."""

from __future__ import annotations

import pytest

from benchmarks._cases import Registration, rows
from benchmarks._cases.rope import LONG_ROPE, ROPE, ROPE_LLAMA31, ROPE_NEOX_POSITION_IDS, YARN
from benchmarks.conftest import Options
from tileops import bench


@pytest.mark.parametrize(("operator", "case"), rows(LONG_ROPE, ROPE, ROPE_LLAMA31, ROPE_NEOX_POSITION_IDS, YARN))
def test_rope(operator: Registration, case: bench.Case, options: Options) -> None:
    runner = bench.Runner(operator.op, case, **options.runner)
    implementations, groups, _ = bench.select(runner, operator.baselines)
    options.record(runner.compare(implementations, groups=groups))
