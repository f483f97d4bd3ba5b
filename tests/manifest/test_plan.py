"""Branches and inference plans: families, presence, axis forms, order independence, what is rejected."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.manifest.helpers import base, entry, simple
from tileops.errors import CheckError
from tileops.manifest.branch import BranchError, branch_at, discriminants, group_discriminants
from tileops.manifest.entry import Entry
from tileops.manifest.plan import Let, plan_branch
from tileops.manifest.unify import unify


def solve(toy: Entry, tensors: dict[str, Any], point: dict[str, Any] | None = None, **params: Any) -> dict[str, Any]:
    """Indices of a call; tensors are shapes, or (shape, dtype)."""
    choices = discriminants(toy.signature)
    values = {choice.name: choice.values[0] for choice in choices} | (point or {})
    plan = plan_branch(branch_at(toy.signature, choices, values))
    facts = {name: item if isinstance(item, tuple) else (tuple(item), "float32") for name, item in tensors.items()}
    defaults = {name: param.default for name, param in toy.signature.scalars.items()}
    return unify(toy.name, plan, defaults | params, facts)


def signature(forall: str, inputs: str, output: str = "[]", **more: Any) -> Entry:
    """An entry over float32 tensors; `inputs` is ``name: shape; name: shape``."""
    declared = dict(part.split(":", 1) for part in inputs.split(";"))
    fields = simple("{}")
    fields["signature"] = {
        "forall": dict(part.split(":") for part in forall.replace(" ", "").split(",") if part),
        "inputs": {name.strip(): {"dtype": "float32", "shape": shape.strip()} for name, shape in declared.items()},
        "outputs": {"output": {"dtype": "float32", "shape": output}},
        **more,
    }
    toy = entry(fields)
    assert not toy.problems
    return toy


@pytest.mark.parametrize(
    ("forall", "inputs", "tensors", "solved"),
    [
        ("M:Dim", "x: [M]", {"x": [3]}, {"M": 3}),
        ("M:Dim", "x: [2 * M + 1]", {"x": [7]}, {"M": 3}),
        ("M:Dim", "x: [M * 2]", {"x": [6]}, {"M": 3}),
        ("M:Dim", "x: [1 + M]", {"x": [1]}, {"M": 0}),
        ("M:Dim", "x: [M - 2]", {"x": [1]}, {"M": 3}),
        ("M:Dim", "x: [2 * (M + 1)]", {"x": [6]}, {"M": 2}),
        ("S:Shape", "x: [*S]", {"x": [2, 3]}, {"S": (2, 3)}),
        ("S:Shape", "x: [*S]", {"x": []}, {"S": ()}),
        ("S:Shape,M:Dim,K:Dim", "x: [M, *S, K]", {"x": [2, 5, 6, 3]}, {"M": 2, "S": (5, 6), "K": 3}),
        ("S:Shape,M:Dim", "x: [*S, 2 * M]; y: [*S]", {"x": [5, 4], "y": [5]}, {"S": (5,), "M": 2}),
        ("S:Shape,R:Shape", "x: [*S, *R]; y: [*R]", {"x": [5, 4], "y": [4]}, {"S": (5,), "R": (4,)}),
        (
            "A:Shape,B:Shape",
            "x: [*A]; y: [*B]; z: [*broadcast(A, B)]",
            {"x": [3, 1], "y": [4], "z": [3, 4]},
            {"A": (3, 1)},
        ),
    ],
)
def test_axis_forms(forall: str, inputs: str, tensors: dict[str, Any], solved: dict[str, Any]) -> None:
    found = solve(signature(forall, inputs), tensors)
    assert {name: found[name] for name in solved} == solved


@pytest.mark.parametrize(
    ("forall", "inputs", "tensors", "message"),
    [
        ("M:Dim", "x: [2 * M]", {"x": [7]}, "inputs.x.shape: x has shape [7]; axis 0 is 7, which 2 * M"),
        ("M:Dim", "x: [M + 3]", {"x": [2]}, "axis 0 is 2, which M + 3"),
        ("M:Dim", "x: [M, M]", {"x": [2, 3]}, "axis 1 is 3 where [M, M] needs M = 2 from x"),
        ("M:Dim", "x: [M]; y: [M]", {"x": [2], "y": [3]}, "inputs.y.shape: y has shape [3]; axis 0 is 3"),
        ("M:Dim", "x: [M]", {"x": [2, 3]}, "with 2 axes, expected 1 axis as [M]"),
        ("M:Dim,N:Dim", "x: [M, N]", {"x": [2]}, "with 1 axis, expected 2 axes as [M, N]"),
        ("M:Dim,S:Shape", "x: [*S, M]", {"x": []}, "with 0 axes, expected at least 1 axis as [*S, M]"),
        (
            "S:Shape",
            "x: [*S]; y: [*S]",
            {"x": [2], "y": [3]},
            "y has shape [3], which does not match [*S] with S = [2] from x",
        ),
        (
            "A:Shape,B:Shape",
            "x: [*A]; y: [*B]; z: [*broadcast(A, B)]",
            {"x": [3], "y": [4], "z": [4]},
            "do not broadcast",
        ),
    ],
)
def test_calls_that_do_not_unify(forall: str, inputs: str, tensors: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckError) as caught:
        solve(signature(forall, inputs), tensors)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("forall", "inputs", "field", "message"),
    [
        ("M:Dim,N:Dim", "x: [M * N]", "signature.inputs.x.shape", "M, N in 'M * N' is solved from no input"),
        ("S:Shape,R:Shape", "x: [*S, *R]", "signature.inputs.x.shape", "S in 'S' is solved from no input"),
        ("M:Dim", "x: [M * M]", "signature.inputs.x.shape", "M in 'M * M' is solved from no input"),
        ("M:Dim", "x: [M % 2]", "signature.inputs.x.shape", "M in 'M % 2' is solved from no input"),
        (
            "M:Dim,K:Dim",
            "x: [K * M]; y: [K]",
            "signature.inputs.x.shape",
            "M in 'K * M' is solved from no input",
        ),
        ("M:Dim", "x: [0 * M]", "signature.inputs.x.shape", "M in '0 * M'"),
        ("M:Dim", "x: [0 - M]", "signature.inputs.x.shape", "M in '0 - M'"),
    ],
)
def test_unsolvable_indices_are_rejected(forall: str, inputs: str, field: str, message: str) -> None:
    toy = signature(forall, inputs)
    with pytest.raises(BranchError) as caught:
        plan_branch(branch_at(toy.signature, (), {}))
    assert message in caught.value.message
    assert caught.value.field == field


def test_an_index_of_outputs_alone_is_rejected() -> None:
    toy = signature("M:Dim,N:Dim", "x: [M]", "[N]")
    with pytest.raises(BranchError, match="N"):
        plan_branch(branch_at(toy.signature, (), {}))


def test_lets_in_a_cycle_are_rejected() -> None:
    toy = signature("M:Dim", "x: [M]", "[p]", let={"p": "q + 1", "q": "p + M"})
    with pytest.raises(BranchError, match="lets depend on each other in a cycle: p -> q -> p"):
        plan_branch(branch_at(toy.signature, (), {}))


def test_lets_are_computed_in_order_of_dependence() -> None:
    toy = signature("M:Dim", "x: [M]", "[c]", let={"c": "b + 1", "b": "2 * M"})
    plan = plan_branch(branch_at(toy.signature, (), {}))
    assert [step.name for step in plan.steps if isinstance(step, Let)] == ["b", "c"]
    assert solve(toy, {"x": [3]})["c"] == 7


def test_a_parameter_may_be_the_factor_of_an_axis() -> None:
    toy = signature("M:Dim", "x: [heads * M]", params={"heads": {"type": "int"}})
    assert solve(toy, {"x": [6]}, heads=2)["M"] == 3
    for heads in (0, -2, 4):
        with pytest.raises(CheckError, match=r"axis 0 is 6, which heads \* M"):
            solve(toy, {"x": [6]}, heads=heads)


def test_non_affine_relations_are_bound_and_equated() -> None:
    toy = signature(
        "P:Dim,M:Dim", "x: [P]; y: [M]", let={"half": "P // 2"}, shape_rules=["half * 2 == P and half == M"]
    )
    assert solve(toy, {"x": [6], "y": [3]})["half"] == 3
    with pytest.raises(CheckError, match=r"shape_rules\[0\]"):
        solve(toy, {"x": [6], "y": [2]})


@settings(max_examples=60, deadline=None)
@given(st.permutations(["a: [M, K]", "b: [K, 2 * N]", "c: [*S, N + 1, M]", "d: [*S]"]))
def test_plans_do_not_depend_on_declaration_order(order: list[str]) -> None:
    toy = signature("M:Dim,N:Dim,K:Dim,S:Shape", "; ".join(order))
    tensors = {"a": [2, 3], "b": [3, 10], "c": [7, 8, 6, 2], "d": [7, 8]}
    found = solve(toy, tensors)
    assert {name: found[name] for name in "MNKS"} == {"M": 2, "N": 5, "K": 3, "S": (7, 8)}


def test_dtypes_unify_and_combine() -> None:
    fields = simple(
        """
        forall: {T: "DType[float16 | float32]", U: "DType[float16 | float32]"}
        inputs: {x: {dtype: T, shape: "[]"}, y: {dtype: T, shape: "[]"}, z: {dtype: U, shape: "[]"}}
        outputs: {output: {dtype: "promote_int_to_float(U)", shape: "[]"}}
        dtype_combos: [{T: float16, U: float16}, {T: float16, U: float32}]
        """
    )
    toy = entry(fields)
    half, single = ((), "float16"), ((), "float32")
    assert solve(toy, {"x": half, "y": half, "z": single})["U"] == "float32"
    with pytest.raises(CheckError, match=r"inputs.y.dtype: y has dtype float32, expected float16, the dtype of x"):
        solve(toy, {"x": half, "y": single, "z": single})
    with pytest.raises(CheckError, match="T=float32, U=float32 are not supported together"):
        solve(toy, {"x": single, "y": single, "z": single})
    with pytest.raises(CheckError, match="x has dtype int8"):
        solve(toy, {"x": ((), "int8"), "y": half, "z": single})


def test_branches_choose_family_cases_and_fold_rules() -> None:
    toy = entry(base())
    choices = discriminants(toy.signature)
    assert [choice.key for choice in choices] == [
        "transposed",
        "mode",
        "present(limit)",
        "inplace",
        "present(bias)",
    ]
    point = {"transposed": True, "mode": "sum", "limit": False, "inplace": True, "bias": False}
    branch = branch_at(toy.signature, choices, point)
    assert branch.inputs["a"].shape_text == "[K, M]"
    assert list(branch.inputs) == ["a", "b", "ids"]
    assert branch.written == ("a",)
    assert [rule.text for rule in branch.rules] == ["groups > 0 and N % groups == 0"]
    assert branch.relevant() == {"M", "N", "K", "T", "seq_lens"}


def test_discriminants_group_by_what_reads_them_together() -> None:
    toy = entry(base())
    groups = group_discriminants(toy.signature, discriminants(toy.signature))
    assert sorted([choice.name for choice in group] for group in groups) == (
        [["bias"], ["limit"], ["mode"], ["transposed", "inplace"]]
    )


CLAMP = """
forall: {A: Shape, L: Shape, U: Shape, T: "DType[float32]"}
types:
  ClampOut:
    params: {A: Shape, L: Shape, U: Shape, pl: Bool, pu: Bool}
    match: [pl, pu]
    cases:
    - {when: [true, true], is: "[*broadcast(A, L, U)]"}
    - {when: [true, false], is: "[*broadcast(A, L)]"}
    - {when: [false, true], is: "[*broadcast(A, U)]"}
inputs:
  input: {dtype: T, shape: "[*A]"}
  min: {dtype: T, shape: "[*L]", optional: true}
  max: {dtype: T, shape: "[*U]", optional: true}
outputs:
  output: {dtype: T, shape: "ClampOut[A, L, U, present(min), present(max)]"}
shape_rules: ["present(min) or present(max)"]
"""


def test_domain_restrictions_need_no_case() -> None:
    toy = entry(simple(CLAMP))
    choices = discriminants(toy.signature)
    rejected = branch_at(toy.signature, choices, {"min": False, "max": False})
    assert [rule.source for rule in rejected.restrictions] == ["present(min) or present(max)"]
    found = branch_at(toy.signature, choices, {"min": True, "max": False})
    assert found.outputs["output"].shape_text == "[*broadcast(A, L)]"
    assert found.relevant() == {"A", "L", "T"}


def test_shared_presence_and_nullable_outputs() -> None:
    toy = entry(
        simple("""
        forall: {E: Dim, S: Dim, H: Dim}
        inputs:
          x: {dtype: float32, shape: "[H]"}
          gate: {dtype: float32, shape: "[2 * S, H]", optional: true}
          down: {dtype: float32, shape: "[H, S]", optional: "present(gate)"}
        outputs:
          shared: {dtype: float32, shape: "[S]", nullable: "present(gate)"}
          routed: {dtype: float32, shape: "[H]"}
    """)
    )
    choices = discriminants(toy.signature)
    assert [choice.key for choice in choices] == ["present(gate)"]
    without = branch_at(toy.signature, choices, {"gate": False})
    assert list(without.inputs) == ["x"]
    assert list(without.outputs) == ["routed"]
    assert without.relevant() == {"H"}
    assert list(branch_at(toy.signature, choices, {"gate": True}).outputs) == ["shared", "routed"]


DIMS = st.dictionaries(st.sampled_from("MNK"), st.integers(0, 4), min_size=3, max_size=3)


@settings(max_examples=150, deadline=None)
@given(st.data(), DIMS, st.lists(st.integers(0, 3), max_size=3))
def test_instantiated_signatures_infer_back(data: st.DataObject, dims: dict[str, int], segment: list[int]) -> None:
    """For random shapes over known values, unification gives the values back, or the entry is rejected."""
    axis = st.sampled_from(["M", "N", "K", "2 * M", "N + 1", "3 * K + 2", "M * N", "*S", "4"])
    shapes = data.draw(st.lists(st.lists(axis, max_size=4), min_size=1, max_size=4))
    toy = signature(
        "M:Dim,N:Dim,K:Dim,S:Shape",
        "; ".join(f"t{i}: [{', '.join(shape)}]" for i, shape in enumerate(shapes)),
    )
    values: dict[str, Any] = {**dims, "S": tuple(segment)}
    tensors = {
        f"t{i}": [size for item in shape for size in (segment if item == "*S" else [eval(item, dict(dims))])]
        for i, shape in enumerate(shapes)
    }
    try:
        found = solve(toy, tensors)
    except BranchError:
        return
    used = {name for name in "MNKS" if any(name in item for shape in shapes for item in shape)}
    assert {name: found[name] for name in used} == {name: values[name] for name in used}
