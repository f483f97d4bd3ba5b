"""The validator as a command: what it reads and skips, how it sorts and prints, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.manifest.helpers import base, entry, findings, mutated, simple
from tileops.manifest import validate
from tileops.manifest.branch_checks import MAX_COMBINATIONS

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
