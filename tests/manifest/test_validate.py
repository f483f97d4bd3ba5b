"""The validator: single faults are found and named, output is sorted and stable, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.manifest.helpers import base, entry, findings, mutated, simple
from tileops.manifest import validate
from tileops.manifest.branch_checks import MAX_COMBINATIONS

ROOT = Path(__file__).resolve().parents[2]
Change = Callable[[dict[str, Any]], Any]


def sig(change: Change) -> Change:
    """A change of the signature."""
    return lambda fields: change(fields["signature"])


def a(change: Change) -> Change:
    """A change of input `a`."""
    return lambda fields: change(fields["signature"]["inputs"]["a"])


def rule(text: object) -> Change:
    """One more refinement."""
    return lambda fields: fields["signature"]["shape_rules"].append(text)


def family(change: Change) -> Change:
    return lambda fields: change(fields["signature"]["types"]["Mat"])


MUTATIONS: list[tuple[Change, str]] = [
    # Top level
    (lambda f: f.pop("status"), "status: the field is missing; every entry has it"),
    (lambda f: f.update(status="done"), "status: expected implemented or spec-only, got 'done'"),
    (lambda f: f.pop("workloads"), "workloads: the field is missing; every entry has it"),
    (lambda f: f.update(workloads=[]), "workloads: there is no row; give at least one"),
    (lambda f: f.update(workloads={}), "workloads: expected a list, got {}"),
    (lambda f: f.pop("roofline"), "roofline: the field is missing; every entry has it"),
    (lambda f: f.pop("signature"), "signature: the field is missing; every entry has a signature"),
    (lambda f: f.update(kernel="x"), "entry: unknown key 'kernel'; known are family, status, ref_api"),
    (lambda f: f.update({3: "x"}), "entry: unknown key 3; known are"),
    (
        lambda f: f.update(ref_api="torch matmul"),
        "ref_api: 'torch matmul' is no qualified name; write for example",
    ),
    (lambda f: f.update(ref_api=3), "ref_api: expected a qualified name, got 3"),
    # forall, names
    (
        sig(lambda s: s["forall"].update(Z="Integer")),
        "signature.forall.Z: 'Integer' is no kind; write Dim, Shape",
    ),
    (
        sig(lambda s: s["forall"].update(Z="DType[float17]")),
        "signature.forall.Z: unknown dtype 'float17'; known are",
    ),
    (
        sig(lambda s: s["forall"].update(out="Dim")),
        "signature.forall.out: out is reserved for the output buffer",
    ),
    (
        sig(lambda s: s["forall"].update(a="Dim")),
        "signature.inputs.a: 'a' is also declared in signature.forall",
    ),
    (
        sig(lambda s: s["forall"].update({"lambda": "Dim"})),
        "signature.forall.lambda: 'lambda' cannot be used as a name",
    ),
    (sig(lambda s: s["forall"].update({"2x": "Dim"})), "signature.forall: '2x' is no name; use letters"),
    (sig(lambda s: s["forall"].pop("M")), "signature.inputs.a.shape: in 'M'"),
    (sig(lambda s: s.update(forall=[])), "signature.forall: expected a mapping, got []"),
    (sig(lambda s: s.update(sizes={})), "signature: unknown key 'sizes'; known are forall, params"),
    # params
    (sig(lambda s: s["params"]["groups"].pop("type")), "signature.params.groups.type: None is no type"),
    (
        sig(lambda s: s["params"]["groups"].update(type="integer")),
        "signature.params.groups.type: 'integer': 'integer'",
    ),
    (
        sig(lambda s: s["params"]["groups"].update(default="x")),
        "signature.params.groups.default: expected an integer",
    ),
    (
        sig(lambda s: s["params"]["mode"].update(default="max")),
        "signature.params.mode.default: expected one of 'sum'",
    ),
    (
        sig(lambda s: s["params"]["inplace"].update(kw_only="yes")),
        "signature.params.inplace.kw_only: expected true or",
    ),
    (
        sig(lambda s: s["params"]["groups"].update(help="x")),
        "signature.params.groups: unknown key 'help'; known are",
    ),
    (
        sig(lambda s: s["params"].update(last={"type": "int"})),
        "signature.params.last: a parameter without a default",
    ),
    (
        sig(lambda s: s["params"].update(device={"type": "str", "default": "cpu"})),
        "only an op without call-time inputs",
    ),
    # tensors
    (a(lambda t: t.pop("shape")), "signature.inputs.a.shape: in 'None': a shape is written as a string"),
    (
        a(lambda t: t.pop("dtype")),
        "signature.inputs.a.dtype: in 'None': an expression is written as a string",
    ),
    (
        a(lambda t: t.update(shape="[M, K")),
        "signature.inputs.a.shape: in '[M, K': not a well-formed expression",
    ),
    (
        a(lambda t: t.update(shape="[M, Q]")),
        "signature.inputs.a.shape: in '[M, Q]' at column 5: 'Q' is not declared",
    ),
    (
        a(lambda t: t.update(shape="[M, mode]")),
        "signature.inputs.a.shape: expected an integer, '[M, mode]' is of kind",
    ),
    (
        a(lambda t: t.update(shape="[*M, K]")),
        "signature.inputs.a.shape: expected a Shape or a sequence of integers",
    ),
    (a(lambda t: t.update(shape="Tam[M, K]")), "signature.inputs.a.shape: there is no type family 'Tam'"),
    (a(lambda t: t.update(shape="Mat[M, K]")), "signature.inputs.a.shape: Mat takes 3 arguments"),
    (a(lambda t: t.update(shape="Mat[limit, M, K]")), "signature.types.Mat"),
    (
        a(lambda t: t.update(dtype="float17")),
        "signature.inputs.a.dtype: in 'float17' at column 1: 'float17' is not",
    ),
    (a(lambda t: t.update(dtype="M")), "signature.inputs.a.dtype: expected a dtype, 'M' is of kind Dim"),
    (a(lambda t: t.update(layout="x")), "signature.inputs.a: unknown key 'layout'; known are dtype, shape"),
    (a(lambda t: t.update(device="cuda")), "signature.inputs.a.device: expected cpu, got 'cuda'"),
    (a(lambda t: t.update(contiguous="yes")), "signature.inputs.a.contiguous: expected true or false"),
    (a(lambda t: t.update(optional="K > 2")), "signature.inputs.a.optional: K is no finite discriminant"),
    (
        a(lambda t: t.update(optional="mode")),
        "signature.inputs.a.optional: expected a condition, 'mode' is of kind",
    ),
    (
        a(lambda t: t.update(kw_only=True)),
        "signature.inputs.a.kw_only: only an optional input is keyword-only",
    ),
    (
        sig(lambda s: s["inputs"].update(z={"dtype": "T", "shape": "[N]"})),
        "signature.inputs.z: required inputs come",
    ),
    (
        sig(lambda s: s["outputs"]["norm"].update(nullable="groups > 1")),
        "outputs.norm.nullable: groups is no finite",
    ),
    (
        sig(lambda s: s["outputs"]["norm"].update(shape="[Z]")),
        "signature.outputs.norm.shape: in '[Z]' at column 2",
    ),
    (
        sig(lambda s: s["outputs"]["norm"].update(optional=True)),
        "signature.outputs.norm: unknown key 'optional'",
    ),
    # effects
    (
        a(lambda t: t.update(write_only=True, mutated=None)),
        "signature.inputs.a.write_only: only a mutated input is",
    ),
    (a(lambda t: t.pop("mutated")), "signature.outputs.output.alias: a is never written"),
    (a(lambda t: t.update(mutated="limit")), "signature.inputs.a.mutated: expected a condition"),
    (
        sig(lambda s: s["outputs"]["output"].update(alias="c")),
        "signature.outputs.output.alias: 'c' is no input",
    ),
    (
        sig(lambda s: s["outputs"]["output"].update(buffer="out")),
        "an output with an alias declares no buffer",
    ),
    (
        sig(lambda s: s["outputs"]["norm"].update(buffer="dst")),
        "signature.outputs.norm.buffer: expected out, got 'dst'",
    ),
    # metadata
    (
        sig(lambda s: s["inputs"]["ids"].pop("values")),
        "signature.inputs.ids.values: a tensor with requires has values",
    ),
    (
        sig(lambda s: s["inputs"]["ids"].update(values="arange(M)")),
        "'arange(M)' calls no built-in generator; known are",
    ),
    (
        sig(lambda s: s["inputs"]["ids"].update(values="packed_positions(mode)")),
        "lengths of packed_positions must be of",
    ),
    (
        sig(lambda s: s["inputs"]["ids"].update(requires=["below(3)"])),
        "'below(3)' calls no built-in predicate",
    ),
    (
        sig(lambda s: s["inputs"]["ids"].update(requires=["in_range(0)"])),
        "requires[0]: in 'in_range(0)': in_range misses",
    ),
    (sig(lambda s: s["inputs"]["ids"].update(shape="[M, 2]")), "packed_positions makes a tensor of rank 1"),
    (
        sig(lambda s: s["let"].update(total="sum(seq_lens)")),
        "signature.let.total: seq_lens is a value list of forall",
    ),
    # families
    (
        family(lambda t: t["cases"].pop()),
        "signature.types.Mat.cases: no case for True, which signature.inputs.a.shape",
    ),
    (family(lambda t: t["cases"].append(t["cases"][0])), "signature.types.Mat.cases: 2 cases for False"),
    (family(lambda t: t["cases"][0].pop("when")), "signature.types.Mat.cases[0]: the case has no when"),
    (
        family(lambda t: t["cases"][0].update({"is": "[rows, M]"})),
        "cases[0].is: M is no formal of Mat; pass it as",
    ),
    (
        family(lambda t: t.update(match="transposed")),
        "signature.types.Mat.match: transposed is no formal of Mat",
    ),
    (
        family(lambda t: t["params"].update(flipped="Boolean")),
        "signature.types.Mat.params.flipped: 'Boolean'",
    ),
    (family(lambda t: t.update(note="x")), "signature.types.Mat: unknown key 'note'"),
    (
        family(lambda t: t["cases"][0].update({"is": "Mat[flipped, rows, columns]"})),
        "refer to each other in a cycle",
    ),
    (
        sig(lambda s: s["types"].update(Two={"params": {"t": "Bool"}, "match": "t", "cases": []})),
        "no shape applies Two",
    ),
    # let, rules
    (
        sig(lambda s: s["let"].update(half="N // ")),
        "signature.let.half: in 'N //': not a well-formed expression",
    ),
    (sig(lambda s: s["let"].update(half="half + 1")), "lets depend on each other in a cycle: half -> half"),
    (rule("N"), "signature.shape_rules[2]: expected a condition, 'N' is of kind Dim"),
    (rule("a.shape == (M, K)"), 'write a: {shape: "[M, K]"}'),
    (
        rule("P == N // groups"),
        'signature.shape_rules[2]: an equality does not define a name; write let: {P: "N // groups"}',
    ),
    (
        rule("bias is None or N > 0"),
        "signature.shape_rules[2]: in 'bias is None or N > 0' at column 1: presence is not",
    ),
    (rule("limit is None"), "write not present(limit)"),
    (rule("isinstance(groups, int)"), "isinstance is not built in; write per_axis(groups, i, n)"),
    (rule("len({x for x in (1, 2)}) == 2"), "to require distinct axes write unique_axes(dim, n)"),
    (
        rule("mode == 'max'"),
        "signature.shape_rules[2]: in \"mode == 'max'\" at column 9: 'max' is no value of 'mode'",
    ),
    (rule("limit.value > 0"), "limit.value is read where limit may be absent; guard it with present(limit)"),
    (
        rule("foo(N) > 0"),
        "signature.shape_rules[2]: in 'foo(N) > 0' at column 1: 'foo' is not a built-in primitive",
    ),
    (rule("False"), "the domain restrictions reject every combination"),
    (rule(["x"]), "signature.shape_rules[2]: in \"['x']\": an expression is written as a string"),
    (sig(lambda s: s.update(shape_rules="N > 0")), "signature.shape_rules: expected a list, got 'N > 0'"),
    # dtype_combos
    (
        sig(lambda s: s.update(dtype_combos=[{"T": "float16"}, {"T": "float16"}])),
        "dtype_combos[1]: the row is already",
    ),
    (
        sig(lambda s: s.update(dtype_combos=[{"T": "float64"}])),
        "dtype_combos[0]: T ranges over float16, float32",
    ),
    (sig(lambda s: s.update(dtype_combos=[{"T": "float17"}])), "dtype_combos[0]: unknown dtype 'float17'"),
    (
        sig(lambda s: s.update(dtype_combos=[{"U": "float16"}])),
        "dtype_combos[0]: U is no dtype index or parameter",
    ),
    (sig(lambda s: s.update(dtype_combos=[{"T": "float16"}])), "are not supported together"),
    # roofline, composition
    (lambda f: f.update(roofline={"flops": "N +"}), "roofline.flops: in 'N +': not a well-formed expression"),
    (lambda f: f.update(roofline={"flops": "Z"}), "roofline.flops: in 'Z' at column 1: 'Z' is not declared"),
    (lambda f: f.update(roofline={"flops": "mode"}), "roofline.flops: expected a number, 'mode' is of kind"),
    (lambda f: f.update(roofline={}), "roofline: give either flops"),
    (
        lambda f: f.update(roofline={"flops": "1", "func": "tileops.perf.formulas.x"}),
        "roofline: give either flops",
    ),
    (
        lambda f: f.update(roofline={"func": "os.getcwd"}),
        "roofline.func: expected a function of tileops.perf.formulas",
    ),
    (lambda f: f.update(roofline={"func": "tileops.perf.formulas.x"}), "roofline.func: there is no function"),
    (
        lambda f: f.update(composition={"kind": "composite", "stages": []}),
        "composition.stages: there is no stage",
    ),
    (
        lambda f: f.update(composition={"kind": "one", "stages": [{"name": "x", "op": "Y"}]}),
        "composition.kind: expected",
    ),
    (
        lambda f: f.update(composition={"kind": "composite", "stages": [{"name": "x", "op": "YFwdOp"}]}),
        "composition.stages[0].op: there is no entry 'YFwdOp'",
    ),
    (
        lambda f: f.update(composition={"kind": "composite", "stages": [{"name": "x", "op": "Y", "kernel": "k"}]}),
        "composition.stages[0]: a stage names either an op or a kernel",
    ),
    # rows
    (lambda f: f["workloads"][0].pop("N"), "workloads[0]: row misses N, which this branch uses"),
    (lambda f: f["workloads"][0].update(M=5), "workloads[0].M: row gives irrelevant M"),
    (
        lambda f: f["workloads"][1].update(label="small", N=8),
        "workloads[1].label: 'small' also names workloads[0]",
    ),
    (
        lambda f: f["workloads"].append(f["workloads"][0]),
        "workloads: the case id 'small-float16' occurs twice",
    ),
    (
        lambda f: f.update(status="implemented") or f["workloads"].pop(),
        "signature.inputs.bias: no row passes bias",
    ),
    (
        lambda f: f.update(status="implemented") or f["workloads"].pop(0),
        "signature.inputs.bias: no row omits bias; add one that does",
    ),
]


def test_the_base_is_valid() -> None:
    assert mutated(lambda fields: None) == []


@pytest.mark.parametrize(("change", "expected"), MUTATIONS, ids=[text[:50] for _, text in MUTATIONS])
def test_a_single_fault_is_found_and_named(change: Change, expected: str) -> None:
    found = mutated(change)
    assert any(expected in item for item in found), "\n".join(found) or "nothing was found"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("toy_op", "key: 'toy_op' is no operator name; write PascalCase ending in FwdOp or BwdOp"),
        ("Toy", "key: 'Toy' is no operator name"),
        ("GQAFwdPagedOp", "key: words of a variant stand before the direction; write GQAPagedFwdOp"),
    ],
)
def test_keys(name: str, message: str) -> None:
    assert any(message in item for item in findings(base(), name))
    assert not findings(base(), "ToyOp")


def test_a_family_missing_a_rejected_case_is_whole() -> None:
    fields = base()
    fields["signature"]["types"]["Mat"]["cases"].pop()
    fields["signature"]["shape_rules"].append("not transposed")
    fields["workloads"].pop()
    assert findings(fields) == []


def test_restrictions_that_leave_nothing() -> None:
    found = mutated(rule("transposed and not transposed"))
    assert (
        "signature.shape_rules: the domain restrictions reject every combination of transposed, "
        "inplace; relax one" in (found[0])
    )


def test_too_many_combinations_are_an_advisory() -> None:
    count = MAX_COMBINATIONS.bit_length()
    flags = [f"f{i}" for i in range(count)]
    fields = simple(
        yaml.safe_dump(
            {
                "forall": {"N": "Dim"},
                "params": {flag: {"type": "bool", "default": False} for flag in flags},
                "inputs": {"x": {"dtype": "float32", "shape": "[N]"}},
                "outputs": {"output": {"dtype": "float32", "shape": "[N]"}},
                "shape_rules": [" or ".join(["N > 0", *flags])],
            }
        ),
        "[{N: 1, label: a}]",
    )
    found = validate.check_entry(entry(fields))
    assert [item.advisory for item in found] == [True]
    assert "512 combinations" in found[0].message


def test_the_manifest_passes_with_its_code() -> None:
    found, count = validate.validate()
    broken_imports = [item for item in found if "cannot be imported" in item.message]
    assert [str(item) for item in found if item not in broken_imports] == []
    assert count >= 7


def write(directory: Path, fields: dict[str, Any], name: str = "ToyFwdOp") -> Path:
    (directory / "toy.yaml").write_text(yaml.safe_dump({name: fields}, sort_keys=False))
    return directory


def run(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "scripts/validate_manifest.py", "--static", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"PYTHONHASHSEED": hash_seed, "PATH": "/usr/bin:/bin"},
    )


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert validate.main(["--static"]) == 0
    assert capsys.readouterr().out.endswith("entries checked: 0 errors\n")
    assert validate.main(["--static", "--check-op", "GemmFwdOp"]) == 0
    assert capsys.readouterr().out == "1 entry checked: 0 errors\n"
    assert validate.main(["--static", "--check-op", "NoFwdOp"]) == 2
    assert "the manifest has no entry 'NoFwdOp'" in capsys.readouterr().err
    assert validate.main(["--levels", "style"]) == 2
    with pytest.raises(SystemExit) as caught:
        validate.main(["--colour"])
    assert caught.value.code == 2
    capsys.readouterr()
    fields = base()
    fields["ref_api"] = "no name"
    fields["signature"]["shape_rules"].append("N")
    directory = ["--spec-dir", str(write(tmp_path, fields)), "--static"]
    assert validate.main(directory) == 1
    assert capsys.readouterr().out.splitlines() == [
        "[schema] ToyFwdOp: ref_api: 'no name' is no qualified name; write for example torch.matmul (toy.yaml:4)",
        "[signature] ToyFwdOp: signature.shape_rules[2]: expected a condition, 'N' is of kind Dim (toy.yaml:72)",
        "1 entry checked: 2 errors",
    ]
    assert validate.main([*directory, "--levels", "signature"]) == 1
    assert "ref_api" not in capsys.readouterr().out
    assert validate.main([*directory, "--json"]) == 1
    assert [item["field"] for item in json.loads(capsys.readouterr().out)] == [
        "ref_api",
        "signature.shape_rules[2]",
    ]


def test_output_does_not_depend_on_hash_order(tmp_path: Path) -> None:
    fields = base()
    fields |= {"zeta": 1, "alpha": 2, 7: 3}
    fields["signature"]["shape_rules"] += ["P + Q > 0", "mode == 'x'", "R > S"]
    fields["signature"]["inputs"]["a"] |= {"q": 1, "r": 2}
    write(tmp_path, fields)
    outputs = {run("--spec-dir", str(tmp_path), hash_seed=seed).stdout for seed in ("0", "1", "77")}
    assert len(outputs) == 1
    assert outputs.pop().count("\n") >= 6


def test_script_exit_code() -> None:
    assert run().returncode == 0


# --- anything at all ---

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(), st.text(max_size=8))
YAML = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=8,
)
PATHS = st.sampled_from(
    [
        ("status",),
        ("ref_api",),
        ("signature",),
        ("workloads",),
        ("roofline",),
        ("composition",),
        ("signature", "forall"),
        ("signature", "forall", "M"),
        ("signature", "params"),
        ("signature", "params", "groups"),
        ("signature", "params", "groups", "type"),
        ("signature", "types"),
        ("signature", "types", "Mat"),
        ("signature", "types", "Mat", "cases"),
        ("signature", "types", "Mat", "match"),
        ("signature", "inputs"),
        ("signature", "inputs", "a"),
        ("signature", "inputs", "a", "shape"),
        ("signature", "inputs", "ids", "values"),
        ("signature", "inputs", "ids", "requires"),
        ("signature", "inputs", "bias", "optional"),
        ("signature", "outputs"),
        ("signature", "outputs", "norm", "nullable"),
        ("signature", "let"),
        ("signature", "let", "half"),
        ("signature", "shape_rules"),
        ("signature", "dtype_combos"),
        ("workloads", 0),
        ("workloads", 0, "dtype_cases"),
        ("workloads", 0, "some"),
        ("workloads", 0, "seq_lens"),
        ("workloads", 0, "label"),
        ("roofline", "flops"),
    ]
)


@settings(max_examples=150, deadline=None)
@given(PATHS, YAML)
def test_arbitrary_values_give_diagnostics_never_exceptions(path: tuple[Any, ...], value: Any) -> None:
    fields = base()
    target: Any = fields
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    for item in validate.check_entry(entry(fields)):
        assert item.message
