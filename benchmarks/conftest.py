"""Options and output of ``pytest benchmarks/ops/...``: the same cases, Runner and report as ``tileops
bench``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tileops.bench import report
from tileops.bench.runner import DEFAULT_BUDGET_S, Result
from tileops.testing.options import add_options
from tileops.workloads import device

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # modules import each other as benchmarks.<name>

_results = pytest.StashKey[list[Result]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)
    group = parser.getgroup("tileops")
    group.addoption("--tileops-budget", type=float, default=DEFAULT_BUDGET_S, help="seconds for one case")
    group.addoption("--tileops-json", default=None, help="file for the results")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("python_files", "bench_*.py")
    device.set_run_device(config.getoption("--tileops-device"))
    config.stash[_results] = []


@dataclass(frozen=True)
class Options:
    """What the command line says about a run.

    Attributes:
        runner: arguments of every `bench.Runner`.
        record: keeps a result for the report.
    """

    runner: dict[str, Any]
    record: Callable[[Result], None]


@pytest.fixture
def options(request: pytest.FixtureRequest) -> Iterator[Options]:
    option = request.config.getoption
    runner = {
        "device": str(device.run_device()),
        "target": option("--tileops-target"),
        "budget_s": option("--tileops-budget"),
    }
    with torch.inference_mode():
        yield Options(runner, request.config.stash[_results].append)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    results = config.stash[_results]
    if not results:
        return
    terminalreporter.section("benchmarks")
    for line in [*map(report.line, results), *report.summary(results)]:
        terminalreporter.write_line(line)
    path = config.getoption("--tileops-json")
    if path is not None:
        Path(path).write_text(json.dumps([result.to_json() for result in results], indent=1) + "\n")
