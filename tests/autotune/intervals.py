"""Two processes that time on one device, and when each of them did."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from tests.store.helpers import environment

_CODE = """
import time
from tileops.jit.store import default_store
for _ in range(10):
    with default_store().device_lock("cpu-0"):
        start = time.monotonic()
        time.sleep(0.01)
        print(start, time.monotonic())
"""


def overlapping(cache: Path) -> list[tuple[float, float]]:
    """Starts that lie before the end of the interval that came first."""
    env = environment({"TILEOPS_CACHE_DIR": str(cache)})
    processes = [
        subprocess.Popen([sys.executable, "-c", _CODE], env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    spans = []
    for process in processes:
        spans += [tuple(map(float, line.split())) for line in process.communicate(timeout=240)[0].splitlines()]
    assert len(spans) == 20
    spans.sort()
    return [(end, start) for (_, end), (start, _) in pairwise(spans) if start < end]
