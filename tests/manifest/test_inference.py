"""Inference: obligations and when they are checked, lets that fold, relevance, and plans that no order changes."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.manifest.calls import empty
from tests.manifest.helpers import entry, simple
from tileops.errors import CheckError
from tileops.manifest import load_all
from tileops.manifest.branch import BranchError, branch_at, discriminants
from tileops.manifest.entry import Entry
from tileops.manifest.plan import CheckNonNegative, CheckRule, Step, plan_branch
from tileops.manifest.signature import Signature
from tileops.manifest.unify import unify
from tileops.manifest.workload import instantiate
from tileops.ops.signature_codegen import signature_for


def toy(text: str, name: str, rows: str = "[{label: row}]") -> Entry:
    found = entry(simple(text, rows), name)
    assert not found.problems
    return found


def steps(found: Entry, **point: Any) -> tuple[Step, ...]:
    """Steps of the plan at a point."""
    choices = discriminants(found.signature)
    values = {choice.name: choice.values[0] for choice in choices} | point
    return plan_branch(branch_at(found.signature, choices, values)).steps


def obligations(text: str) -> dict[str, bool]:
    """Axes that are checked not to be negative, and whether that is when the op is constructed."""
    found = steps(toy(text, "ObligedFwdOp"))
    return {step.expr.text: step.at_construction for step in found if isinstance(step, CheckNonNegative)}


# --- obligations ---


# rule: 001 "An axis whose kind is not Dim, and every element of a sequence spliced with *p, carries the obligation"
@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("[M]", {}),
        ("[2 * M + 1]", {}),
        ("[*S, M]", {}),
        ("[len(S), prod(S)]", {}),
        ("[M - N]", {"M - N": False}),
        ("[S[0]]", {"S[0]": False}),
        ("[rows]", {"rows": True}),
        ("[rows - 1, 3]", {"rows - 1": True}),
        ("[rows * M]", {"rows * M": False}),
        ("[*sizes]", {"sizes": True}),
        ("[*reduced(S, None, False)]", {}),
        ("[conv.out(M, 3, 1, 0, 1)]", {"conv.out(M, 3, 1, 0, 1)": False}),
        ("[pool.out(M, 3, 1, 0, 1, False)]", {}),
        ("[per_axis(sizes, 0, 1)]", {"per_axis(sizes, 0, 1)": True}),
        ("[M if rows > 1 else N]", {}),
        ("[M if rows > 1 else N - 1]", {"M if rows > 1 else N - 1": False}),
    ],
)
def test_axes_that_are_no_dim_must_not_be_negative(output: str, expected: dict[str, bool]) -> None:
    text = f"""
    forall: {{M: Dim, N: Dim, S: Shape}}
    params: {{rows: {{type: int, default: 2}}, sizes: {{type: "list[int]", default: [1]}}}}
    inputs: {{x: {{dtype: float32, shape: "[M, N, *S]"}}}}
    outputs: {{y: {{dtype: float32, shape: "{output}"}}}}
    """
    assert obligations(text) == expected


# rule: 001 "is checked at construction when both what activates it ... and its value are available there"
def test_obligations_are_checked_as_early_as_they_can() -> None:
    text = """
    forall: {M: Dim}
    params: {rows: {type: int}, sizes: {type: "tuple[int, ...]", default: []}}
    inputs: {x: {dtype: float32, shape: "[M, *sizes]"}, extra: {dtype: float32, shape: "[rows]", optional: true}}
    outputs: {y: {dtype: float32, shape: "[M - rows]"}}
    """
    signature = signature_for(toy(text, "EarlyFwdOp"))
    with pytest.raises(
        CheckError, match=r"inputs\.x\.shape: sizes is \[2, -1\], but the size of an axis is not negative"
    ):
        signature.construct(rows=1, sizes=(2, -1))
    construction = signature.construct(rows=-1)  # extra may be absent: what a passed one needs is the call's matter
    assert signature.check_call(construction, (empty(3), None)).outputs[0].shape == (4,)
    with pytest.raises(CheckError, match=r"extra"):
        signature.check_call(construction, (empty(3), empty(1)))
    with pytest.raises(CheckError, match=r"outputs\.y\.shape: M - rows is -1, but the size of an axis is not negative"):
        signature.check_call(signature.construct(rows=4), (empty(3), None))


# rule: 001 "A refinement ... is checked at construction when construction can evaluate it, otherwise on every call"
def test_rules_are_checked_as_early_as_they_can() -> None:
    text = """
    forall: {M: Dim}
    params: {groups: {type: int, default: 1}, wide: {type: bool, default: false}}
    inputs: {x: {dtype: float32, shape: "[M]"}, bias: {dtype: float32, shape: "[M]", optional: true}}
    outputs: {y: {dtype: float32, shape: "[M]"}}
    let: {twice: "2 * groups"}
    shape_rules:
    - "twice > 0"
    - "not wide or twice > 8"
    - "M % groups == 0"
    - "not present(bias) or groups < 4"
    """
    signature = signature_for(toy(text, "EarlyRuleFwdOp"))
    with pytest.raises(CheckError, match=r"shape_rules\[0\]"):
        signature.construct(groups=0)
    with pytest.raises(CheckError, match=r"shape_rules\[1\]"):
        signature.construct(groups=2, wide=True)
    construction = signature.construct(groups=5, wide=True)
    with pytest.raises(CheckError, match=r"shape_rules\[2\]: 'M % groups == 0' does not hold for M=6, groups=5"):
        signature.check_call(construction, (empty(6), None))
    with pytest.raises(CheckError, match=r"shape_rules\[3\]"):
        signature.check_call(construction, (empty(5), empty(5)))
    assert signature.check_call(construction, (empty(5), None))


# rule: 001 "The graph's construction-available prefix ... is solved at construction"
def test_the_prefix_of_a_plan_is_solved_at_construction() -> None:
    text = """
    forall: {D: Dim, M: Dim}
    params: {table: {dtype: float32, shape: "[D, 2]"}, rows: {type: int, default: 1}}
    inputs: {x: {dtype: float32, shape: "[M, half]"}}
    outputs: {y: {dtype: float32, shape: "[M]"}}
    let: {half: "D // rows"}
    shape_rules: ["half > 1", "M > half"]
    """
    op = toy(text, "PrefixFwdOp")
    found = {type(step).__name__: step.at_construction for step in steps(op)}
    assert found["Let"]
    assert {step.rule.text: step.at_construction for step in steps(op) if isinstance(step, CheckRule)} == {
        "half > 1": True,
        "M > half": False,
    }
    signature = signature_for(op)
    with pytest.raises(CheckError, match=r"shape_rules\[0\]: 'half > 1' does not hold for half=1"):
        signature.construct(table=torch.zeros(4, 2), rows=4)
    with pytest.raises(CheckError, match=r"let\.half: in 'D // rows': division by zero"):
        signature.construct(table=torch.zeros(4, 2), rows=0)


# --- lets ---


# rule: 001 "let ... its kind is Dim or a value"; "A let is computed from the signature"
def test_lets_that_discriminants_decide_fold_into_rules() -> None:
    text = """
    forall: {M: Dim, N: Dim}
    params: {mode: {type: "'sum' | 'mean'", default: sum}}
    inputs: {x: {dtype: float32, shape: "[M]"}, w: {dtype: float32, shape: "[N]"}}
    outputs: {y: {dtype: float32, shape: "[M]"}}
    let: {mean: "mode == 'mean'", factor: "2 if mean else 1", size: "factor * M"}
    shape_rules: ["not mean or size > N"]
    """
    choices = discriminants(toy(text, "FoldedFwdOp").signature)
    signature = toy(text, "FoldedFwdOp").signature
    plain = branch_at(signature, choices, {"mode": "sum"})
    assert plain.rules == ()
    mean = branch_at(signature, choices, {"mode": "mean"})
    assert [rule.text for rule in mean.rules] == ["size > N"]
    assert mean.lets["size"].text == "2 * M"


# rule: 001 "let dependencies are acyclic"
def test_lets_that_read_each_other_are_rejected() -> None:
    text = """
    forall: {M: Dim}
    inputs: {x: {dtype: float32, shape: "[M]"}}
    outputs: {y: {dtype: float32, shape: "[a]"}}
    let: {a: "b + M", b: "a + 1"}
    """
    with pytest.raises(BranchError, match=r"a -> b -> a"):
        steps(toy(text, "CyclicFwdOp"))


# --- relevance ---


# rule: 001 "An index is relevant on a branch when that branch's shapes, dtypes, refinements ... use it"
@pytest.mark.parametrize(
    ("more", "roofline", "extra"),
    [
        ("", '{flops: "1"}', set()),
        ('shape_rules: ["R > 0"]', '{flops: "1"}', {"R"}),
        ('shape_rules: ["not flag or R > 0"]', '{flops: "1"}', set()),
        ('shape_rules: ["flag or R > 0"]', '{flops: "1"}', {"R"}),
        ("", '{flops: "R"}', {"R"}),
        ("", '{flops: "R if flag else 1"}', set()),
        ("", '{flops: "1", bytes: "R"}', {"R"}),
        ("", '{func: "tileops.perf.formulas.gqa_dense_fwd"}', set()),
        ('let: {twice: "2 * R"}', '{flops: "1"}', set()),
        ('let: {twice: "2 * R"}', '{flops: "twice"}', {"R"}),
    ],
)
def test_relevance(more: str, roofline: str, extra: set[str]) -> None:
    text = f"""
    forall: {{M: Dim, R: Dim, T: "DType[float16 | float32]"}}
    params: {{flag: {{type: bool, default: false}}}}
    inputs:
      x: {{dtype: T, shape: "[M]"}}
      scale: {{dtype: float32, shape: "[R]", optional: true}}
    outputs: {{y: {{dtype: T, shape: "[M]"}}}}
    {more}
    """
    found = entry(simple(text, "[{label: row}]", roofline), "RelevantFwdOp")
    assert not found.problems
    choices = discriminants(found.signature)
    branch = branch_at(found.signature, choices, {"flag": False, "scale": False})
    formulas = [item for item in (found.roofline.flops, found.roofline.bytes) if item is not None]
    assert branch.relevant(*formulas) == {"M", "T"} | extra


# rule: 001 "An index is relevant only on the branches where it appears"
def test_an_absent_tensor_s_indices_are_irrelevant() -> None:
    text = """
    forall: {M: Dim, R: Dim}
    inputs: {x: {dtype: float32, shape: "[M]"}, scale: {dtype: float32, shape: "[R]", optional: true}}
    outputs: {y: {dtype: float32, shape: "[M]"}}
    """
    found = toy(text, "AbsentFwdOp", "[{M: 2, label: a}, {M: 2, R: 3, some: [scale], label: b}]")
    assert [sorted(instantiate(found, row)[0].indices) for row in range(2)] == [["M"], ["M", "R"]]


# --- dtypes ---


# rule: 001 "a call's dtype assignment must equal one row"; "which may include dtype parameters"
def test_combinations_may_name_dtype_parameters() -> None:
    text = """
    forall: {M: Dim, T: "DType[float16 | float32]"}
    params: {out_dtype: {type: "float16 | float32", default: float32}}
    inputs: {x: {dtype: T, shape: "[M]"}}
    outputs: {y: {dtype: out_dtype, shape: "[M]"}}
    dtype_combos: [{T: float16, out_dtype: float16}, {T: float16, out_dtype: float32}]
    """
    signature = signature_for(toy(text, "ComboFwdOp"))
    half = empty(2, dtype=torch.float16)
    assert signature.check_call(signature.construct(), (half,)).outputs[0].dtype == torch.float32
    message = r"dtype_combos: the dtypes T=float32, out_dtype=float16 are not supported together"
    with pytest.raises(CheckError, match=message):
        signature.check_call(signature.construct(out_dtype=torch.float16), (empty(2),))


# --- order ---


def shuffled(signature: Signature, seed: int) -> Signature:
    """The same declarations in another order."""
    generator = random.Random(seed)

    def mixed(items: Mapping[str, Any]) -> dict[str, Any]:
        pairs = list(items.items())
        generator.shuffle(pairs)
        return dict(pairs)

    rules = list(signature.shape_rules)
    generator.shuffle(rules)
    return replace(
        signature,
        indices=mixed(signature.indices),
        inputs=mixed(signature.inputs),
        lets=mixed(signature.lets),
        families=mixed(signature.families),
        shape_rules=tuple(rules),
    )


# rule: 001 "the inference plan independent of declaration order"
def test_no_entry_depends_on_the_order_of_its_declarations() -> None:
    for found in load_all().values():
        call = instantiate(found, 0)[0]
        point = dict(call.branch.point)
        facts = {name: (item.shape, item.dtype) for name, item in {**call.held, **call.inputs}.items()}
        for seed in range(2):
            signature = shuffled(found.signature, seed)
            plan = plan_branch(branch_at(signature, discriminants(signature), point))
            solved = unify(found.name, plan, call.values, facts)
            assert solved.keys() <= call.indices.keys(), found.name
            assert solved == {name: call.indices[name] for name in solved}, found.name
