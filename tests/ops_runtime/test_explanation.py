"""``tileops show OP --call``: which kernel a call takes, and why each other one does not."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tests.ops_runtime.toys import ScaleKernel, fresh_kernel, make_op
from tileops import manifest
from tileops.cli import catalogue
from tileops.cli.main import app
from tileops.errors import CheckError, TileOpsError
from tileops.kernels.base import DeviceFacts, TensorSpec
from tileops.manifest.workload import cases
from tileops.ops.explanation import explain, parse_call
from tileops.ops.planned import device_for

CPU = DeviceFacts()


def outcomes(found: Any) -> dict[str, tuple[str, str]]:
    (site,) = found.sites
    return {verdict.kernel.__name__: (verdict.outcome, verdict.reason) for verdict in site.verdicts}


def test_every_kernel_has_a_verdict() -> None:
    general = fresh_kernel(general=True)
    small = fresh_kernel(refusal=classmethod(lambda cls, call: "only 8 elements" if call.x.numel > 8 else None))
    gpu = fresh_kernel(devices=frozenset({"cuda"}))
    cls = make_op(general, small, gpu)
    found = explain(cls, parse_call(cls, "x=f32[2,3] factor=3.0"), CPU)
    assert outcomes(found) == {
        general.__name__: ("outranked", f"{small.__name__} is preferred"),
        small.__name__: ("chosen", ""),
        gpu.__name__: ("unavailable", "runs on cuda"),
    }
    assert found.sites[0].chosen == small.__name__
    assert found.construction == f"{cls.__name__}(factor=3.0, axes=())"
    assert (found.flops, found.bytes) == (6, 48)
    assert not small.builds
    assert not small.binds
    large = explain(cls, parse_call(cls, "x=bf16[4,3](1,4) bias=bf16[4,3]"), CPU)
    assert outcomes(large)[small.__name__] == ("refused", "only 8 elements")
    assert "strides [1, 4]" in large.sites[0].call
    assert large.outputs == (("output", "bfloat16", (4, 3)),)


def test_a_call_that_no_kernel_or_several_serve_is_shown_as_such() -> None:
    cls = make_op(fresh_kernel(), fresh_kernel())
    found = explain(cls, parse_call(cls, "x=f32[2]"), CPU)
    assert found.sites[0].chosen is None
    assert [outcome for outcome, _ in outcomes(found).values()] == ["chosen", "chosen"]
    gpu = explain(cls, parse_call(cls, "x=f32[2]"), device_for("sm_90"))
    assert [outcome for outcome, _ in outcomes(gpu).values()] == ["unavailable", "unavailable"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nonsense", "is no case of the op and no call"),
        ("x=f32[2] y=f32[2]", "no parameter or tensor 'y'; it has factor, axes, x, bias"),
        ("x=f33[2]", "is no tensor"),
        ("x=f32[2](1,2)", "1 sizes and 2 strides"),
        ("x=f32[2] loose", "'loose' is no name=value"),
    ],
)
def test_a_call_that_cannot_be_read_says_how_to_write_it(text: str, words: str) -> None:
    cls = make_op(fresh_kernel())
    with pytest.raises(TileOpsError, match=words):
        parse_call(cls, text)


def test_a_wrong_call_names_the_declaration() -> None:
    cls = make_op(fresh_kernel())
    for text, words in (("x=f64[2]", "float64"), ("x=f32[2] factor=-1.0", "factor > 0"), ("factor=1.0", "required")):
        with pytest.raises(CheckError, match=words):
            explain(cls, parse_call(cls, text), CPU)


def test_values_are_python_literals_dtypes_or_words() -> None:
    cls = make_op(ScaleKernel)
    written = parse_call(cls, "x=bool[] factor=1e-5 axes=(1, 2)")
    assert written.params == {"factor": 1e-5, "axes": (1, 2)}
    assert written.tensors["x"] == TensorSpec("cpu", "bool", (), (), 1)
    assert parse_call(cls, "factor=bf16").params == {"factor": torch.bfloat16}
    assert parse_call(cls, "factor=neox").params == {"factor": "neox"}


@pytest.mark.in_tree_kernels
def test_rows_of_implemented_ops_are_explained() -> None:
    for name, entry in manifest.load_all(strict=False).items():
        if not entry.implemented or entry.composition:
            continue
        cls = catalogue.op_class(entry)
        found = explain(cls, parse_call(cls, cases(entry)[0].case_id), CPU)
        assert all(site.chosen and site.programs for site in found.sites), name


@pytest.mark.in_tree_kernels
def test_the_command() -> None:
    runner = CliRunner()
    shown = runner.invoke(app, ["show", "gemm", "--call", "a=bf16[4,64] b=bf16[32,64]"])
    assert shown.exit_code == 0, shown.output
    assert "GemmCpuKernel" in shown.output
    assert "chosen" in shown.output
    plain = runner.invoke(app, ["show", "gemm", "--json", "--device", "sm_90", "--call", "a=bf16[4,64] b=bf16[32,64]"])
    (site,) = json.loads(plain.output)["sites"]
    assert {"kernel": "GemmCpuKernel", "verdict": "unavailable", "reason": "runs on cpu"} in site["kernels"]
    assert runner.invoke(app, ["show", "gemm", "--device", "tpu", "--call", "a=bf16[4,64]"]).exit_code == 2
