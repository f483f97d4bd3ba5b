"""What tuning gains: every case of an operator is tuned, then default and choice are measured again, interleaved.

    python benchmarks/tuning_gains.py GemmFwdOp --cases 12 --budget 60

Run it on a quiet machine. Nothing is written to the user's cache. Cases whose default takes 50 ms or more are left out.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections import Counter
from statistics import median

from tileops import settings
from tileops.autotune import tune
from tileops.autotune.measure import ProcessMeasurer
from tileops.autotune.problem import Problem, record_key
from tileops.autotune.report import KernelReport
from tileops.errors import TileOpsError
from tileops.jit.store import default_store
from tileops.ops.planned import RefusedCall
from tileops.ops.warming import planned

LONGEST_SECONDS = 0.05
ROUNDS = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ops", nargs="+", metavar="OP", help="operators, as `tileops ops` lists them")
    parser.add_argument("--cases", type=_positive, default=12, help="tuning problems of each operator (default: 12)")
    parser.add_argument("--match", default="", help="only cases whose id contains this")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for each of them (default: 60)")
    options = parser.parse_args()
    ratios: list[float] = []
    left_out: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as cache, settings.scope(cache_dir=cache):
        try:
            for op in options.ops:
                ratios += gains(op, options.cases, options.match, options.budget, left_out)
        except TileOpsError as error:
            raise SystemExit(f"error: {error}") from None
    for reason, count in left_out.items():
        print(f"{count} left out: {reason}")
    if not ratios:
        raise SystemExit("error: no case was tuned; `tileops show OP` lists the cases of an operator")
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"{len(ratios)} cases: geometric mean {mean:.3f}x, least {min(ratios):.3f}x")


def gains(op: str, cases: int, match: str, budget: float, left_out: Counter[str]) -> list[float]:
    """Tunes the first `cases` problems of an operator that can be measured; time of the default over time of the choice
    of each. `left_out` counts the others by reason.
    """
    ratios: list[float] = []
    done: set[str] = set()
    for name, call in planned([op]):
        if len(ratios) == cases:
            break
        if match not in call.case_id:
            continue
        if isinstance(call, RefusedCall):
            left_out[f"{name}: no kernel serves them"] += 1
            continue
        if call.kernel.tile_space is None:
            left_out[f"{name}: {call.kernel.__qualname__} has no tile parameters"] += 1
            continue
        problem = record_key(call.kernel, call.call).digest
        if problem in done:
            continue
        done.add(problem)
        (result,) = tune(call.kernel, call.call, op=name, budget=budget).kernels
        if not result.persisted:
            left_out[f"{name}: {result.note}"] += 1
            continue
        if result.default_seconds >= LONGEST_SECONDS:
            left_out[f"{name}: the default takes {LONGEST_SECONDS * 1e3:g} ms or more"] += 1
            continue
        ratios.append(again(call.kernel, call.call, result))
        print(
            f"{name:16} {call.case_id:36} {result.default_seconds * 1e6:9.1f} us  {ratios[-1]:5.2f}x  "
            f"{result.near_best:2} of {result.outcomes.get('ok', 0):2} within 5 %  {result.seconds:4.1f} s  "
            f"{dict(result.best) if result.best != result.default else 'default'}",
            flush=True,
        )
    return ratios


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def again(kernel: type, call: object, result: KernelReport) -> float:
    """Time of the default over time of the choice, from rounds of both."""
    if result.best == result.default:
        return 1.0
    measurer = ProcessMeasurer(Problem.of(kernel, call), default_store(), jobs=1)
    try:
        sides = [dict(result.default), dict(result.best)]
        repeats = max(1, int(1e-3 / result.default_seconds))
        times: list[list[float]] = [[], []]
        for side in sides:
            measurer.check(side, 60.0)
        with measurer.exclusive():
            for turn in range(ROUNDS):
                for i in (0, 1) if turn % 2 else (1, 0):
                    times[i].append(measurer.time(sides[i], repeats, 60.0).seconds)
        return median(times[0]) / median(times[1])
    finally:
        measurer.close()


if __name__ == "__main__":
    main()
