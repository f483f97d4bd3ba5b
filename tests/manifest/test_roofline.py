"""Costs: formulas by hand, attention against counting, the traffic that a signature implies."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.manifest.helpers import BASE, base, entry, simple
from tileops.errors import ManifestError
from tileops.gemm import GemmFwdOp
from tileops.manifest import load_all, load_entry
from tileops.manifest.roofline import traffic
from tileops.manifest.workload import Call, cases
from tileops.norm import RMSNormFwdOp
from tileops.perf.formulas import visible_range, visible_scores


def case(name: str, case_id: str) -> Call:
    return next(call for call in cases(load_entry(name)) if call.case_id == case_id)


@pytest.mark.parametrize(
    ("name", "case_id", "flops", "moved"),
    [
        ("RMSNormFwdOp", "smollm2-prefill-bfloat16", 4 * 512 * 576, 2 * (2 * 512 * 576 + 576)),
        ("RMSNormFwdOp", "no-weight-2048-float32", 4 * 2048 * 4096, 4 * 2 * 2048 * 4096),
        ("GemmFwdOp", "smollm2-o-decode-float32", 2 * 576 * 576, 4 * (576 + 576 * 576 + 576)),
        ("GemmFwdOp", "cube-1k-tn-float16", 2 * 1024**3, 2 * 3 * 1024**2),
        ("SiluAndMulFwdOp", "smollm2-ffn-decode-float16", 6 * 1536, 2 * 3 * 1536),
        ("AddFwdOp", "row-bias-float32", 1024 * 4096, 4 * (2 * 1024 * 4096 + 4096)),
        ("AddFwdOp", "scaled-2048-bfloat16", 2 * 2048 * 4096, 2 * 3 * 2048 * 4096),
        ("RoPEFwdOp", "smollm2-k-prefill-float32", 4 * 512 * 3 * 64, 4 * 2 * 512 * 3 * 64),
        ("RoPEFwdOp", "table-4096x128-float16", 4 * 4096 * 128, 2 * 2 * 4096 * 128),
        ("RoPENeoxPositionIdsFwdOp", "smollm2-q-decode-bfloat16-int64", 4 * 9 * 64, 2 * 2 * 9 * 64 + 8),
        (
            "RoPENeoxPositionIdsFwdOp",
            "phi-q-partial-float16-int64",
            4 * 512 * 32 * 32,
            2 * 2 * 512 * 32 * 96 + 8 * 512,
        ),
        (
            "GQADenseFwdOp",
            "smollm2-decode-1k-float32",
            9 * (1024 * (4 * 64 + 5) + 64),
            4 * 64 * (2 * 9 + 2 * 3 * 1024),
        ),
    ],
)
def test_costs_by_hand(name: str, case_id: str, flops: int, moved: int) -> None:
    assert case(name, case_id).roofline() == (flops, moved)


@given(st.integers(0, 7), st.integers(0, 7), st.booleans(), st.integers(-1, 5), st.integers(-1, 5))
def test_visible_scores_are_counted(s_q: int, s_kv: int, is_causal: bool, left: int, right: int) -> None:
    counted = 0
    for query, key in itertools.product(range(s_q), range(s_kv)):
        position = query + s_kv - s_q
        hidden = (
            (is_causal and key > position)
            or (left >= 0 and key < position - left)
            or (right >= 0 and key > position + right)
        )
        counted += not hidden
    assert visible_scores(s_q, s_kv, is_causal, left, right) == counted
    spans = [visible_range(query, s_q, s_kv, is_causal, left, right) for query in range(s_q)]
    assert sum(stop - first for first, stop in spans) == counted


@given(st.integers(1, 7), st.integers(1, 7), st.booleans(), st.integers(-1, 5), st.integers(-1, 5))
def test_attention_reads_the_keys_that_some_query_sees(
    s_q: int, s_kv: int, is_causal: bool, left: int, right: int
) -> None:
    fields = dict(load_entry("GQADenseFwdOp").raw)
    fields["status"] = "spec-only"
    row = {
        "B": 1,
        "S_q": s_q,
        "S_kv": s_kv,
        "H": 2,
        "H_kv": 1,
        "D": 4,
        "is_causal": is_causal,
        "window_size_left": left,
    }
    fields["workloads"] = [row | {"window_size_right": right, "dtype_cases": [{"T": "float32"}], "label": "a"}]
    flops, moved = cases(entry(fields, "GQADenseFwdOp"))[0].roofline()
    seen: set[int] = set()
    for query in range(s_q):
        seen |= set(range(*visible_range(query, s_q, s_kv, is_causal, left, right)))
    assert moved == 4 * (2 * s_q * 2 * 4 + 2 * len(seen) * 4)
    assert flops == 2 * (visible_scores(s_q, s_kv, is_causal, left, right) * (4 * 4 + 5) + s_q * 4)


def test_derived_bytes_equal_the_tensors_of_every_row() -> None:
    for toy in load_all().values():
        for call in cases(toy):
            reads, writes = traffic(call.view(), call.branch)
            written = [call.inputs[name].nbytes for name in call.branch.written]
            fresh = {name: item for name, item in call.outputs.items() if toy.signature.outputs[name].alias is None}
            unread = [name for name in call.branch.written if toy.signature.inputs[name].write_only]
            assert reads == sum(
                item.nbytes for name, item in {**call.held, **call.inputs}.items() if name not in unread
            )
            assert writes == sum(written) + sum(item.nbytes for item in fresh.values()) or call.outputs != fresh
            if toy.roofline.func is None and toy.roofline.bytes is None:
                assert call.roofline()[1] == reads + writes


def test_effects_change_the_traffic() -> None:
    plain, written = cases(entry(BASE)), []
    fields = base()
    for row in fields["workloads"]:
        row["inplace"] = True
    written = cases(entry(fields))
    for before, after in zip(plain, written, strict=True):
        a = after.inputs["a"].nbytes
        reads, writes = traffic(before.view(), before.branch)
        # The output is the input: written once, and it is no storage of its own.
        assert traffic(after.view(), after.branch) == (reads, writes)
        assert writes == a + after.outputs["norm"].nbytes
    fields["signature"]["inputs"]["a"]["write_only"] = True
    only = cases(entry(fields))[0]
    assert traffic(only.view(), only.branch)[0] == sum(item.nbytes for name, item in only.inputs.items() if name != "a")


def test_formulas_read_presence_and_bytes() -> None:
    fields = base()
    fields["roofline"] = {"flops": "N if present(bias) else 0", "bytes": "bytes(a) + 2 * bytes(bias) + half"}
    plain, _, biased = cases(entry(fields))
    assert plain.roofline() == (0, 5 * 8 * 2 + 4)
    assert biased.roofline() == (4, 8 * 8 * 4 + 2 * 4 * 4 + 4)


def test_the_call_interface() -> None:
    call = cases(entry(BASE))[2]
    view = call.view()
    assert view.present("bias")
    assert view.present("output")
    assert not view.present("limit")
    assert view.tensors["norm"] == ((4,), "float32")
    assert view.bytes("a") == math.prod(call.inputs["a"].shape) * 4
    assert view.metadata_values("ids").tolist() == [0, 1] * 4
    assert view.indices["half"] == 4
    with pytest.raises(ManifestError, match="not known"):
        view.metadata_values("a")


@pytest.mark.parametrize(
    ("path", "message"),
    [("tileops.perf.formulas.nothing", "there is no function"), ("os.system", "expected a function")],
)
def test_func_must_exist(path: str, message: str) -> None:
    from tests.manifest.helpers import findings

    fields: dict[str, Any] = base()
    fields["roofline"] = {"func": path}
    assert any(message in item for item in findings(fields))


# rule: rules.md 3 "roof_key() default"; the unit that an optimal implementation would use
def test_the_roof_of_an_op() -> None:
    norm, gemm = RMSNormFwdOp(normalized_shape=(8,)), GemmFwdOp()
    assert norm.roof_key() == gemm.roof_key() == "cuda_core.fp32"
    x = torch.zeros(2, 8, dtype=torch.bfloat16)
    norm(x)
    gemm(x, x)
    assert norm.roof_key() == "cuda_core.fp32"
    assert gemm.roof_key() == "tensor_core.bf16"
    assert norm.eval_roofline()[1] == 2 * 2 * 16
    assert norm.eval_roofline_read_bytes() == 2 * 16


# rule: 003 Table 4 "the interface of call"
def test_what_a_cost_function_reads() -> None:
    text = """
    forall: {M: Dim, N: Dim, seq_lens: "Seq[Int]", T: "DType[float16 | float32]"}
    params: {limit: {type: "int | None", default: null}}
    inputs:
      x: {dtype: T, shape: "[M]"}
      offsets: {dtype: int32, shape: "[N + 1]", values: "prefix_sum(seq_lens)"}
      bias: {dtype: T, shape: "[M]", optional: true}
    outputs: {y: {dtype: T, shape: "[double]", buffer: out}}
    let: {double: "2 * M"}
    """
    (call,) = cases(entry(simple(text, "[{M: 4, seq_lens: [3, 1], dtype_cases: [{T: float16}], label: row}]")))
    view = call.view()
    assert view.indices == {"limit": None, "M": 4, "N": 2, "seq_lens": [3, 1], "T": "float16", "double": 8}
    assert [view.present(name) for name in ("x", "bias", "y", "out", "limit")] == [True, False, True, False, False]
    assert view.tensors == {"x": ((4,), "float16"), "offsets": ((3,), "int32"), "y": ((8,), "float16")}
    assert [view.bytes(name) for name in ("x", "offsets", "y", "bias")] == [8, 12, 16, 0]
    assert view.metadata_values("offsets").tolist() == [0, 3, 4]
    assert view.stages == {}
    with pytest.raises(ManifestError, match="the contents of 'x' are not known, as on meta tensors"):
        view.metadata_values("x")
