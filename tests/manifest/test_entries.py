"""The manifest itself: it loads and plans, rows cover what they must, and nothing heavy is imported."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tileops.manifest import load_all
from tileops.manifest.branch import Branch
from tileops.manifest.branch_checks import branches
from tileops.manifest.plan import plan_branch
from tileops.manifest.workload import cases

SEVEN = {
    "AddFwdOp": "elementwise",
    "GQADenseFwdOp": "attention",
    "GemmFwdOp": "gemm",
    "RMSNormFwdOp": "norm",
    "RoPEFwdOp": "rope",
    "RoPENeoxPositionIdsFwdOp": "rope",
    "SiluAndMulFwdOp": "elementwise",
}


def test_the_seven_operators_are_implemented() -> None:
    entries = load_all()
    assert {name: entries[name].family for name in SEVEN} == SEVEN
    assert all(entries[name].implemented for name in SEVEN)


def test_everything_plans(record_property: Callable[[str, object], None]) -> None:
    start = time.perf_counter()
    planned = 0
    for entry in load_all().values():
        for branch in branches(entry):
            assert isinstance(branch, Branch)
            plan_branch(branch)
            planned += 1
    record_property("seconds", time.perf_counter() - start)
    assert planned >= 20


@pytest.mark.parametrize("name", SEVEN)
def test_rows_cover_the_float_dtypes(name: str) -> None:
    calls = cases(load_all()[name])
    # A sweep names bytes, so its shape differs by the width of the dtype; integers have rows of their own.
    ordinary = [
        call
        for call in calls
        if call.indices["T"] in ("float32", "bfloat16", "float16") and not call.label.startswith("sweep-")
    ]
    by_label: dict[str, set[str]] = {}
    for call in ordinary:
        by_label.setdefault(call.label, set()).add(call.indices["T"])
    assert len(by_label) >= 8
    assert all(dtypes == {"float32", "bfloat16", "float16"} for dtypes in by_label.values())
    assert all(sum(item.nbytes for item in call.inputs.values()) < 1 << 30 for call in calls)


def test_gemm_rows_are_the_models_shapes() -> None:
    shapes = {tuple(call.indices[name] for name in "MNK") for call in cases(load_all()["GemmFwdOp"])}
    small = [(960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576)]
    large = [(4096, 4096), (14336, 4096), (6144, 4096), (4096, 14336)]
    assert {(m, n, k) for m in (1, 512) for n, k in small} <= shapes
    assert {(m, n, k) for m in (1, 16, 512) for n, k in large} <= shapes


def test_attention_rows_decode_and_prefill() -> None:
    found = {(call.indices["S_q"] == 1, call.indices["S_kv"]) for call in cases(load_all()["GQADenseFwdOp"])}
    assert {(True, 1024), (True, 4096), (False, 1024), (False, 4096)} <= found


def test_reading_the_manifest_imports_neither_torch_nor_numba() -> None:
    code = (
        "import sys\n"
        "from tileops.manifest import load_all, validate\n"
        "from tileops.manifest.workload import cases\n"
        "for entry in load_all().values():\n"
        "    for call in cases(entry):\n"
        "        call.roofline()\n"
        "assert validate.main(['--static']) == 0\n"
        "print(sorted({'torch', 'numba', 'llvmlite', 'optuna'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
