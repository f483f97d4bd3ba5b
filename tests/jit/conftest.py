"""What the tests of `tileops.jit` share: kernel factories on the import path, and the CPU targets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tileops import jit
from tileops.errors import SettingsError

BODIES = Path(__file__).parent / "bodies"
if str(BODIES) not in sys.path:
    sys.path.insert(0, str(BODIES))


@pytest.fixture(params=["native", "x86-64-v3", "generic"])
def target(request: pytest.FixtureRequest) -> jit.CpuTarget:
    """Each instruction set in turn; all of them run here."""
    try:
        return jit.cpu_target(request.param)
    except SettingsError as error:  # a CPU without AVX2
        pytest.skip(str(error))
