"""Generated checks: what they accept, infer and refuse; laziness, threads and tracebacks."""

from __future__ import annotations

import itertools
import linecache
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.rows import constructed
from tests.manifest.calls import check, empty
from tests.manifest.helpers import BASE, entry, simple
from tileops.errors import CheckError
from tileops.manifest import load_all, load_entry
from tileops.manifest.branch import discriminants
from tileops.manifest.plan import plan_branch
from tileops.manifest.unify import unify
from tileops.manifest.workload import cases
from tileops.ops.dtypes import torch_parameters
from tileops.ops.signature_codegen import CallSignature, signature_for


def shapes(checked: Any) -> list[Any]:
    return [None if output is None else (output.name, tuple(output.shape), output.dtype) for output in checked.outputs]


def test_rms_norm() -> None:
    checked = check("RMSNormFwdOp", empty(2, 3, 8), empty(8), normalized_shape=[8])
    assert shapes(checked) == [("output", (2, 3, 8), torch.float32)]
    assert checked.indices["B"] == (2, 3)
    assert checked.indices["T"] == "float32"
    assert checked.indices["normalized_shape"] == (8,)
    assert checked.inputs == {"x": ((2, 3, 8), "float32"), "weight": ((8,), "float32")}
    assert checked.written == ()
    assert checked.device == torch.device("meta")
    assert check("RMSNormFwdOp", empty(8), None, normalized_shape=(8,)).indices["B"] == ()


def test_gemm_families() -> None:
    for trans_a, trans_b in itertools.product((False, True), repeat=2):
        a = empty(*((3, 2) if trans_a else (2, 3)))
        b = empty(*((5, 3) if trans_b else (3, 5)))
        checked = check("GemmFwdOp", a, b, trans_a=trans_a, trans_b=trans_b)
        assert shapes(checked) == [("d", (2, 5), torch.float32)]
        assert [checked.indices[name] for name in "MNK"] == [2, 5, 3]


def test_rope_layouts_and_positions() -> None:
    assert check("RoPEFwdOp", empty(2, 5, 3, 8)).indices["H"] == 3
    flat = check("RoPEFwdOp", empty(5, 8), input_layout="1d")
    assert "H" not in flat.indices
    ids = empty(5, dtype=torch.int32)
    assert check("RoPENeoxPositionIdsFwdOp", empty(5, 2, 8), ids, max_position=9).indices["R"] == 8
    assert check("RoPENeoxPositionIdsFwdOp", empty(5, 2, 8), ids, max_position=9, rotary_dim=4).indices["R"] == 4


def test_attention_presence_and_output_dtype() -> None:
    q, kv, none = empty(1, 5, 4, 8), empty(1, 7, 2, 8), None
    plain = check("GQADenseFwdOp", q, kv, kv, none, none, none, none, none)
    assert shapes(plain) == [("o", (1, 5, 4, 8), torch.float32)]
    cast = check("GQADenseFwdOp", q, kv, kv, none, none, none, none, none, out_dtype=torch.bfloat16)
    assert cast.outputs[0].dtype == torch.bfloat16
    f8 = torch.float8_e4m3fn
    scales = [empty(1, 2)] * 3
    scaled = check("GQADenseFwdOp", q.to(f8), kv.to(f8), kv.to(f8), *scales, none, none, out_dtype=torch.float16)
    assert scaled.outputs[0].dtype == torch.float16
    tables = [empty(9, 2)] * 2
    fused = check("GQADenseFwdOp", q, kv, kv, none, none, none, *tables, pos_encoding_mode="rope", rotary_dim=4)
    assert (fused.indices["R"], fused.indices["P"]) == (4, 9)


def test_silu_and_mul_and_add() -> None:
    assert shapes(check("SiluAndMulFwdOp", empty(5, 8))) == [("output", (5, 4), torch.float32)]
    assert shapes(check("AddFwdOp", empty(5, 1), empty(8), alpha=2)) == [("output", (5, 8), torch.float32)]
    ints = torch.zeros(3, dtype=torch.int32)
    assert check("AddFwdOp", ints, ints).outputs[0].dtype == torch.int32


Q, KV, F = (1, 5, 4, 8), (1, 7, 2, 8), "float32"


@pytest.mark.parametrize(
    ("name", "tensors", "params", "declaration", "message"),
    [
        ("RMSNormFwdOp", None, {}, "params.normalized_shape", "no default; pass normalized_shape=..."),
        (
            "RMSNormFwdOp",
            None,
            {
                "normalized_shape": (),
            },
            "shape_rules[0]",
            "normalized_shape=[]",
        ),
        ("RMSNormFwdOp", None, {"normalized_shape": (-1,)}, "inputs.x.shape", "normalized_shape is [-1]"),
        (
            "RMSNormFwdOp",
            None,
            {"normalized_shape": 8},
            "params.normalized_shape",
            "the type is tuple[int, ...]",
        ),
        ("RMSNormFwdOp", None, {"normalized_shape": (8,), "eps": -1}, "shape_rules[1]", "eps=-1.0"),
        ("RMSNormFwdOp", None, {"normalized_shape": (8,), "foo": 1}, "params", "there is no parameter 'foo'"),
        ("RMSNormFwdOp", [(2, 8)], {"normalized_shape": (8,)}, "inputs", "expected 2 tensors"),
        (
            "RMSNormFwdOp",
            [None, (8,)],
            {"normalized_shape": (8,)},
            "inputs.x",
            "x is None, but it is required",
        ),
        (
            "RMSNormFwdOp",
            [(2, 7), (8,)],
            {"normalized_shape": (8,)},
            "inputs.x.shape",
            "normalized_shape = [8]",
        ),
        (
            "RMSNormFwdOp",
            [(2, 8), (7,)],
            {"normalized_shape": (8,)},
            "inputs.weight.shape",
            "weight has shape [7]",
        ),
        (
            "RMSNormFwdOp",
            [(2, 8), ((8,), "float16")],
            {"normalized_shape": (8,)},
            "inputs.weight.dtype",
            "weight has dtype float16, expected float32, the dtype of x; convert it with .to(...)",
        ),
        (
            "RMSNormFwdOp",
            [((2, 8), "float64"), None],
            {"normalized_shape": (8,)},
            "inputs.x.dtype",
            "expected float16 or bfloat16 or float32",
        ),
        (
            "GemmFwdOp",
            [(2, 3), (5, 4)],
            {},
            "inputs.b.shape",
            "b has shape [5, 4]; axis 1 is 4 where [N, K] needs K = 3 from a; pass sizes that agree",
        ),
        ("GemmFwdOp", [(2, 3, 4), (5, 4)], {}, "inputs.a.shape", "with 3 axes, expected 2 axes as [M, K]"),
        ("GemmFwdOp", None, {"trans_a": 1}, "params.trans_a", "expected True or False, got 1"),
        ("RoPEFwdOp", [(1, 2, 3, 5)], {}, "shape_rules[0]", "'D % 2 == 0' does not hold for D=5"),
        ("RoPEFwdOp", None, {"base": 0}, "shape_rules[1]", "base=0.0"),
        (
            "RoPEFwdOp",
            None,
            {"rope_layout": "gptj"},
            "params.rope_layout",
            "expected one of 'neox', 'interleaved'",
        ),
        (
            "RoPENeoxPositionIdsFwdOp",
            [(2, 3, 8), (2,)],
            {"max_position": 4},
            "inputs.position_ids.dtype",
            "expected int32 or int64",
        ),
        ("RoPENeoxPositionIdsFwdOp", None, {"max_position": 4, "rotary_dim": 3}, "shape_rules[2]", "R=3"),
        ("GQADenseFwdOp", [Q, (1, 7, 3, 8), (1, 7, 3, 8), *[None] * 5], {}, "shape_rules[1]", "H=4, H_kv=3"),
        ("GQADenseFwdOp", [Q, (1, 7, 0, 8), (1, 7, 0, 8), *[None] * 5], {}, "shape_rules[1]", "H_kv=0"),
        (
            "GQADenseFwdOp",
            [Q, KV, KV, (1, 2), None, None, None, None],
            {"out_dtype": torch.float16},
            "inputs.k_scale",
            "k_scale is None, but it is required where present(q_scale)",
        ),
        (
            "GQADenseFwdOp",
            [Q, KV, KV, *[(1, 2)] * 3, None, None],
            {"out_dtype": torch.float16},
            "shape_rules[5]",
            "T='float32'",
        ),
        (
            "GQADenseFwdOp",
            [Q, KV, KV, *[(1, 2)] * 3, None, None],
            {},
            "shape_rules[6]",
            "present(out_dtype)=False",
        ),
        (
            "GQADenseFwdOp",
            [Q, KV, KV, None, None, None, (7, 4), (7, 4)],
            {},
            "inputs.rope_cos.optional",
            "it belongs to calls where pos_encoding_mode == 'rope'",
        ),
        (
            "GQADenseFwdOp",
            [Q, KV, KV, *[None] * 5],
            {"pos_encoding_mode": "rope"},
            "inputs.rope_cos",
            "required where pos_encoding_mode == 'rope'",
        ),
        (
            "GQADenseFwdOp",
            None,
            {"rotary_dim": 4},
            "shape_rules[7]",
            "pos_encoding_mode='none', rotary_dim=4",
        ),
        ("GQADenseFwdOp", None, {"out_dtype": torch.int8}, "params.out_dtype", "float16, bfloat16, float32"),
        (
            "SiluAndMulFwdOp",
            [(2, 7)],
            {},
            "inputs.x.shape",
            "axis 1 is 7, which 2 * N in [M, 2 * N] cannot be",
        ),
        ("AddFwdOp", [(2, 7), (3,)], {}, "outputs.output.shape", "shapes [2, 7] and [3] do not broadcast"),
        ("AddFwdOp", [((2,), "int32")] * 2, {"alpha": 1.5}, "shape_rules[0]", "T='int32', alpha=1.5"),
        ("AddFwdOp", [((2,), "uint8")] * 2, {"alpha": 300}, "shape_rules[1]", "alpha=300"),
        ("AddFwdOp", None, {"alpha": True}, "params.alpha", "expected an integer or a float, got True"),
    ],
)
def test_refusals_name_declaration_values_and_remedy(
    name: str, tensors: list[Any] | None, params: dict[str, Any], declaration: str, message: str
) -> None:
    made = []
    for item in tensors or []:
        shape, dtype = item if item and isinstance(item[-1], str) else (item, F)
        made.append(None if shape is None else empty(*shape, dtype=getattr(torch, dtype)))
    signature = signature_for(load_entry(name))
    if tensors is None:
        with pytest.raises(CheckError) as caught:
            signature.construct(**params)
    else:
        construction = signature.construct(**params)
        with pytest.raises(CheckError) as caught:
            signature.check_call(construction, tuple(made))
    assert caught.value.op == name
    assert caught.value.declaration == declaration
    assert message in str(caught.value)


def test_devices_and_types_of_tensors() -> None:
    with pytest.raises(CheckError, match="weight is on meta but x is on cpu; move both to one device"):
        check("RMSNormFwdOp", empty(2, 8, device="cpu"), empty(8), normalized_shape=(8,))
    with pytest.raises(CheckError, match=r"b must be a torch.Tensor, got list"):
        check("GemmFwdOp", empty(2, 8), [1.0])  # type: ignore[arg-type]


LAYOUT = """
forall: {N: Dim}
inputs:
  x: {dtype: float32, shape: "[N, N]", contiguous: true}
  lengths: {dtype: int32, shape: "[N]", device: cpu}
outputs:
  output: {dtype: float32, shape: "[N]", buffer: out, contiguous: true}
"""


def test_contiguity_cpu_tensors_and_out() -> None:
    signature = CallSignature(entry(simple(LAYOUT)))
    assert signature.forward_order == ("x", "lengths", "out")
    construction = signature.construct()
    x, lengths = empty(3, 3), empty(3, dtype=torch.int32, device="cpu")
    assert signature.check_call(construction, (x, lengths, None)).written == ()
    assert signature.check_call(construction, (x, lengths, empty(3))).written == ("out",)
    for tensors, message in [
        ((x.t()[:, :], lengths, None), None),
        ((empty(3, 6)[:, ::2], lengths, None), r"x has strides \[6, 2\]; pass x.contiguous()"),
        ((x, lengths.to("meta"), None), "lengths is on meta, expected cpu"),
        ((x, lengths, empty(4)), "out has shape"),
        ((x, lengths, empty(3, dtype=torch.float16)), "out has dtype float16, expected float32"),
        ((x, lengths, empty(3, device="cpu")), "out is on cpu but the call is on meta"),
        ((x, lengths, empty(6)[::2]), "out has strides"),
    ]:
        if message is not None:
            with pytest.raises(CheckError, match=message):
                signature.check_call(construction, tensors)


def test_mutated_inputs_aliases_and_nullable_outputs() -> None:
    signature = CallSignature(entry(BASE))
    construction = signature.construct(inplace=True)
    ids = empty(2, dtype=torch.int32)
    tensors = [empty(2, 8), empty(8, 8), ids, None]
    checked = signature.check_call(construction, tensors)
    assert checked.written == ("a",)
    assert checked.indices["half"] == 4
    halved = signature.check_call(signature.construct(groups=2), tensors)
    assert shapes(halved)[1] == ("norm", (2,), torch.float32)
    with pytest.raises(CheckError, match=r"groups > 0 and N % groups == 0.*N=4, groups=3"):
        signature.check_call(signature.construct(groups=3), tensors)
    with pytest.raises(CheckError, match=r"shape_rules\[1\].*K=8, limit=9"):
        signature.check_call(signature.construct(limit=9), tensors)


def test_undefined_expressions_name_their_declaration() -> None:
    toy = entry(
        simple("""
        forall: {M: Dim}
        params: {groups: {type: int}}
        inputs: {x: {dtype: float32, shape: "[M]"}}
        outputs: {output: {dtype: float32, shape: "[parts]"}}
        let: {parts: "M // groups"}
    """)
    )
    signature = CallSignature(toy)
    with pytest.raises(CheckError, match=r"let.parts: in 'M // groups': division by zero"):
        signature.check_call(signature.construct(groups=0), (empty(4),))
    with pytest.raises(CheckError, match=r"outputs.output.shape: parts is -2, but the size of an axis"):
        signature.check_call(signature.construct(groups=-2), (empty(4),))


def test_checks_are_generated_once_and_lazily() -> None:
    signature = CallSignature(load_entry("RMSNormFwdOp"))
    assert signature._makers == {}
    first, second = signature.construct(normalized_shape=(8,)), signature.construct(normalized_shape=(4,))
    signature.check_call(first, (empty(2, 8), None))
    signature.check_call(second, (empty(2, 4), None))
    assert len(signature._makers) == 1
    signature.check_call(second, (empty(2, 4), empty(4)))
    assert len(signature._makers) == 2
    assert signature_for(load_entry("RMSNormFwdOp")) is signature_for(load_entry("RMSNormFwdOp"))


def test_threads_share_one_generation() -> None:
    signature = CallSignature(load_entry("GemmFwdOp"))
    barrier, results = threading.Barrier(8), []

    def run() -> None:
        construction = signature.construct()
        barrier.wait()
        results.append(signature.check_call(construction, (empty(2, 3), empty(5, 3))).outputs[0].shape)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [(2, 5)] * 8
    assert len(signature._sources) == 1


def test_tracebacks_show_generated_lines() -> None:
    with pytest.raises(CheckError) as caught:
        check("GemmFwdOp", empty(2, 3), empty(5, 4))
    shown = "".join(traceback.format_exception(caught.value))
    assert "_settle(_ok, _fail.axis, 'signature.inputs.b', 'b'" in shown
    assert any(name.startswith("<tileops.gemm.GemmFwdOp check") for name in linecache.cache)


def test_the_source_is_readable_and_parses_nothing() -> None:
    signature = signature_for(load_entry("GemmFwdOp"))
    source = signature.source(signature.construct(), (True, True))
    assert "    # b: [N, K]\n" in source
    assert "M = _s_a[0]" in source
    assert not {"eval(", "exec(", "parse(", "compile("} & set(source.split())
    names = set(compile(source, "check", "exec").co_names)
    assert names == {"make_check"}


# --- agreement with the abstract unification ---


def test_rows_check_on_meta_tensors() -> None:
    """Every case of every row passes its generated check, with outputs and cost of the abstract call; here for what
    has an implementation, in tests/contract for the whole manifest.
    """
    for toy in (item for item in load_all().values() if item.implemented):
        signature = signature_for(toy)
        for call in cases(toy):
            construction = constructed(signature, call)
            tensors = [
                empty(*call.inputs[name].shape, dtype=getattr(torch, call.inputs[name].dtype))
                if name in call.inputs
                else None
                for name in call.forward_order
            ]
            checked = signature.check_call(construction, tensors)
            for output in filter(None, checked.outputs):
                expected = call.outputs[output.name]
                assert (tuple(output.shape), str(output.dtype)) == (expected.shape, f"torch.{expected.dtype}")
            assert signature.roofline(checked) == call.roofline()


SIZES = st.integers(0, 3)


def outcome(call: Callable[[], dict[str, Any]]) -> dict[str, Any] | str:
    """Indices, or the text of the refusal."""
    try:
        return call()
    except CheckError as error:
        return str(error)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_generated_and_abstract_checks_agree(data: st.DataObject) -> None:
    """For arbitrary shapes and dtypes both accept with equal indices, or fail alike."""
    drawn = [item for item in load_all().values() if not any(p.tensor for p in item.signature.params.values())]
    toy = data.draw(st.sampled_from(drawn), "entry")
    signature = signature_for(toy)
    call = data.draw(st.sampled_from(cases(toy)), "case")
    params = torch_parameters(call.params)
    if "normalized_shape" in params:
        params["normalized_shape"] = tuple(data.draw(st.lists(SIZES, min_size=1, max_size=2)))
    construction = signature.construct(**params)
    shapes_of: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, str] = {}
    for name, item in call.inputs.items():
        near = data.draw(st.booleans())
        shape = [2, 4, 2, 4, 2][: len(item.shape)] if near else data.draw(st.lists(SIZES, max_size=4))
        shapes_of[name] = tuple(shape)
        dtypes[name] = item.dtype if data.draw(st.integers(0, 9)) else "float64"
    # The abstract checks know of no device: every tensor lies where it should.
    tensors = [
        torch.empty(
            shapes_of[name],
            dtype=getattr(torch, dtypes[name]),
            device="cpu" if toy.signature.inputs[name].cpu else "meta",
        )
        if name in shapes_of
        else None
        for name in call.forward_order
    ]
    branch = signature.branch(construction, [tensor is not None for tensor in tensors])
    facts = {name: (shapes_of[name], dtypes[name]) for name in branch.inputs}
    assert outcome(lambda: signature.check_call(construction, tensors).indices) == outcome(
        lambda: unify(toy.name, plan_branch(branch), construction.values, facts)
    )


def test_discriminants_of_construction_select_the_check() -> None:
    toy = load_entry("GQADenseFwdOp")
    names = [choice.key for choice in discriminants(toy.signature)]
    assert names == [
        "is_causal",
        "present(sm_scale)",
        "present(softcap)",
        "pos_encoding_mode",
        "present(rotary_dim)",
        "rope_layout",
        "present(out_dtype)",
        "present(q_scale)",
    ]


LONG_ROPE = """
forall: {S: Dim, D: Dim, T: "DType[float16 | float32]", R: "DType[float32]"}
params:
  rescale_factors: {dtype: R, shape: "[D // 2]", optional: true}
  table: {dtype: float32, shape: "[P, 2]"}
  scale: {type: float, default: 1.0}
inputs:
  x: {dtype: T, shape: "[S, D]"}
outputs:
  output: {dtype: T, shape: "[S, P]"}
"""


def test_construction_time_tensors() -> None:
    fields = simple(
        LONG_ROPE.replace("S: Dim", "S: Dim, P: Dim"),
        "[{S: 3, D: 8, P: 5, some: [rescale_factors], dtype_cases: [{T: float16, R: float32}], label: a},"
        " {S: 3, D: 8, P: 5, dtype_cases: [{T: float16}], label: b}]",
        '{flops: "S * D"}',
    )
    toy = entry(fields)
    signature = CallSignature(toy)
    table = torch.empty(5, 2)
    construction = signature.construct(table=table, rescale_factors=torch.empty(4))
    checked = signature.check_call(construction, (empty(3, 8, dtype=torch.float16),))
    assert shapes(checked) == [("output", (3, 5), torch.float16)]
    assert checked.inputs["table"] == ((5, 2), "float32")
    assert signature.read_bytes(checked) == 3 * 8 * 2 + 5 * 2 * 4 + 4 * 4
    without = signature.check_call(signature.construct(table=table), (empty(3, 8),))
    assert "rescale_factors" not in without.inputs
    with pytest.raises(CheckError, match=r"params.table.shape: table has shape \[5, 3\]; axis 1 is 3"):
        signature.construct(table=torch.empty(5, 3))
    with pytest.raises(CheckError, match=r"params.table: the parameter has no default"):
        signature.construct()
    with pytest.raises(CheckError, match=r"params.table: table must be a torch.Tensor, got list"):
        signature.construct(table=[1.0])
    with pytest.raises(CheckError, match=r"params.rescale_factors.shape: .* axis 0 is 3 .* D // 2 = 4 from x"):
        signature.check_call(signature.construct(table=table, rescale_factors=torch.empty(3)), (empty(3, 8),))
    with_factors, plain = cases(toy)
    assert with_factors.held["rescale_factors"].shape == (4,)
    assert list(plain.held) == ["table"]
    assert with_factors.roofline() == signature.roofline(checked)


def test_list_defaults_are_not_shared() -> None:
    toy = entry(
        simple(
            """
            forall: {N: Dim}
            params: {sizes: {type: "list[int]", default: [1, 2]}}
            inputs: {x: {dtype: float32, shape: "[N]"}}
            outputs: {output: {dtype: float32, shape: "[*sizes]"}}
            """
        )
    )
    signature = CallSignature(toy)
    signature.construct().params["sizes"].append(3)
    assert signature.construct().params["sizes"] == [1, 2]
    assert shapes(signature.check_call(signature.construct(), (empty(3),))) == [("output", (1, 2), torch.float32)]
    with pytest.raises(CheckError, match=r"outputs.output.shape: sizes is \[-1\]"):
        signature.construct(sizes=[-1])


def test_a_rule_speaks_before_the_let_that_it_guards() -> None:
    toy = entry(
        simple(
            """
            forall: {N: Dim}
            params: {groups: {type: int}}
            inputs: {x: {dtype: float32, shape: "[N]"}}
            outputs: {output: {dtype: float32, shape: "[per_group]"}}
            let: {doubled: "2 * per_group", per_group: "64 // groups"}
            shape_rules: ["groups > 0", "doubled >= 8"]
            """
        )
    )
    signature = CallSignature(toy)
    with pytest.raises(CheckError, match=r"shape_rules\[0\]: 'groups > 0' does not hold for groups=0"):
        signature.construct(groups=0)
    with pytest.raises(CheckError, match=r"shape_rules\[1\]: 'doubled >= 8' does not hold for doubled=4"):
        signature.construct(groups=32)
    assert signature.check_call(signature.construct(groups=2), (empty(3),)).outputs[0].shape == (32,)


# No name of an entry is one of the generated code.
def test_names_of_an_entry_do_not_hide_those_of_generated_code() -> None:
    text = """
    forall: {c: Dim, M: Dim}
    params: {check: {type: int, default: 2}, make_check: {type: int, default: 1}}
    inputs:
      a: {dtype: float32, shape: "[c, check * make_check]"}
      max: {dtype: float32, shape: "[M, c]"}
      prod: {dtype: float32, shape: "[M]"}
    outputs: {y: {dtype: float32, shape: "[c, M, check]"}}
    shape_rules: ["max(c, M) > check and prod((c, M)) > 0"]
    """
    signature = signature_for(entry(simple(text), "NamesFwdOp"))
    checked = signature.check_call(signature.construct(), (empty(1, 2), empty(3, 1), empty(3)))
    assert checked.outputs[0].shape == (1, 3, 2)
    assert checked.indices == {"check": 2, "make_check": 1, "c": 1, "M": 3}
