"""Prints what compiling, loading, calling and launching cost here; run it alone: ``python tests/jit/measure.py``.

The budgets: first kernel of a process 0.8 s, each further elementwise kernel 0.3 s, a warm first call 20 ms.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

BODIES = str(Path(__file__).parent / "bodies")


def _nanoseconds(function: Callable[[], object], repeats: int) -> float:
    """Median over 9 rounds of the time of one call, the loop's own time subtracted."""

    def rounds(body: Callable[[], object]) -> float:
        times = []
        for _ in range(9):
            start = time.perf_counter_ns()
            for _ in range(repeats):
                body()
            times.append((time.perf_counter_ns() - start) / repeats)
        return statistics.median(times)

    return rounds(function) - rounds(lambda: None)


def _in_process() -> None:
    start = time.perf_counter()
    import torch

    torch_at = time.perf_counter()
    from tileops import jit
    from tileops.jit import Program, parallel

    jit_at = time.perf_counter()

    def timed(label: str, program: Program) -> jit.Entry:
        begin = time.perf_counter()
        entry = jit.get_entry(program)
        print(f"  {label:<24} {1e3 * (time.perf_counter() - begin):7.1f} ms")
        return entry

    print(f"  import torch {torch_at - start:.2f} s, import tileops.jit {1e3 * (jit_at - torch_at):.0f} ms")
    timed("first: row sums", Program.of("jit_test_bodies:row_sums", ["ptr", "ptr", "i64"], dtype="bf16"))
    args = ["f32", "ptr", "ptr", "ptr"]
    timed("silu * y, 4 vectors", Program.of("jit_test_bodies:silu_and_mul", args, dtype="f32", unroll=4))
    gelu = Program.of("jit_test_bodies:maths", ["ptr", "ptr", "i64"], names=("gelu",))
    timed("gelu", gelu)
    args = ["i64", "i64", "ptr", "i64", "ptr", "ptr", "i64"]
    timed("6 x 4 GEMM tile", Program.of("jit_test_bodies:matmul", args, rows=6, vectors=4, dtype="f32"))
    launch = timed("one store", Program.of("jit_test_bodies:numbered", ["ptr"], number=1)).launch
    seconds = 1e3 * jit.stats().load_seconds
    stats = jit.stats()
    print(f"  {stats.compiled} compiled, {stats.loaded} loaded from the store; loading took {seconds:.1f} ms in all")
    print(f"  numba imported: {'numba' in sys.modules}")
    out = torch.zeros(64, dtype=torch.int64)
    address, limit = out.data_ptr(), parallel.limit(1e6)
    print(f"  call, GIL held         {_nanoseconds(lambda: launch(0, 1, address), 100_000):7.0f} ns")
    print(f"  call, GIL released     {_nanoseconds(lambda: launch(1, 1, address), 100_000):7.0f} ns")
    print(
        f"  launch on {parallel.team(limit)} threads    {_nanoseconds(lambda: launch(2, 2, address), 20_000):7.0f} ns"
    )
    print(f"  team(limit)            {_nanoseconds(lambda: parallel.team(limit), 100_000):7.0f} ns")
    print(f"  {parallel.launcher()}")


def _main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        env = {**os.environ, "TILEOPS_CACHE_DIR": cache, "PYTHONPATH": BODIES}
        for label in ("cold store", "warm store"):
            print(label, flush=True)
            subprocess.run([sys.executable, __file__, "--inner"], env=env, check=True)


if __name__ == "__main__":
    if "--inner" in sys.argv:
        _in_process()
    else:
        _main()
