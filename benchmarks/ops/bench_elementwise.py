"""Elementwise operators against PyTorch, eager and compiled."""

from __future__ import annotations

import pytest

from benchmarks._cases import Registration
from benchmarks._cases.elementwise import OPERATORS
from benchmarks.conftest import Options
from tileops import bench

CASES = [(registered, case) for registered in OPERATORS for case in registered.cases]


@pytest.mark.parametrize(
    ("registered", "case"), CASES, ids=lambda value: str(value) if isinstance(value, bench.Case) else ""
)
def test_elementwise(registered: Registration, case: bench.Case, options: Options) -> None:
    runner = bench.Runner(registered.op, case, **options.runner)
    implementations, groups, _ = bench.select(runner, registered.baselines)
    options.record(runner.compare(implementations, groups=groups))
