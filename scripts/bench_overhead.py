#!/usr/bin/env python3
"""What a small call costs on the host, beside PyTorch: medians of interleaved rounds, so that only ratios count.

python scripts/bench_overhead.py            a table
python scripts/bench_overhead.py --check    exit 1 where a budget is exceeded
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from six_inputs import SumOfSixFwdOp, reference

from tileops import settings
from tileops.attention import GQADenseFwdOp
from tileops.elementwise import AddFwdOp, SiluAndMulFwdOp
from tileops.gemm import GemmFwdOp
from tileops.jit.cpu import _torch_tensors
from tileops.moe import SharedExpertMLPFwdOp
from tileops.norm import RMSNormFwdOp
from tileops.ops.base import Op
from tileops.rope import RoPEFwdOp

ROUNDS = 41
CALLS = 200
SHAPES = 300
OPERATORS = 5
#: Microseconds: of a call of a new signature whose kernel is loaded, its kernel's own time aside; of six inputs.
NEW_SHAPE = 20.0
SIX_INPUTS = 5.0
TINY_NORM = 2.5

Tensors = Callable[[int], tuple[torch.Tensor, ...]]


class Row(NamedTuple):
    """A line of the table, in microseconds.

    Attributes:
        name: what was called.
        cost: what it cost on the host.
        against: what it is held to.
        limit: how much that is.
        note: what else was measured.
    """

    name: str
    cost: float
    against: str
    limit: float
    note: str = ""

    @property
    def kept(self) -> bool:
        return self.cost <= self.limit


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


@contextmanager
def kernels_timed(op: Op) -> Iterator[list[float]]:
    """Inside the block the kernels that `op` holds add the seconds that they take to the one item of the list: those of
    operators that are made there, which launch them from Python.
    """
    spent = [0.0]
    entries = {id(entry): entry for kernel in op.iter_kernels() for entry in kernel.entries.values()}.values()
    launches = [(entry, entry.launch) for entry in entries]
    for entry, launch in launches:

        def timed(*arguments: Any, launch: Callable[..., None] = launch) -> None:
            start = time.perf_counter()
            launch(*arguments)
            spent[0] += time.perf_counter() - start

        entry.launch = timed
    try:
        with mock.patch.object(_torch_tensors, "functions", return_value=None):
            yield spent
    finally:
        for entry, launch in launches:
            entry.launch = launch


def new_shapes(make: Callable[[], Op], tensors: Tensors) -> tuple[float, float]:
    """Microseconds of a call whose kernel is loaded and whose shape its operator never saw, without the kernel's own
    time, and of the kernel: medians over 300 shapes in random order, each the median of a few operators.

    Args:
        make: makes the operator.
        tensors: makes those of call number n.
    """
    numbers = random.Random(1).sample(range(1, SHAPES + 1), SHAPES)
    calls = [tensors(number) for number in numbers]

    def known() -> Op:
        """An operator that has met every kind of call, and none of the signatures."""
        op = make()
        for call in calls[::7]:
            op(*call)
        op._reset_plans()
        return op

    totals: list[list[float]] = [[] for _ in calls]
    kernels: list[list[float]] = [[] for _ in calls]
    for _ in range(OPERATORS):
        op = known()
        for total, call in zip(totals, calls, strict=True):
            start = time.perf_counter()
            op(*call)
            total.append(time.perf_counter() - start)
        with kernels_timed(op) as spent:
            op = known()
            for kernel, call in zip(kernels, calls, strict=True):
                spent[0] = 0.0
                op(*call)
                kernel.append(spent[0])
    own = [statistics.median(found) for found in kernels]
    host = [statistics.median(found) - kernel for found, kernel in zip(totals, own, strict=True)]
    return statistics.median(host) * 1e6, statistics.median(own) * 1e6


def growing() -> dict[str, tuple[Callable[[], Op], Tensors]]:
    """An operator of each family: rows of a ragged batch, lengths of a growing cache and of prompts."""
    weight, gain = torch.ones(16, 32), torch.ones(64)
    cache, prompts = torch.ones(1, 400, 2, 32), torch.ones(1, 400, 4, 32)
    return {
        "add": (AddFwdOp, lambda n: (torch.ones(n, 8), torch.ones(n, 8))),
        "rms_norm": (lambda: RMSNormFwdOp((64,)), lambda n: (torch.ones(n, 64), gain)),
        "gemm": (GemmFwdOp, lambda n: (torch.ones(n, 32), weight)),
        "gemm, all sizes": (GemmFwdOp, lambda n: (torch.ones(n, 331 - n), torch.ones(5 + 7 * n % 100, 331 - n))),
        "rope": (RoPEFwdOp, lambda n: (torch.ones(1, n, 2, 32),)),
        "gqa_dense, one query": (GQADenseFwdOp, lambda n: (torch.ones(1, 1, 4, 32), cache[:, :n], cache[:, :n])),
        "gqa_dense, prompts": (GQADenseFwdOp, lambda n: (prompts[:, :n], cache[:, :n], cache[:, :n])),
        "silu_and_mul": (SiluAndMulFwdOp, lambda n: (torch.ones(n, 64),)),
    }


def repeated() -> Iterator[Row]:
    """Calls like the last one."""
    x, weight, small = torch.randn(2, 64), torch.randn(64), torch.randn(64)
    norm, add = RMSNormFwdOp((64,), eps=1e-6), AddFwdOp()
    ours, theirs = interleaved(lambda: norm(x, weight), lambda: F.rms_norm(x, (64,), weight, 1e-6))
    yield Row("rms_norm on 2 x 64", ours, "2.5 us, torch", min(TINY_NORM, theirs), f"torch {theirs:.2f}")
    ours, theirs = interleaved(lambda: add(small, weight), lambda: torch.add(small, weight))
    yield Row("add on 64 elements", ours, "2 x torch", 2 * theirs)
    ours, theirs = interleaved(lambda: add(small, small), lambda: torch.add(small, small))
    yield Row("add of a tensor to itself", ours, "2 x torch", 2 * theirs)
    six, tensors = SumOfSixFwdOp(), [torch.randn(64) for _ in range(6)]
    if not torch.allclose(six(*tensors), reference(*tensors), atol=1e-5):
        raise AssertionError("the sum of six tensors is wrong")
    ours, theirs = interleaved(lambda: six(*tensors), lambda: reference(*tensors))
    yield Row("six inputs of 64 elements", ours, "budget", SIX_INPUTS, f"torch {theirs:.2f}")
    mlp, row = SharedExpertMLPFwdOp(), torch.randn(1, 32)
    up, down = torch.randn(64, 32), torch.randn(32, 32)
    ours, theirs = interleaved(lambda: mlp(row, up, down), lambda: mlp.forward(row, up, down))
    yield Row("shared expert MLP, 3 stages", ours - theirs, "budget", NEW_SHAPE, f"its stages {theirs:.2f}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit 1 where a budget is exceeded")
    check = parser.parse_args(arguments).check
    torch.set_num_threads(1)
    print(f"load {', '.join(f'{load:.2f}' for load in os.getloadavg())} on {os.cpu_count()} CPUs; microseconds")
    # Tuning records of other programs would have every new call look for its own.
    with tempfile.TemporaryDirectory() as folder, settings.scope(cache_dir=folder):
        rows = list(repeated())
        for name, (make, tensors) in growing().items():
            host, kernel = new_shapes(make, tensors)
            rows.append(Row(f"new shape: {name}", host, "budget", NEW_SHAPE, f"kernel {kernel:.2f}"))
    for row in rows:
        verdict = "ok" if row.kept else "over"
        print(f"{row.name:32} {row.cost:7.2f}   {row.against:13} {row.limit:7.2f}   {verdict:4}   {row.note}")
    return int(check and not all(row.kept for row in rows))


if __name__ == "__main__":
    sys.exit(main())
