"""`docs/adding-an-operator.md`, followed in a copy of the sources."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from tests import processes
from tileops.cli import scaffold

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "adding-an-operator.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("tileops", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "tests" / "ops").mkdir(parents=True)
    return tmp_path


def run(checkout: Path, *command: str, code: int = 0) -> str:
    """Runs a command of the page on the copy."""
    program, *rest = command
    if program == "tileops":
        rest = ["-m", "tileops.cli.main", *rest]
    elif rest[0] != "-c":
        rest = ["file", str(checkout / rest[0]), *rest[1:]]
    kind, what, *arguments = rest
    env = {**os.environ, "PYTHONPATH": str(checkout)}
    done = processes.run(kind, what, *arguments, env=env, cwd=checkout)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_page_adds_an_operator(checkout: Path) -> None:
    begin, stubs, *_ = [line[2:].split() for block in blocks("console") for line in block.splitlines()]
    before = {path: path.read_text() for path in checkout.rglob("*") if path.suffix in (".py", ".yaml")}
    run(checkout, *begin)

    function, use = blocks("python")
    (cost,) = blocks("yaml")
    functions = checkout / "tileops/kernels/elementwise/functions/mathematics.py"
    stub = functions.read_text().rpartition("\n\n\n")[2]
    functions.write_text(functions.read_text().replace(stub, function))
    spec = checkout / "tileops/manifest/spec/elementwise_unary.yaml"
    head, entry = spec.read_text().split("SoftsignFwdOp:")
    entry = entry.replace("status: spec-only", "status: implemented")
    entry = entry.replace('  roofline:\n    flops: "prod(S)"\n', cost)
    assert cost in entry
    spec.write_text(f"{head}SoftsignFwdOp:{entry}")

    added = 0
    for path, text in before.items():
        lines = path.read_text().splitlines()
        added += len([line for line in lines if line.strip()]) - len(
            [line for line in text.splitlines() if line.strip()]
        )
    assert added <= 30

    run(checkout, *stubs)
    assert "class SoftsignFwdOp" in (checkout / "tileops/elementwise.pyi").read_text()
    run(checkout, "python", "-c", use)
    assert "implemented; follows torch.nn.functional.softsign" in run(checkout, "tileops", "show", "SoftsignFwdOp")


def test_the_files_of_another_family_compile_and_are_not_overwritten(checkout: Path) -> None:
    command = blocks("console")[-1][2:].split()
    said = run(checkout, *command)
    written = [line.split()[1] for line in said.splitlines() if line.startswith("new ")]
    assert "tests/ops/test_softmin.py" in written
    for name in written:
        compile((checkout / name).read_text(), name, "exec")
    check = "from tileops.ops.reduction.softmin import SoftminFwdOp; print(SoftminFwdOp(dim=-1))"
    assert "SoftminFwdOp(dim=-1" in run(checkout, "python", "-c", check)
    assert "0 errors" in run(checkout, "tileops", "validate")
    assert "exists already" in run(checkout, *command, code=2)


@pytest.mark.parametrize(
    ("name", "ref_api", "says"),
    [
        ("Add", "torch.add", "AddFwdOp exists already, in tileops/manifest/spec/elementwise_binary.yaml"),
        ("softsign", "torch.add", "no name of an operator"),
        ("Softsign", "torch.nothing", "cannot be imported"),
        ("Softsign", "math.pi", "no signature"),
        ("Softsign", "os.getcwd", "no parameter of os.getcwd is known to be a tensor"),
    ],
)
def test_what_cannot_be_begun_is_said(name: str, ref_api: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        scaffold.plan(name, ref_api, "elementwise", ROOT)


def test_signatures_are_read_from_builtin_and_python_functions() -> None:
    assert scaffold.read_reference("torch.addcmul") == scaffold.Reference(
        ["input", "tensor1", "tensor2"], [scaffold.Param("value", "int", 1, False)]
    )
    dim = scaffold.Param("dim", "int | None", None, False)
    assert scaffold.read_reference("torch.nn.functional.softmin").params == [dim]
    assert scaffold.read_reference("torch.nn.functional.hardshrink").tensors == ["input"]
    assert scaffold.read_reference("torch.nn.functional.gelu").tensors == ["input"]
