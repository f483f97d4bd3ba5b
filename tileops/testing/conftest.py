"""Options of ``pytest --pyargs tileops.testing``."""

from __future__ import annotations

import pytest
import torch

from tileops import backend
from tileops.settings import parse_size
from tileops.testing import calls
from tileops.testing.options import add_options
from tileops.workloads.device import run_device, set_run_device


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def selected_target(config: pytest.Config) -> str:
    """The target under test."""
    return config.getoption("--tileops-target") or backend.BUILTIN


def pytest_configure(config: pytest.Config) -> None:
    set_run_device(config.getoption("--tileops-device"))
    target = selected_target(config)
    if target not in backend.registered_targets():  # imports the installed backends
        failed = "".join(f"\n  {name}: {error}" for name, error in backend.load_failures().items())
        raise pytest.UsageError(
            f"--tileops-target={target}: there are {', '.join(backend.registered_targets())}"
            + (f"; these did not load:{failed}" if failed else "")
        )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        names = calls.operators(selected_target(metafunc.config))
        metafunc.parametrize("name", names)


@pytest.fixture
def target(request: pytest.FixtureRequest) -> str:
    """The target under test."""
    return selected_target(request.config)


@pytest.fixture
def device() -> torch.device:
    """The device under test."""
    return run_device()


@pytest.fixture
def row_limit(request: pytest.FixtureRequest) -> int:
    """Bytes of the largest row that runs."""
    return parse_size(request.config.getoption("--tileops-row-limit"))


@pytest.fixture
def thorough() -> bool:
    """Whether an operator is called in every dtype, or in one."""
    return True
