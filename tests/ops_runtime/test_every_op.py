"""The suite that any target has to pass, on the kernels of this package."""

from __future__ import annotations

import pytest

from tileops.testing.conftest import device, pytest_generate_tests, target
from tileops.testing.test_calls import *  # noqa: F403

__all__ = ["device", "pytest_generate_tests", "target"]
pytestmark = pytest.mark.in_tree_kernels
