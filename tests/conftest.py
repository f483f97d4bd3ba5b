"""Options and isolation of the whole suite.

``--tileops-device`` chooses where tests run, ``--tileops-target`` which set of kernels serves them. The
kernel cache is a fresh directory for each run (shared by its workers), so no test reads what another run or
version left.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from tileops.testing.options import add_options

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # test modules share helpers as `tests.<package>.<module>`


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The random numbers of a test do not depend on the tests that its worker ran before."""
    if "torch" in sys.modules:
        import torch

        torch.manual_seed(0)


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    if "TILEOPS_CACHE_DIR" not in os.environ:
        # In the controller, before workers start: they inherit it.
        directory = tempfile.mkdtemp(prefix="tileops-tests-")
        os.environ["TILEOPS_CACHE_DIR"] = directory
        config.stash[_cache_key] = directory

    from tileops import backend
    from tileops.workloads import device

    device.set_run_device(config.getoption("--tileops-device"))
    target = config.getoption("--tileops-target")
    if target is not None:
        backend.registered_targets()  # imports the installed backends
        backend.set_default_target(target)


_cache_key = pytest.StashKey[str]()


def pytest_unconfigure(config: pytest.Config) -> None:
    directory = config.stash.get(_cache_key, None)
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)
        os.environ.pop("TILEOPS_CACHE_DIR", None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    from tileops.workloads.device import run_device, run_device_available

    no_cuda = run_device().type != "cuda" or not run_device_available()
    foreign = config.getoption("--tileops-target") not in (None, "builtin")
    for item in items:
        if no_cuda and item.get_closest_marker("cuda_only"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device (--tileops-device)"))
        if foreign and item.get_closest_marker("in_tree_kernels"):
            item.add_marker(pytest.mark.skip(reason="depends on the in-tree kernels (--tileops-target)"))
