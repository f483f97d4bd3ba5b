#!/usr/bin/env python3
"""What a small call costs on the host, beside PyTorch: medians of interleaved rounds, so that only ratios count.

python scripts/bench_overhead.py            a table
python scripts/bench_overhead.py --check    exit 1 where a budget is exceeded
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tileops.elementwise import AddFwdOp
from tileops.norm import RMSNormFwdOp

ROUNDS = 41
CALLS = 200


def seconds(call: Callable[[], Any]) -> float:
    """Seconds of one call, over `CALLS` in a row."""
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - start) / CALLS


def interleaved(ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[float, float]:
    """Medians of two calls, in microseconds, timed in turn."""
    for call in (ours, theirs, ours, theirs):
        seconds(call)
    rounds = [(seconds(ours), seconds(theirs)) for _ in range(ROUNDS)]
    return statistics.median(a for a, _ in rounds) * 1e6, statistics.median(b for _, b in rounds) * 1e6


def new_signatures() -> float:
    """Microseconds of a call whose kernel is loaded and whose shape was never seen: the median of a thousand."""
    op, weight = RMSNormFwdOp((8,)), torch.ones(8)
    op(torch.ones(3, 8), weight)
    found = []
    for shape in itertools.product(range(1, 11), repeat=3):
        x = torch.ones(*shape, 8)
        start = time.perf_counter()
        op(x, weight)
        found.append(time.perf_counter() - start)
    return statistics.median(found) * 1e6


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit 1 where a budget is exceeded")
    check = parser.parse_args(arguments).check
    torch.set_num_threads(1)
    x, weight, small = torch.randn(2, 64), torch.randn(64), torch.randn(64)
    norm, add = RMSNormFwdOp((64,), eps=1e-6), AddFwdOp()
    ours, theirs = interleaved(lambda: norm(x, weight), lambda: F.rms_norm(x, (64,), weight, 1e-6))
    rows = [("rms_norm on 2 x 64", ours, "torch", theirs, ours <= min(2.5, theirs))]
    ours, theirs = interleaved(lambda: add(small, weight), lambda: torch.add(small, weight))
    rows.append(("add on 64 elements", ours, "2 x torch", 2 * theirs, ours <= 2 * theirs))
    rows.append(("a new signature", new_signatures(), "budget", 20.0, False))
    rows[-1] = (*rows[-1][:4], rows[-1][1] <= rows[-1][3])
    for name, cost, against, limit, kept in rows:
        print(f"{name:22} {cost:7.2f} us   {against:9} {limit:7.2f} us   {'ok' if kept else 'over'}")
    return int(check and not all(kept for *_, kept in rows))


if __name__ == "__main__":
    sys.exit(main())
