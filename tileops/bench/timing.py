"""Interleaved timing: contenders take turns, so that drifting clocks and bandwidth meet all of them alike."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

#: A sample of a short call repeats it until it lasts about this long, in seconds.
SAMPLE_S = 400e-6
#: Calls slower than this need fewer rounds.
SLOW_CALL_S = 1.0
MIN_ROUNDS = 5
MIN_ROUNDS_SLOW = 3
MAX_ROUNDS = 41
#: Most calls of a sample where calls write their inputs: what a function makes of its own results again and again ends
#: in zeros, subnormal numbers or infinities, which take another time than numbers.
MAX_REWRITES = 16


@dataclass(frozen=True)
class Timing:
    """Seconds of one call of one contender.

    Attributes:
        median: of all rounds.
        samples: one per round.
    """

    median: float
    samples: tuple[float, ...]

    @property
    def microseconds(self) -> float:
        return self.median * 1e6


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keeps the cyclic collector out of a measurement."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def measure(
    calls: Sequence[Callable[[], object]],
    *,
    budget_s: float,
    synchronize: Callable[[], None] = lambda: None,
    restore: Callable[[], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Timing]:
    """Times zero-argument callables in turns: A B C, C B A, A B C, ...

    Every call is warmed up first. The result of a call is dropped before the next one starts, as in a model,
    so the allocator can reuse its memory.

    Args:
        calls: the contenders.
        budget_s: seconds for everything; at least MIN_ROUNDS rounds are measured (MIN_ROUNDS_SLOW where a
            call takes more than a second), however long they take.
        synchronize: waits for the device.
        restore: undoes what calls write into their inputs. It runs before each sample and is not timed; a sample is
            then at most `MAX_REWRITES` calls.
        clock: returns seconds.

    Returns:
        One `Timing` per contender, in order.
    """
    start = clock()
    with no_garbage_collection():
        repeats = [_warm_up(call, synchronize, restore, clock) for call in calls]
        samples: list[list[float]] = [[] for _ in calls]
        slow = False
        while len(samples[0]) < MAX_ROUNDS:
            rounds = len(samples[0])
            enough = rounds >= (MIN_ROUNDS_SLOW if slow else MIN_ROUNDS)
            if enough and (clock() - start) * (rounds + 1) / rounds > budget_s:
                break
            order = range(len(calls)) if rounds % 2 == 0 else range(len(calls) - 1, -1, -1)
            for index in order:
                seconds = _sample(calls[index], repeats[index], synchronize, restore, clock)
                samples[index].append(seconds)
                slow = slow or seconds > SLOW_CALL_S
    return [Timing(statistics.median(item), tuple(item)) for item in samples]


def _sample(
    call: Callable[[], object],
    repeats: int,
    synchronize: Callable[[], None],
    restore: Callable[[], None] | None,
    clock: Callable[[], float],
) -> float:
    if restore is not None:
        restore()
    synchronize()
    start = clock()
    for _ in range(repeats):
        call()
    synchronize()
    return (clock() - start) / repeats


def _warm_up(
    call: Callable[[], object],
    synchronize: Callable[[], None],
    restore: Callable[[], None] | None,
    clock: Callable[[], float],
) -> int:
    """Calls until the time settles; returns how many calls make a sample."""
    _sample(call, 1, synchronize, restore, clock)
    seconds = _sample(call, 1, synchronize, restore, clock)
    if seconds < SLOW_CALL_S / 20:
        seconds = min(seconds, _sample(call, 2, synchronize, restore, clock))
    repeats = max(1, round(SAMPLE_S / max(seconds, 1e-9)))
    return repeats if restore is None else min(repeats, MAX_REWRITES)
