"""Type families: subjects, exhaustive and disjoint cases, applications, references between families."""

from __future__ import annotations

from typing import Any

import pytest

from tests.manifest.calls import empty
from tests.manifest.helpers import entry, findings, simple
from tileops.errors import CheckError
from tileops.manifest.branch import BranchError, branch_at, discriminants, group_discriminants
from tileops.manifest.branch_checks import branches
from tileops.manifest.workload import cases
from tileops.ops.signature_codegen import signature_for

GEMM = """
forall: {M: Dim, N: Dim, K: Dim}
params:
  trans_a: {type: bool, default: false}
  trans_b: {type: bool, default: false}
types:
  Mat:
    params: {t: Bool, R: Dim, C: Dim}
    match: t
    cases:
    - {when: false, is: "[R, C]"}
    - {when: true, is: "[C, R]"}
inputs:
  a: {dtype: float32, shape: "Mat[trans_a, M, K]"}
  b: {dtype: float32, shape: "Mat[trans_b, K, N]"}
outputs: {d: {dtype: float32, shape: "[M, N]"}}
"""


def shapes(text: str, **point: Any) -> dict[str, str]:
    """Shapes of the present tensors at a point."""
    signature = entry(simple(text)).signature
    choices = discriminants(signature)
    branch = branch_at(signature, choices, {choice.name: choice.values[0] for choice in choices} | point)
    return {name: tensor.shape_text for name, tensor in branch.tensors.items()}


# rule: 001 "An application's arguments bind to the family's params in declared order"
def test_arguments_bind_in_order() -> None:
    assert shapes(GEMM) == {"a": "[M, K]", "b": "[K, N]", "d": "[M, N]"}
    assert shapes(GEMM, trans_a=True) == {"a": "[K, M]", "b": "[K, N]", "d": "[M, N]"}
    assert shapes(GEMM, trans_a=True, trans_b=True)["b"] == "[N, K]"


# rule: 001 "Tensors applying one family take one branch together"
def test_tensors_with_one_discriminant_take_one_branch() -> None:
    text = GEMM.replace("Mat[trans_b, K, N]", "Mat[trans_a, K, N]")
    assert shapes(text, trans_a=True) == {"a": "[K, M]", "b": "[N, K]", "d": "[M, N]"}


# rule: 001 "match takes a finite discriminant ... or a tuple of them; a tuple's when is a list"
def test_subjects_are_finite() -> None:
    text = """
    forall: {M: Dim, N: Dim}
    params: {layout: {type: "'nhwc' | 'nchw'", default: nhwc}, side: {type: "'left' | 'right' | None", default: null}}
    types:
      Image:
        params: {layout: "'nhwc' | 'nchw'", masked: Bool, M: Dim, N: Dim}
        match: [layout, masked]
        cases:
        - {when: [nhwc, false], is: "[M, N, 3]"}
        - {when: [nhwc, true], is: "[M, N, 4]"}
        - {when: [nchw, false], is: "[3, M, N]"}
        - {when: [nchw, true], is: "[4, M, N]"}
      Side:
        params: {side: "'left' | 'right' | None", M: Dim}
        match: side
        cases:
        - {when: null, is: "[]"}
        - {when: left, is: "[M]"}
        - {when: right, is: "[1, M]"}
    inputs:
      x: {dtype: float32, shape: "Image[layout, present(mask), M, N]"}
      mask: {dtype: bool, shape: "[M, N]", optional: true}
    outputs: {y: {dtype: float32, shape: "Side[side, M]"}}
    """
    assert shapes(text)["x"] == "[M, N, 3]"
    assert shapes(text, mask=True, layout="nchw")["x"] == "[4, M, N]"
    assert [shapes(text, side=side)["y"] for side in (None, "left", "right")] == ["[]", "[M]", "[1, M]"]
    rows = "[{M: 2, N: 3, label: a}, {M: 2, N: 3, side: left, some: [mask], layout: nchw, label: b}]"
    assert findings(simple(text, rows, '{flops: "M * N"}')) == []
    assert [call.inputs["x"].shape for call in cases(entry(simple(text, rows)))] == [(2, 3, 3), (4, 2, 3)]


# rule: 001 "match ... a finite discriminant"
def test_a_subject_that_is_no_discriminant_is_rejected() -> None:
    text = GEMM.replace("Mat[trans_a, M, K]", "Mat[M > 3, M, K]")
    found = findings(simple(text))
    assert any("M > 3 is not decided by finite discriminants" in item for item in found), found
    assert any("signature.types.Mat.match" in item for item in findings(simple(GEMM.replace("match: t", "match: R"))))


# rule: 001 "cases are exhaustive and disjoint over the discriminant values the entry accepts"
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('    - {when: true, is: "[C, R]"}\n', ""), "no case for True, which signature.inputs.a.shape needs"),
        (("when: true", "when: false"), "2 cases for False"),
        (('is: "[C, R]"}', 'is: "[C, R]"}\n    - {when: true, is: "[R]"}'), "2 cases for True"),
        (("when: true", 'when: "true"'), "is no value of t, which takes"),
    ],
)
def test_cases_have_no_gap_and_no_overlap(change: tuple[str, str], message: str) -> None:
    found = findings(simple(GEMM.replace(*change)))
    assert any(message in item for item in found), found


# rule: 001 "values a domain restriction rejects need no case"; "checked before a type-family branch is chosen"
def test_rejected_values_need_no_case() -> None:
    text = GEMM.replace('    - {when: true, is: "[C, R]"}\n', "")
    text += 'shape_rules: ["not (trans_a or trans_b)"]\n'
    rows = "[{M: 1, N: 2, K: 3, label: row}]"
    assert findings(simple(text, rows, '{flops: "M"}')) == []
    signature = signature_for(entry(simple(text, rows), "OneCaseFwdOp"))
    with pytest.raises(
        CheckError, match=r"shape_rules\[0\]: 'not \(trans_a or trans_b\)' does not hold for trans_a=True"
    ):
        signature.construct(trans_a=True)


# rule: 001 "judged over the whole expression regardless of operand order"
@pytest.mark.parametrize("rule", ["trans_a or M > 0", "M > 0 or trans_a"])
def test_a_rule_that_also_reads_an_index_restricts_no_domain(rule: str) -> None:
    text = GEMM.replace('    - {when: false, is: "[R, C]"}\n', "") + f'shape_rules: ["{rule}"]\n'
    assert any("no case for False" in item for item in findings(simple(text)))


# rule: 001 "References between type families are acyclic"; "a family no shape applies is rejected"
def test_families_refer_to_families() -> None:
    text = GEMM.replace(
        "types:\n",
        'types:\n  Outer: {params: {t: Bool, R: Dim, C: Dim}, match: t, cases: [{when: true, is: "Mat[t, R, C]"}, '
        '{when: false, is: "[C, 1]"}]}\n',
    ).replace("Mat[trans_a, M, K]", "Outer[trans_a, M, K]")
    assert shapes(text) == {"a": "[K, 1]", "b": "[K, N]", "d": "[M, N]"}
    assert shapes(text, trans_a=True)["a"] == "[K, M]"
    assert any("no shape applies Outer" in item for item in findings(simple(text.replace("Outer[trans", "Mat[trans"))))
    cycle = GEMM.replace('is: "[C, R]"', 'is: "Mat[t, C, R]"')
    with pytest.raises(BranchError, match="type families refer to each other in a cycle: Mat -> Mat"):
        shapes(cycle, trans_a=True)
    assert any("cycle" in item for item in findings(simple(cycle)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("Mat[trans_a, M, K]", "Mat[trans_a, M]"), "Mat takes 3 arguments (t, R, C), got 2"),
        (("Mat[trans_a, M, K]", "Nat[trans_a, M, K]"), "there is no type family 'Nat'"),
        (('is: "[C, R]"', 'is: "[C, K]"'), "K is no formal of Mat; pass it as an argument"),
        (("Mat[trans_a, M, K]", "Mat[M, trans_a, K]"), "signature.inputs.a.shape"),
    ],
)
def test_applications_are_well_formed(change: tuple[str, str], message: str) -> None:
    found = findings(simple(GEMM.replace(*change)))
    assert any(message in item for item in found), found


# rule: 001 "Discriminants are grouped by dependency"
def test_only_discriminants_that_are_read_together_are_combined() -> None:
    signature = entry(simple(GEMM)).signature
    assert [len(group) for group in group_discriminants(signature, discriminants(signature))] == [1, 1]
    assert sum(1 for _ in branches(entry(simple(GEMM)))) == 3  # not 4: one varies while the other is held
    tied = entry(simple(GEMM + 'shape_rules: ["not (trans_a and trans_b)"]\n'))
    assert [len(group) for group in group_discriminants(tied.signature, discriminants(tied.signature))] == [2]
    assert sum(1 for _ in branches(tied)) == 3  # of 4, one is rejected


# rule: 001 "Above a configured number of combinations the validator reports an advisory diagnostic"
def test_too_many_combinations_are_an_advisory() -> None:
    flags = {f"f{number}": {"type": "bool", "default": False} for number in range(9)}
    fields = simple(
        'forall: {M: Dim}\ninputs: {x: {dtype: float32, shape: "[M]"}}\noutputs: {y: {dtype: float32, shape: "[M]"}}'
    )
    fields["signature"]["params"] = flags
    fields["signature"]["shape_rules"] = [" or ".join([*flags, "M > 0"])]
    fields["workloads"] = [{"M": 1, "label": "row"}]
    (found,) = findings(fields)
    assert found.startswith("signature: 512 combinations of f0, f1")


# rule: 001 "Branch selection" takes lets that discriminants decide
def test_a_let_over_discriminants_selects_a_case() -> None:
    text = GEMM.replace("Mat[trans_a, M, K]", "Mat[flipped, M, K]") + 'let: {flipped: "trans_a and not trans_b"}\n'
    assert shapes(text, trans_a=True)["a"] == "[K, M]"
    assert shapes(text, trans_a=True, trans_b=True)["a"] == "[M, K]"
    signature = signature_for(entry(simple(text), "FlippedFwdOp"))
    checked = signature.check_call(signature.construct(trans_a=True), (empty(4, 2), empty(4, 3)))
    assert checked.outputs[0].shape == (2, 3)
