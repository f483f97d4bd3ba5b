"""Command-line options of ``pytest --pyargs tileops.testing``, as a pytest plugin.

An installed package registers it (entry point group ``pytest11``), because pytest reads its options before it looks
for the tests. It imports nothing but pytest.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def add_options(parser: pytest.Parser) -> None:
    """Adds the options, once however many plugins and conftest files ask for them."""
    group = parser.getgroup("tileops")
    if any("--tileops-device" in option.names() for option in group.options):
        return
    group.addoption(
        "--tileops-device",
        default=None,
        help="device of the tests: cpu, cuda, cuda:1 (default: cuda where there is one)",
    )
    group.addoption("--tileops-target", default=None, help="target of ops that name none (default: builtin)")
    group.addoption(
        "--tileops-row-limit",
        default="64MiB",
        help="rows of the manifest with more data are left out (default: 64MiB; tileops.testing only)",
    )
