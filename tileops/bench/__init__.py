"""Benchmarks: an operator against what one would otherwise use, checked first, then timed in turns.

from tileops import bench

for case in bench.cases(RMSNormFwdOp):
    result = bench.Runner(RMSNormFwdOp, case).compare({"torch": lambda x, w: F.rms_norm(x, ...)})

bench.run(["RMSNormFwdOp"], against=["torch", "torch-compile"], show=print)
"""

from __future__ import annotations

from tileops.bench.baselines import registered, select
from tileops.bench.case import Case, cases
from tileops.bench.report import summary
from tileops.bench.runner import Implementation, Result, Runner, WrongResultError
from tileops.bench.session import Session, run, selected

__all__ = [
    "Case",
    "Implementation",
    "Result",
    "Runner",
    "Session",
    "WrongResultError",
    "cases",
    "registered",
    "run",
    "select",
    "selected",
    "summary",
]
