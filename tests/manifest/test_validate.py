"""The validator as a command: what it reads and skips, how it sorts and prints, exit codes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.manifest.helpers import BASE, GROUPED, base, entry, findings, mutated, simple
from tileops.cli.main import app
from tileops.manifest import load_all, validate
from tileops.manifest.branch import Branch
from tileops.manifest.branch_checks import MAX_COMBINATIONS, branches
from tileops.manifest.explain import explain, step_text
from tileops.manifest.plan import plan_branch

ROOT = Path(__file__).resolve().parents[2]


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
    found = mutated(lambda fields: fields["signature"]["shape_rules"].append("transposed and not transposed"))
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
    assert validate.main(["--static", "--check-op", "GemmFwdOp"]) == 0
    assert capsys.readouterr().out == "1 entry checked: 0 errors\n"
    assert validate.main(["--static", "--check-op", "AbsentOp"]) == 2
    assert "the manifest has no entry 'AbsentOp'" in capsys.readouterr().err
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
    assert run("--check-op", "GemmFwdOp").returncode == 0


def test_the_script_checks_the_checkout_that_it_is_in(tmp_path: Path) -> None:
    package = tmp_path / "tileops" / "manifest"
    package.mkdir(parents=True)
    (tmp_path / "tileops" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "validate.py").write_text("def main() -> int:\n    return 7\n")
    (tmp_path / "scripts").mkdir()
    script = shutil.copy(ROOT / "scripts" / "validate_manifest.py", tmp_path / "scripts")
    assert subprocess.run([sys.executable, script], cwd=ROOT).returncode == 7


# --- what cannot be read is skipped by its readers only ---


@pytest.mark.parametrize(
    ("fault", "also_found"),
    [
        # An unreadable let: the rules that do not read it are judged, the one that does is not.
        (("let", "half", "N //"), ["signature.shape_rules[3]"]),
        (("forall", "K", "Length"), ["signature.shape_rules[3]"]),
        (("params", "groups", {"type": "integer"}), ["signature.shape_rules[3]"]),
        (("outputs", "norm", {"dtype": "T"}), ["signature.shape_rules[3]"]),
        (("shape_rules", 0, "N >"), ["signature.shape_rules[3]"]),
        # A whole section: nothing that reads names of it is judged, the rest is.
        (("forall", None, "M, N"), []),
    ],
)
def test_an_unreadable_field_is_skipped_by_its_readers_only(fault: tuple[Any, ...], also_found: list[str]) -> None:
    fields = base()
    section, name, value = fault
    if name is None:
        fields["signature"][section] = value
    else:
        fields["signature"][section][name] = value
    fields["signature"]["shape_rules"] += ["half + K + groups > 0 and present(norm)", "M"]
    fields["signature"]["inputs"]["a"]["write_only"] = True  # a fault of another field
    fields["ref_api"] = "no name"
    found = [item.field for item in validate.check_entry(entry(fields))]
    assert "ref_api" in found
    assert "signature.inputs.a.write_only" in found
    assert any(field.startswith(f"signature.{section}") for field in found)
    assert [field for field in found if field.startswith("signature.shape_rules[3]")] == also_found
    assert "signature.shape_rules[2]" not in found


def test_unreadable_rows_do_not_hide_the_signature() -> None:
    fields = base()
    fields["workloads"] = "none"
    fields["signature"]["types"]["Mat"]["cases"].pop()
    fields["signature"]["let"]["spare"] = "N"
    found = findings(fields)
    assert found == [
        "signature.types.Mat.cases: no case for True, which signature.inputs.a.shape needs; give exactly one",
        "workloads: expected a list, got 'none'",
    ]


def test_a_default_is_read_by_no_branch() -> None:
    fields = base()
    fields["signature"]["params"]["groups"]["default"] = "x"
    fields["signature"]["inputs"]["b"]["contiguous"] = 3
    fields["signature"]["types"]["Mat"]["cases"].pop()
    assert [text.partition(": ")[0] for text in findings(fields)] == [
        "signature.inputs.b.contiguous",
        "signature.params.groups.default",
        "signature.types.Mat.cases",
    ]


# --- what an author sees ---


def test_diagnostics_sort_by_position() -> None:
    fields = base()
    fields["signature"]["shape_rules"] = ["N > 0"] * 2 + ["N"] + ["N > 0"] * 8 + ["K"]
    fields["ref_api"] = 3
    found = [item.field for item in validate.check_entry(entry(fields))]
    assert found == ["ref_api", "signature.shape_rules[2]", "signature.shape_rules[11]"]


def test_diagnostics_have_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "AOneFwdOp:\n  family: toy\n  status: spec-only\n  signature:\n    inputs:\n"
        "      x: {dtype: float32, shape: '[Q]'}\n    outputs:\n      y:\n        dtype: float32\n        shape: '[]'\n"
        "  roofline: {flops: '0'}\n  workloads:\n  - {label: a}\n  - label: b\n    Z: 3\n"
    )
    (tmp_path / "toy.yaml").write_text(text)
    assert validate.main(["--static", "--spec-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines()[0] == (
        "[signature] AOneFwdOp: signature.inputs.x.shape: in '[Q]' at column 2: 'Q' is not declared; "
        "declare it in forall, params or let (toy.yaml:6)"
    )
    (tmp_path / "toy.yaml").write_text(text.replace("[Q]", "[]"))
    assert validate.main(["--static", "--spec-dir", str(tmp_path)]) == 1
    assert "workloads[1]: unknown key 'Z'" in (line := capsys.readouterr().out.splitlines()[0])
    assert line.endswith("(toy.yaml:14)")


def test_files_that_break_the_layout(tmp_path: Path) -> None:
    write(tmp_path, base())
    (tmp_path / "toy_more.yaml").write_text(yaml.safe_dump({"ToyFwdOp": base()}))
    (tmp_path / "other.yaml").write_text(yaml.safe_dump({"OtherFwdOp": base()}))
    (tmp_path / "empty.yaml").write_text("")
    (tmp_path / "types.yaml").write_text("adts: {Layout: {sum: {tight: {fields: {}}}}}")
    found, count = validate.validate(directory=tmp_path, code=False)
    assert count == 1
    assert [str(item) for item in found] == [
        "[schema] a spec file is a non-empty mapping of operator names to entries (empty.yaml)",
        "[schema] OtherFwdOp: family: 'toy' does not fit the file name; move the entry to toy.yaml or "
        "toy_<shard>.yaml (other.yaml)",
        "[schema] ToyFwdOp: the operator is also in toy.yaml; keep one of the entries (toy_more.yaml:1)",
        "[schema] adts.Layout.sum.tight.python: expected the path of the Python class, got None (types.yaml:1)",
    ]


EXPLAINED = """\
GemmFwdOp: gemm, implemented, follows torch.matmul
parameters:
  trans_a: bool = False
  trans_b: bool = True
choices:
  trans_a is False or True, fixed by the construction
  trans_b is False or True, fixed by the construction
  shown are accepted combinations; choices that nothing reads together vary one at a time

branch 1 of 3: trans_a = False, trans_b = False
  inputs:
    a: T [M, K]
    b: T [K, N]
  outputs:
    d: T [M, N]
  a row gives: M, N, K; dtype_cases over T
  solved and checked, in order:
    call         T := the dtype of a, float16 or bfloat16 or float32
    call         a has 2 axes
    call         M := a.shape[0]
    call         K := a.shape[1]
    call         b has 2 axes
    call         N := b.shape[1]
    call         b.shape[0] == K
    call         b has dtype T
  cost:
    flops = 2 * M * N * K
"""


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert validate.main(["--explain", "GemmFwdOp", "--static"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(EXPLAINED)
    assert "calls of the rows:\n  smollm2-qkv-decode-float32: a float32[1, 576], b float32[960, 576]; " in out
    assert "generated check" not in out
    assert validate.main(["--explain", "GemmFwdOp"]) == 0
    generated = capsys.readouterr().out
    assert generated.count("  generated check:\n    # GemmFwdOp: the check of a call (trans_a=") == 3
    assert "raise _fail.rank('signature.inputs.a', 'a', " in generated


def test_alike_branches_are_explained_once() -> None:
    """A choice that changes nothing of a branch is left out of its title."""
    lines = list(explain(entry(GROUPED)))
    titles = [line for line in lines if line.startswith("branch ")]
    assert titles[0] == (
        "branch 1 of 11: layout = contiguous(packing='tight', metadata_kind='physical_psum') or "
        "contiguous(packing='tight', metadata_kind='per_row'), present(table) = False, scaled = False, "
        "present(out_dtype) = False, present(bias) = False, present(lengths) = False"
    )
    assert "present(out) =" not in titles[0]
    assert "domain restrictions:" in lines
    assert "  shape_rules[0]: not present(bias) or not scaled" in lines


def test_explain_refuses_what_is_not_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = base()
    fields["ref_api"] = 3
    assert validate.main(["--explain", "AbsentOp"]) == 2
    assert capsys.readouterr().err == "--explain: the manifest has no entry 'AbsentOp'\n"
    assert validate.main(["--explain", "ToyFwdOp", "--spec-dir", str(write(tmp_path, fields))]) == 1
    assert capsys.readouterr().out == (
        "[schema] ToyFwdOp: ref_api: expected a qualified name, got 3 (toy.yaml:4)\n"
        "ToyFwdOp has 1 error; correct them first\n"
    )


def test_every_kind_of_step_is_explained() -> None:
    """No step of any plan is shown as its Python object."""
    for text in (BASE, GROUPED):
        assert len(list(explain(entry(text)))) > 20
    plans = [
        plan_branch(branch) for toy in load_all().values() for branch in branches(toy) if isinstance(branch, Branch)
    ]
    texts = {step_text(step) for plan in plans for step in plan.steps}
    assert len(texts) > 500
    assert not [text for text in texts if "(at_construction" in text or "Expr(" in text]


# --- without torch and Numba ---

WITHOUT = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numba", "llvmlite", "optuna"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
import tileops.manifest
import tileops.perf.formulas
from tileops.manifest import validate
from tileops.manifest.workload import cases

assert len(tileops.manifest.load_all()) >= 150
code = validate.main(["--levels", "schema,signature"])
assert not {"torch", "numba", "llvmlite", "optuna"} & set(sys.modules)
sys.exit(code)
"""


def test_the_manifest_is_loaded_and_validated_without_torch_and_numba() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    advisory, summary = done.stdout.splitlines()
    assert advisory == (
        "[schema] advisory: torch is not installed: implemented entries were not compared with their classes"
    )
    assert summary.endswith("entries checked: 0 errors, 1 advisory")


def test_the_tileops_command_passes_its_options_on() -> None:
    runner = CliRunner()
    done = runner.invoke(app, ["validate", "--check-op", "GemmFwdOp", "--levels", "schema,signature", "--static"])
    assert (done.exit_code, done.output) == (0, "1 entry checked: 0 errors\n")
    done = runner.invoke(app, ["validate", "--check-op", "GemmFwdOp", "--static", "--json"])
    assert (done.exit_code, done.output) == (0, "[]\n")
    done = runner.invoke(app, ["validate", "--explain", "GemmFwdOp", "--static"])
    assert done.output.startswith("GemmFwdOp: gemm, implemented, follows torch.matmul")
    assert runner.invoke(app, ["validate", "--levels", "style"]).exit_code == 2
    assert runner.invoke(app, ["validate", "--no-such-flag"]).exit_code == 2
