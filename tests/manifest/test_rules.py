"""Rules of the language that no other file states: when a fact is checked, what makes an index relevant, and what a
restriction comes before.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.manifest.calls import empty
from tests.manifest.helpers import GROUPED, base, entry, findings, simple
from tileops.errors import CheckError, ManifestError
from tileops.manifest import kinds as k
from tileops.manifest import loading, try_load_entry
from tileops.manifest.branch import branch_at, discriminants
from tileops.manifest.entry import Entry
from tileops.manifest.expr import evaluate, parse
from tileops.manifest.plan import CheckNonNegative, CheckRule, Let, Step, plan_branch
from tileops.manifest.primitives import GENERATORS, PREDICATES, PRIMITIVES
from tileops.manifest.workload import cases, instantiate
from tileops.ops.base import Op
from tileops.ops.signature_codegen import signature_for
from tileops.workloads.inputs import materialize

ROOT = Path(__file__).resolve().parents[2]


def toy(signature: str, rows: str = "[{label: row}]", roofline: str = '{flops: "0"}', name: str = "RuleFwdOp") -> Entry:
    found = entry(simple(signature, rows, roofline), name)
    assert not found.problems
    return found


def check(op: Entry, *tensors: Any, **params: Any) -> Any:
    signature = signature_for(op)
    return signature.check_call(signature.construct(**params), tensors)


def steps(op: Entry, **point: Any) -> tuple[Step, ...]:
    choices = discriminants(op.signature)
    values = {choice.name: choice.values[0] for choice in choices} | point
    return plan_branch(branch_at(op.signature, choices, values)).steps


# --- obligations, rules and lets at construction or per call ---

OBLIGED = """
forall: {N: Dim, K: Dim}
params:
  heads: {type: int, default: 1}
  tail: {type: "tuple[int, ...]", default: []}
  dim: {type: int, default: -1}
inputs:
  x: {dtype: float32, shape: "[N, K]"}
outputs:
  flat: {dtype: float32, shape: "[heads]"}
  rest: {dtype: float32, shape: "[N - K, *tail]"}
  reduced: {dtype: float32, shape: "[*reduced((N, K), dim, True)]"}
"""


def test_an_axis_of_a_parameter_is_obliged_at_construction() -> None:
    op = toy(OBLIGED)
    signature_for(op).construct(heads=0)
    with pytest.raises(CheckError, match=r"outputs\.flat\.shape: heads is -1, but the size of an axis is not negative"):
        signature_for(op).construct(heads=-1)
    with pytest.raises(CheckError, match=r"outputs\.rest\.shape: tail is \[2, -1\], but the size of an axis"):
        signature_for(op).construct(tail=(2, -1))


def test_an_axis_of_indices_is_obliged_by_the_call() -> None:
    op = toy(OBLIGED)
    assert tuple(check(op, empty(3, 3)).outputs[1].shape) == (0,)
    with pytest.raises(CheckError, match=r"outputs\.rest\.shape: N - K is -1, but the size of an axis is not negative"):
        check(op, empty(2, 3))
    obligations = [step for step in steps(op) if isinstance(step, CheckNonNegative)]
    assert {(step.expr.text, step.at_construction) for step in obligations} >= {("heads", True), ("N - K", False)}


def test_a_signed_argument_of_a_primitive_obliges_nothing() -> None:
    assert tuple(check(toy(OBLIGED), empty(3, 2), dim=-2).outputs[2].shape) == (1, 2)


TIMED = """
forall: {N: Dim}
params:
  groups: {type: int}
  limit: {type: "int | None", default: null}
inputs:
  x: {dtype: float32, shape: "[N]"}
outputs:
  output: {dtype: float32, shape: "[per]"}
let:
  per: "N // groups"
  doubled: "2 * groups"
shape_rules:
- "groups > 0"
- "doubled < 100"
- "N % groups == 0"
- "not present(limit) or limit.value > 0"
"""


def test_rules_and_lets_are_evaluated_as_early_as_they_can_be() -> None:
    op = toy(TIMED)
    timed = {step.rule.where[-2]: step.at_construction for step in steps(op) if isinstance(step, CheckRule)}
    assert timed == {"0": True, "1": True, "2": False}
    lets = {step.name: step.at_construction for step in steps(op) if isinstance(step, Let)}
    assert lets == {"per": False, "doubled": True}
    for params, rule in (({"groups": 0}, 0), ({"groups": 50}, 1), ({"groups": 1, "limit": 0}, 3)):
        with pytest.raises(CheckError, match=rf"shape_rules\[{rule}\]"):
            signature_for(op).construct(**params)
    construction = signature_for(op).construct(groups=2)
    with pytest.raises(CheckError, match=r"shape_rules\[2\]: 'N % groups == 0' does not hold for N=3, groups=2"):
        signature_for(op).check_call(construction, (empty(3),))


# --- domain restrictions ---

RESTRICTED = """
forall: {M: Dim, N: Dim}
params: {turned: {type: bool, default: false}}
types:
  Mat:
    params: {given: Bool, turned: Bool, rows: Dim, columns: Dim}
    match: [given, turned]
    cases:
    - {when: [true, false], is: "[rows, columns]"}
    - {when: [true, true], is: "[columns, rows]"}
    - {when: [false, false], is: "[rows, 2 * columns]"}
inputs:
  x: {dtype: float32, shape: "Mat[present(mask), turned, M, N]"}
  mask: {dtype: float32, shape: "[M]", optional: true}
outputs:
  output: {dtype: float32, shape: "[M, N]"}
shape_rules:
- "%s"
- "N > 0"
"""


@pytest.mark.parametrize("rule", ["present(mask) or not turned", "not turned or present(mask)"])
def test_a_restriction_is_one_whatever_the_order_of_its_operands(rule: str) -> None:
    op = toy(RESTRICTED % rule, "[{M: 2, N: 2, label: a}, {M: 2, N: 2, turned: true, some: [mask], label: b}]")
    assert findings(op.raw) == []
    with pytest.raises(CheckError, match=r"shape_rules\[0\].*does not hold for"):
        check(op, empty(2, 2), None, turned=True)  # before a family's case is looked for
    with pytest.raises(CheckError, match=r"shape_rules\[0\]"):
        check(op, empty(7), None, turned=True)  # before shapes are unified


def test_a_rule_with_an_open_operand_is_no_restriction() -> None:
    """Judged over the whole rule: the one operand that reads an index makes the missing case a fault."""
    found = findings(simple(RESTRICTED % "present(mask) or not turned or M == 1"))
    assert found == [
        "signature.types.Mat.cases: no case for False, True, which signature.inputs.x.shape needs; give exactly one"
    ]


ORDERED = """
forall: {N: Dim, T: "DType[float32]"}
params: {strict: {type: bool, default: false}}
inputs:
  x: {dtype: T, shape: "[N]"}
  y: {dtype: T, shape: "[N]"}
  mask: {dtype: T, shape: "[N]", optional: true}
outputs:
  output: {dtype: T, shape: "[N]", buffer: out}
shape_rules:
- "N > 4"
- "not strict or present(mask)"
"""


def test_the_checks_of_a_call_have_an_order() -> None:
    """Presence, then restrictions, then inference and the other rules, then the buffer."""
    op = toy(ORDERED)
    out, wrong = empty(9), empty(3, dtype=torch.float64)
    for tensors, where in (
        ((wrong, None, None, out), "inputs.y"),
        ((wrong, wrong, None, out), "shape_rules[1]"),
        ((wrong, wrong, wrong, out), "inputs.x.dtype"),
        ((empty(3), empty(4), empty(3), out), "inputs.y.shape"),
        ((empty(3), empty(3), empty(3), out), "shape_rules[0]"),
        ((empty(5), empty(5), empty(5), out), "outputs.output.buffer.shape"),
    ):
        with pytest.raises(CheckError) as caught:
            check(op, *tensors, strict=True)
        assert caught.value.declaration == where
    check(op, empty(5), empty(5), empty(5), empty(5), strict=True)


# --- dtype combinations ---

COMBINED = """
forall: {N: Dim, T: "DType[float16 | float32]", U: "DType[float16 | float32]"}
params: {acc: {type: "float16 | float32"}}
inputs:
  x: {dtype: T, shape: "[N]"}
  y: {dtype: U, shape: "[N]", optional: %s}
outputs:
  output: {dtype: acc, shape: "[N]"}
dtype_combos:
- {T: float16, U: float16, acc: float32}
- {T: float32, U: float16, acc: float16}
"""


def test_dtype_parameters_may_be_columns() -> None:
    row = "[{N: 1, acc: float32, dtype_cases: [{T: float16, U: float16}], label: a}]"
    op = toy(COMBINED % "false", row)
    assert findings(op.raw) == []
    half, single = empty(1, dtype=torch.float16), empty(1)
    check(op, half, half, acc=torch.float32)
    check(op, single, half, acc=torch.float16)
    for x, acc in ((half, torch.float16), (single, torch.float32)):
        with pytest.raises(CheckError, match=r"dtype_combos: the dtypes .* are not supported together; use one of: "):
            check(op, x, half, acc=acc)


def test_a_column_that_a_branch_does_not_use_is_refused() -> None:
    assert findings(simple(COMBINED % "true")) == [
        "signature.dtype_combos: the column U is not used where y=False; use it on every branch"
    ]


# --- relevance ---


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("shape", None),
        ("rule", "not wide or Z > 0"),
        ("values", "full((M,), Z)"),
        ("requires", "in_range(0, Z)"),
        ("flops", "M * Z if wide else M"),
        ("let", "Z + 1"),
        ("nowhere", None),
        ("func", None),
    ],
)
def test_what_makes_an_index_relevant(place: str, text: str | None) -> None:
    """`Z` is solved from a tensor that is there only where `wide`: each use makes it relevant on that branch."""
    fields = simple(
        """
        forall: {M: Dim, Z: Dim}
        params: {wide: {type: bool, default: false}, size: {type: int, default: 3}}
        inputs:
          x: {dtype: float32, shape: "[M]"}
          ids: {dtype: int32, shape: "[M]", values: "full((M,), 1)", requires: ["in_range(0, 9)"], optional: wide}
        outputs:
          output: {dtype: float32, shape: "[M]"}
        """
    )
    signature, ids = fields["signature"], fields["signature"]["inputs"]["ids"]
    match place:
        case "shape":
            signature["inputs"]["z"] = {"dtype": "float32", "shape": "[Z]", "optional": "wide"}
        case "rule":
            signature["shape_rules"] = [text]
        case "values":
            ids["values"] = text
        case "requires":
            ids["requires"] = [text]
        case "flops":
            fields["roofline"]["flops"] = text
        case "let":
            signature["let"] = {"more": text}
            signature["shape_rules"] = ["not wide or more > 0"]
        case "func":
            fields["roofline"] = {"func": "tileops.perf.formulas.gqa_dense_fwd"}
    op = entry(fields)
    choices = discriminants(op.signature)
    formulas = [formula for formula in (op.roofline.flops, op.roofline.bytes) if formula is not None]
    relevant = {wide: branch_at(op.signature, choices, {"wide": wide}).relevant(*formulas) for wide in (False, True)}
    used = place not in ("nowhere", "func")
    assert ("Z" in relevant[True]) is used
    assert "Z" not in relevant[False]  # folded away with the guard
    assert "M" in relevant[True]


def test_rows_give_what_is_relevant_and_nothing_else() -> None:
    op = toy(
        """
        forall: {M: Dim, Z: Dim}
        params: {wide: {type: bool, default: false}}
        inputs:
          x: {dtype: float32, shape: "[M]"}
          z: {dtype: float32, shape: "[Z]", optional: wide}
        outputs: {output: {dtype: float32, shape: "[M]"}}
        """,
        "[{M: 1, label: a}, {M: 1, wide: true, label: b}, {M: 1, Z: 2, label: c}, {M: 1, Z: 2, wide: true, label: d}]",
    )
    (found,) = instantiate(op, 0)
    assert "Z" not in found.indices
    with pytest.raises(ManifestError, match="row misses Z, which this branch uses"):
        instantiate(op, 1)
    with pytest.raises(ManifestError, match="row gives irrelevant Z; this branch does not use it, remove it"):
        instantiate(op, 2)
    (found,) = instantiate(op, 3)
    assert found.indices["Z"] == 2


def test_materialized_tensors_are_contiguous_unshared_and_seeded() -> None:
    first, second = (materialize(cases(entry(base()))[0]) for _ in range(2))
    for name, tensor in first.items():
        assert tensor.is_contiguous()
        assert torch.equal(tensor, second[name])
    pointers = [tensor.untyped_storage().data_ptr() for tensor in first.values()]
    assert len(set(pointers)) == len(pointers)
    assert first["ids"].dtype == torch.int32


def test_rows_place_tensors_on_their_devices() -> None:
    call = cases(entry(base(GROUPED)))[2]
    placed = materialize(call, "meta")
    assert {name for name, tensor in placed.items() if tensor.device.type == "cpu"} == {"lengths"}
    assert placed["lengths"].tolist() == [1, 1]


# --- the language ---


def test_members_are_of_the_classes_of_the_language() -> None:
    """Primitives by the kind of their result; a member of one family carries its name."""
    classes = (k.SHAPE, k.INT, k.DIM, k.BOOL, k.INTS)
    for name, member in PRIMITIVES.items():
        if isinstance(member.result, k.Kind):
            assert member.result in classes or isinstance(member.result, k.Str | k.DType), name
        assert name.count(".") <= 1
    families = {name.partition(".")[0] for name in (*PRIMITIVES, *GENERATORS, *PREDICATES) if "." in name}
    assert families <= {"pool", "conv", "moe", "mhc", "attn"}
    assert all(isinstance(member.random, bool) for member in GENERATORS.values())


@pytest.mark.parametrize(
    "source",
    [
        "1 + 2 * 3 - 4 // 3 % 2",
        "-7 // 2 + -7 % 3",
        "not 1 > 2 and 3 > 2 or 1 == 2",
        "1 if 2 > 3 else 4 + 5",
        "2 in (1, 2) and not 3 in (1, 2)",
        "1 < 2 < 3 != 2",
        "(1, 2, 3)[-1] + (4, 5, 6)[1:][0]",
        "max(1, min(5, 3)) + sum(i * i for i in (1, 2) if i > 1)",
        "-inf < 0 < inf",
        "'a' == 'a' != 'b'",
    ],
)
def test_expressions_have_python_s_meaning(source: str) -> None:
    assert evaluate(parse(source, "here"), {}) == eval(source, {"inf": float("inf"), "max": max, "min": min})


def test_a_rule_reads_floats_and_strings_that_take_no_part_in_types() -> None:
    op = toy(
        """
        forall: {N: Dim}
        params: {eps: {type: float, default: 1.0e-5}, name: {type: str, default: gelu}}
        inputs: {x: {dtype: float32, shape: "[N]"}}
        outputs: {output: {dtype: float32, shape: "[N]"}}
        shape_rules: ["eps > 0 and eps < inf", "name != ''"]
        """,
        "[{N: 1, label: a}]",
        '{flops: "N if eps > 0.5 else 2 * N"}',
    )
    assert findings(op.raw) == []
    signature_for(op).construct(eps=2, name="relu")
    for wrong in ({"eps": 0.0}, {"eps": float("inf")}, {"name": ""}, {"eps": "small"}):
        with pytest.raises(CheckError):
            signature_for(op).construct(**wrong)


def test_every_member_of_the_language_has_a_test() -> None:
    texts = "\n".join(path.read_text() for path in (ROOT / "tests" / "manifest").glob("test_*.py"))
    for name in (*PRIMITIVES, *GENERATORS, *PREDICATES):
        function = name.rpartition(".")[2]
        assert re.search(rf"\b{function}\b", texts), f"{name} has no test"


# --- entries and code ---


def test_an_import_survives_a_broken_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the validator is strict: asking for an unreadable or missing entry gives None."""
    fields = base()
    fields["signature"]["inputs"]["a"]["shape"] = "[M"
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump({"BrokenFwdOp": fields}))
    monkeypatch.setattr(loading, "SPEC_DIR", tmp_path)
    monkeypatch.setattr(loading.spec_files, "__defaults__", (tmp_path,))
    monkeypatch.setattr(loading.family_files, "__defaults__", (tmp_path,))
    assert try_load_entry("BrokenFwdOp", "toy") is None
    assert try_load_entry("MissingFwdOp") is None


def test_status_does_not_change_what_is_generated() -> None:
    signatures = []
    for status in ("implemented", "spec-only"):
        fields = base()
        fields["status"] = status
        signatures.append(signature_for(entry(fields, f"Status{status[:4].title()}FwdOp")))
    construction = [signature.construct() for signature in signatures]
    sources = [
        signature.source(made, (True, True, True, False)).partition("\n")[2]
        for signature, made in zip(signatures, construction, strict=True)
    ]
    assert sources[0] == sources[1]
    assert [signature.has_boundary for signature in signatures] == [True, True]
    assert hasattr(Op, "eval_roofline")
