"""Costs and rows of whole families: sizes that the sweeps name, identities, and windows against counting."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.manifest.helpers import entry
from tileops.manifest import load_all, load_entry
from tileops.manifest.primitives.general import pool_out
from tileops.manifest.workload import Call, cases
from tileops.perf.formulas.pool import window_elements

FLOATS = {"float32", "bfloat16", "float16"}
SWEPT = [name for name, one in load_all().items() if one.family in ("elementwise", "rope") and name.endswith("FwdOp")]


def one_case(name: str, **row: object) -> Call:
    """The call of a row that the entry does not have."""
    fields = {**load_entry(name).raw, "status": "spec-only", "workloads": [{**row, "label": "a"}]}
    return cases(entry(fields, name, "a.yaml"))[0]


@pytest.mark.parametrize("name", SWEPT)
def test_outputs_of_a_sweep_have_the_size_that_it_names(name: str) -> None:
    seen: dict[str, set[str]] = {}
    for call in cases(load_entry(name)):
        if not call.label.startswith("sweep-"):
            continue
        number, unit = call.label.split("-")[1][:-3], call.label.split("-")[1][-3:]
        (output,) = call.outputs.values()
        assert output.nbytes == int(number) << {"KiB": 10, "MiB": 20}[unit], call.case_id
        dtype = next((item.dtype for item in call.inputs.values() if item.dtype != "bool"), output.dtype)
        seen.setdefault(f"{number} {unit}", set()).add(dtype)
    assert set(seen) == {"4 KiB", "1 MiB", "16 MiB"}
    assert all(dtypes in (FLOATS, {"int32"}) for dtypes in seen.values())


@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 5), st.integers(0, 2), st.integers(1, 3), st.booleans())
def test_window_elements_are_counted(
    length: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool
) -> None:
    padding = min(padding, kernel // 2)
    if length + 2 * padding < dilation * (kernel - 1) + 1:
        return
    windows = pool_out(length, kernel, stride, padding, dilation, ceil_mode)
    covered = [
        position
        for window in range(windows)
        for tap in range(kernel)
        if 0 <= (position := window * stride - padding + tap * dilation) < length
    ]
    assert window_elements(length, windows, kernel, stride, padding, dilation) == (len(covered), len(set(covered)))


def test_pooling_costs_by_hand() -> None:
    tail = {"N": 2, "C": 3, "dtype_cases": [{"T": "float32"}]}
    average = one_case("AvgPool1dFwdOp", L_in=5, kernel_size=3, stride=2, padding=1, **tail)
    assert average.roofline() == (6 * (2 + 3 + 2), 4 * 6 * (5 + 3))
    apart = one_case("MaxPool1dFwdOp", L_in=8, kernel_size=2, stride=4, **tail)
    assert apart.roofline() == (6 * 2, 4 * 6 * (4 + 2))  # half of the input lies between the windows
    indices = one_case("MaxPool2dIndicesFwdOp", H_in=4, W_in=4, kernel_size=2, **tail)
    assert indices.roofline() == (6 * 4 * 3, 4 * 6 * (16 + 4) + 8 * 6 * 4)


@given(st.integers(1, 9), st.integers(1, 9))
def test_adaptive_windows_are_counted(size: int, windows: int) -> None:
    covered = sum(-(-(i + 1) * size // windows) - i * size // windows for i in range(windows))
    call = one_case(
        "AdaptiveAvgPool2dFwdOp", N=1, C=1, H_in=size, W_in=1, output_size=[windows, 1], dtype_cases=[{"T": "float16"}]
    )
    assert call.roofline() == (covered, 2 * (size + windows))


@pytest.mark.parametrize(
    ("row", "flops", "moved"),
    [
        ({"p": 0.25}, 2 * 6, 48),
        ({"p": 0.0}, 0, 48),
        ({"p": 1.0}, 0, 24),
        ({"p": 1.0, "training": False}, 0, 48),
    ],
)
def test_dropout_without_effect_costs_its_copy_only(row: dict[str, object], flops: int, moved: int) -> None:
    call = one_case("DropoutFwdOp", S=[2, 3], dtype_cases=[{"T": "float32"}], **row)
    assert call.roofline() == (flops, moved)


@pytest.mark.parametrize("name", ["IsnanFwdOp", "IsinfFwdOp", "IsfiniteFwdOp"])
def test_questions_that_integers_answer_unread(name: str) -> None:
    assert one_case(name, S=[6], dtype_cases=[{"T": "int64"}]).roofline() == (0, 6)
    assert one_case(name, S=[6], dtype_cases=[{"T": "float16"}]).roofline() == (6, 6 + 12)


@pytest.mark.parametrize("name", ["FloorFwdOp", "CeilFwdOp", "RoundFwdOp", "TruncFwdOp"])
def test_rounding_integers_is_free(name: str) -> None:
    assert one_case(name, S=[6], dtype_cases=[{"T": "int32"}]).roofline() == (0, 48)
    assert one_case(name, S=[6], dtype_cases=[{"T": "float32"}]).roofline() == (6, 48)


def test_convolution_costs_by_hand() -> None:
    call = one_case(
        "Conv2dFwdOp",
        **{"N": 1, "C_in": 4, "C_out": 6, "H_in": 5, "W_in": 5, "kH": 3, "kW": 1, "groups": 2, "some": ["bias"]},
        padding="same",
        dtype_cases=[{"T": "bfloat16"}],
    )
    assert call.outputs["output"].shape == (1, 6, 5, 5)
    assert call.roofline() == (6 * 25 * (2 * 2 * 3 + 1), 2 * (4 * 25 + 6 * 2 * 3 + 6 + 6 * 25))


def test_reductions_cost_what_their_elements_cost() -> None:
    row = {"S": [4, 8], "dim": -1, "dtype_cases": [{"T": "float32"}]}
    assert one_case("MeanFwdOp", **row).roofline() == (32 + 4, 4 * (32 + 4))
    assert one_case("VectorNormFwdOp", **row).roofline() == (64 + 4, 4 * (32 + 4))
    assert one_case("VectorNormFwdOp", ord=math.inf, **row).roofline() == (64, 4 * (32 + 4))
    assert one_case("ArgmaxFwdOp", **row).roofline() == (32, 4 * 32 + 8 * 4)
    assert one_case("VarMeanFwdOp", **row).roofline() == (5 * 32, 4 * (32 + 8))
