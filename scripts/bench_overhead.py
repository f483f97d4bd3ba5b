#!/usr/bin/env python3
"""What a small call costs on the host, beside PyTorch: medians of interleaved rounds, so that only ratios count.

python scripts/bench_overhead.py            a table
python scripts/bench_overhead.py --check    exit 1 where a budget is exceeded
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tileops.attention import GQADenseFwdOp
from tileops.elementwise import AddFwdOp, SiluAndMulFwdOp
from tileops.gemm import GemmFwdOp
from tileops.norm import RMSNormFwdOp
from tileops.ops.base import Op
from tileops.rope import RoPEFwdOp

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


def new_shapes(op: Op, tensors: Callable[[int], tuple[torch.Tensor, ...]]) -> float:
    """Microseconds of a call whose kernel is loaded and whose shape was never seen: the median of 300 in a row.

    Args:
        op: the operator.
        tensors: makes those of call number n.
    """
    for number in (301, 302, 65, 17, 5, 3, 2, 1):  # loads the kernels
        op(*tensors(number))
    op._reset_plans()
    found = []
    for call in [tensors(number) for number in random.Random(1).sample(range(1, 301), 300)]:
        start = time.perf_counter()
        op(*call)
        found.append(time.perf_counter() - start)
    return statistics.median(found) * 1e6


def growing() -> dict[str, float]:
    """`new_shapes` of an operator of each family: rows of a ragged batch, lengths of a growing cache."""
    weight, gain = torch.ones(16, 32), torch.ones(64)
    cache = torch.ones(1, 400, 2, 32)
    return {
        "add": new_shapes(AddFwdOp(), lambda n: (torch.ones(n, 8), torch.ones(n, 8))),
        "rms_norm": new_shapes(RMSNormFwdOp((64,)), lambda n: (torch.ones(n, 64), gain)),
        "gemm": new_shapes(GemmFwdOp(), lambda n: (torch.ones(n, 32), weight)),
        "rope": new_shapes(RoPEFwdOp(), lambda n: (torch.ones(1, n, 2, 32),)),
        "gqa_dense": new_shapes(GQADenseFwdOp(), lambda n: (torch.ones(1, 1, 4, 32), cache[:, :n], cache[:, :n])),
        "silu_and_mul": new_shapes(SiluAndMulFwdOp(), lambda n: (torch.ones(n, 64),)),
    }


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
    ours, theirs = interleaved(lambda: add(small, small), lambda: torch.add(small, small))
    rows.append(("add of a tensor to itself", ours, "2 x torch", 2 * theirs, ours <= 2 * theirs))
    rows += [(f"a new shape: {name}", cost, "budget", 20.0, cost <= 20.0) for name, cost in growing().items()]
    for name, cost, against, limit, kept in rows:
        print(f"{name:28} {cost:7.2f} us   {against:9} {limit:7.2f} us   {'ok' if kept else 'over'}")
    return int(check and not all(kept for *_, kept in rows))


if __name__ == "__main__":
    sys.exit(main())
