"""Kernels, a cache and timers of the tuner's tests."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tileops import settings
from tileops.autotune import session
from tileops.autotune.measure import Result

sys.path.insert(0, str(Path(__file__).parent / "modules"))  # worker processes import from here too


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Iterator[Path]:
    """Every test has records of its own."""
    from tileops.autotune import policy, record

    monkeypatch.setattr(record, "_stores", {})
    monkeypatch.setattr(record, "_ignored", set())
    monkeypatch.setattr(policy, "_said", set())
    with settings.scope(cache_dir=str(tmp_path / "cache"), tune_storage=None, jit="lazy"):
        yield tmp_path / "cache"


class FakeMeasurer:
    """Takes times from a function instead of a clock.

    Args:
        seconds: the time of a config, or a `Result`.
        noise: what a sample is multiplied with, given its number.
    """

    def __init__(
        self,
        seconds: Callable[[dict[str, Any]], Any],
        noise: Callable[[int], float] = lambda sample: 1.0,
    ) -> None:
        self._seconds = seconds
        self._noise = noise
        self.samples = 0
        self.compiled: list[dict[str, Any]] = []
        self.checked: list[dict[str, Any]] = []
        self.published: list[dict[str, Any]] = []
        self.closed = False
        self.renewed = 0

    def compile(self, configs, limit, budget):
        self.compiled += configs
        return [Result("ok") for _ in configs]

    def check(self, config, limit):
        self.checked.append(config)
        return self._result(config)

    def time(self, config, repeats, limit):
        self.samples += 1
        return self._result(config)

    def _result(self, config) -> Result:
        found = self._seconds(config)
        return found if isinstance(found, Result) else Result("ok", found * self._noise(self.samples))

    def renew(self):
        self.renewed += 1

    @contextmanager
    def exclusive(self):
        yield

    def publish(self, config):
        self.published.append(dict(config))

    def close(self):
        self.closed = True


@pytest.fixture
def fake(monkeypatch) -> type[FakeMeasurer]:
    """With times from a function, a search ends by its points, however long it takes on this machine."""
    ample = {effort: (3600.0, trials) for effort, (_, trials) in session.EFFORTS.items()}
    monkeypatch.setattr(session, "EFFORTS", ample)
    return FakeMeasurer


def noise_of(seed: int, low: float, high: float) -> Callable[[int], float]:
    """Random factors between `low` and `high`."""
    chance = random.Random(seed)
    return lambda sample: chance.uniform(low, high)
