"""Workload rows: case ids, what a row must give, generated tensors, and rows that do not make a call."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.manifest.helpers import GROUPED, base, entry, findings, simple
from tileops.manifest.workload import Call, RowError, cases, instantiate

ROOT = Path(__file__).resolve().parents[2]


def rows(change: Callable[[list[dict[str, Any]]], None]) -> list[Call]:
    fields = base()
    change(fields["workloads"])
    return cases(entry(fields))


def test_a_row_makes_one_call_per_dtype_case() -> None:
    first, second, third = cases(entry(base()))
    assert [call.case_id for call in (first, second, third)] == [
        "small-float16",
        "small-float32",
        "biased-float32",
    ]
    assert first.inputs["a"].shape == (5, 8)
    assert first.inputs["ids"].values.tolist() == [0, 1, 2, 0, 1]
    assert first.inputs["ids"].values.dtype == np.int32
    assert first.inputs["b"].shape == (8, 8)
    assert "bias" not in first.inputs
    assert third.inputs["a"].shape == (8, 8)
    assert third.params == {"transposed": True}
    assert third.values == {"transposed": True, "mode": "sum", "groups": 1, "limit": None, "inplace": False}
    assert third.indices["M"] == 8
    assert third.outputs["norm"].shape == (4,)
    assert list(third.inputs) == ["a", "b", "ids", "bias"]
    assert third.forward_order == ("a", "b", "ids", "bias")


def test_dtype_parameters_end_the_case_id() -> None:
    toy = entry(
        simple(
            """
            forall: {N: Dim, T: "DType[float16]", U: "DType[int32]"}
            params: {out_dtype: {type: "float16 | float32 | None", default: null}, acc: {type: float32}}
            inputs: {x: {dtype: T, shape: "[N]"}, y: {dtype: U, shape: "[N]"}}
            outputs: {output: {dtype: "coalesce_dtype(out_dtype, T)", shape: "[N]"}}
            """,
            "[{N: 1, acc: float32, out_dtype: float32, dtype_cases: [{U: int32, T: float16}], label: a},"
            " {N: 1, acc: float32, dtype_cases: [{U: int32, T: float16}], label: a}]",
        )
    )
    assert [call.case_id for call in cases(toy)] == [
        "a-float16-int32-float32-float32",
        "a-float16-int32-float32",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r[0].pop("N"), "workloads[0]: row misses N, which this branch uses"),
        (
            lambda r: r[0].update(M=3),
            "workloads[0].M: row gives irrelevant M; a generator determines it, remove it",
        ),
        (lambda r: r[0].update(Z=3), "workloads[0]: unknown key 'Z'"),
        (lambda r: r[0].update(N=-1), "workloads[0].N: expected a non-negative integer, got -1"),
        (lambda r: r[0].update(N=2.5), "workloads[0].N: expected an integer, got 2.5"),
        (lambda r: r[0].update(label="a b"), "workloads[0].label: expected 1 to 24 characters"),
        (lambda r: r[0].update(label="a" * 25), "workloads[0].label: expected 1 to 24 characters"),
        (
            lambda r: r[0].pop("label"),
            "workloads[0].label: expected 1 to 24 characters of A-Za-z0-9._-, got None",
        ),
        (lambda r: r[0].pop("dtype_cases"), "workloads[0].dtype_cases: row misses dtype_cases"),
        (lambda r: r[0].update(dtype_cases=[]), "workloads[0].dtype_cases: row misses dtype_cases"),
        (
            lambda r: r[0].update(dtype_cases=[{"T": "int8"}]),
            "dtype_cases[0]: T ranges over float16, float32",
        ),
        (lambda r: r[0].update(dtype_cases=[{"U": "float16"}]), "dtype_cases[0]: expected a mapping over T"),
        (
            lambda r: r[0].update(some=["a"]),
            "some: 'a' is not declared optional: true; such tensors are bias",
        ),
        (lambda r: r[0].update(some=["bias", "bias"]), "some: a tensor is listed twice"),
        (
            lambda r: r[0].update(groups=3),
            "the call is refused: shape_rules[0]",
        ),
        (lambda r: r[0].update(limit=9), "shape_rules[1]"),
        (lambda r: r[0].update(mode="max"), "workloads[0].mode: expected one of 'sum', 'mean', got 'max'"),
        (
            lambda r: r[0].update(seq_lens=[-1]),
            "inputs.ids.values: in 'packed_positions(seq_lens)': lengths must not",
        ),
        (
            lambda r: r[0].update(seq_lens=[200]),
            "requires 'in_range(0, 100)' fails on the generated values of ids",
        ),
        (lambda r: r[0].update(seq_lens="range(3)"), "seq_lens: expected a list or a call such as"),
        (lambda r: r[0].update(seq_lens="repeat(N, 2)"), "seq_lens: expected a list or a call such as"),
        (lambda r: r[0].update(seq_lens="repeat(2"), "seq_lens: in 'repeat(2'"),
        (lambda r: r[0].update(seq_lens="balanced_sizes(4, 0)"), "balanced_sizes needs a positive count"),
        (lambda r: r.insert(0, 3), "workloads[0]: a row is a mapping, got 3"),
    ],
)
def test_rows_that_make_no_call(change: Callable[[list[dict[str, Any]]], None], message: str) -> None:
    with pytest.raises(RowError) as caught:
        rows(change)
    assert message in str(caught.value)


def test_irrelevant_where_a_guard_folds() -> None:
    toy = entry(
        simple(
            """
            forall: {N: Dim, P: Dim, T: "DType[float16]"}
            params: {flag: {type: bool, default: false}}
            inputs: {x: {dtype: T, shape: "[N]"}, y: {dtype: T, shape: "[P]", optional: "flag"}}
            outputs: {output: {dtype: T, shape: "[N]"}}
            shape_rules: ["not flag or P >= N"]
            """,
            "[{N: 2, dtype_cases: [{T: float16}], label: a},"
            " {N: 2, P: 3, flag: true, dtype_cases: [{T: float16}], label: b}]",
        )
    )
    assert [list(call.inputs) for call in cases(toy)] == [["x"], ["x", "y"]]


def test_rows_that_no_dtype_index_concerns() -> None:
    toy = entry(
        simple('forall: {N: Dim}\ninputs: {x: {dtype: float32, shape: "[N]"}}\noutputs: {}', "[{N: 2, label: a}]")
    )
    assert [call.case_id for call in instantiate(toy, 0)] == ["a"]


def test_values_are_the_same_in_every_process() -> None:
    code = (
        "from tests.manifest.helpers import entry, simple\n"
        "from tileops.manifest.workload import cases\n"
        "toy = entry(simple('''\n"
        "forall: {B: Dim, W: Dim, NP: Dim}\n"
        "inputs:\n"
        '  pages: {dtype: float32, shape: "[NP]"}\n'
        '  table: {dtype: int32, shape: "[B, W]", values: "paged_block_table(B, W, NP)"}\n'
        "outputs: {}\n"
        "''', '[{B: 3, W: 4, NP: 20, label: a}]'))\n"
        "print(cases(toy)[0].inputs['table'].values.tolist())\n"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "PATH": ""},
        ).stdout
        for seed in ("0", "1")
    }
    assert len(seen) == 1


def test_rows_of_one_label_may_differ_in_a_dtype_parameter() -> None:
    fields = base(GROUPED)
    first = fields["workloads"][0]
    fields["workloads"].append({**first, "out_dtype": "float32"})
    assert findings(fields) == []
    fields["workloads"][-1]["padding"] = 1
    assert [text.partition(":")[0] for text in findings(fields)] == ["workloads[2].label"]
