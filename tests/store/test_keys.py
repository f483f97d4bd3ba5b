"""The key of a kernel: equal in every process, and different for everything that the bytes depend on."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.store.helpers import ROOT, run
from tileops import jit
from tileops.errors import KernelCompileError
from tileops.jit import keys
from tileops.jit.artifact import differences
from tileops.jit.keys import compiler_versions, key_for, source_fingerprint
from tileops.jit.program import Program


class Target:
    def __init__(self, **facts):
        self._facts = facts

    def describe(self):
        return self._facts


HOST = Target(cpu="toy", features="+a")
PROGRAM = Program.of("tileops.kernels.norm:f", ("ptr", "i64", "f32"), dtype="bf16", unroll=4, flag=True)

PRINT_KEY = """
import sys
{imports}
from tileops.jit.keys import key_for
from tileops.jit.program import Program
class Target:
    def describe(self):
        return dict(reversed([("features", "+a"), ("cpu", "toy")]))
config = dict(reversed([("dtype", "bf16"), ("flag", True), ("unroll", 4)]))
program = Program.of("tileops.kernels.norm:f", ("ptr", "i64", "f32"), **config)
print(key_for(program, Target()).digest, "numba" in sys.modules, "torch" in sys.modules)
"""


def test_the_key_is_equal_in_every_process(tmp_path):
    here = key_for(PROGRAM, HOST).digest
    for seed, imports, cwd in (
        ("0", "", Path("/")),
        ("1", "import tileops.errors, decimal, json", tmp_path),
        ("random", "import tileops.settings, numpy", None),
    ):
        printed = run(PRINT_KEY.format(imports=imports), env={"PYTHONHASHSEED": seed}, cwd=cwd)
        assert printed.split() == [here, "False", "False"]


@pytest.mark.parametrize(
    ("field", "program"),
    [
        ("factory", replace(PROGRAM, factory="tileops.kernels.norm:g")),
        ("args", replace(PROGRAM, args=("ptr", "i64", "f64"))),
        ("grain", replace(PROGRAM, grain=8)),
        ("config.unroll", Program.of(PROGRAM.factory, PROGRAM.args, dtype="bf16", unroll=8, flag=True)),
        ("config.flag", Program.of(PROGRAM.factory, PROGRAM.args, dtype="bf16", unroll=4, flag=1)),
        ("config.dtype", Program.of(PROGRAM.factory, PROGRAM.args, dtype="f16", unroll=4, flag=True)),
    ],
)
def test_each_fact_of_a_program_is_in_the_key(field, program):
    wanted, found = key_for(PROGRAM, HOST), key_for(program, HOST)
    assert list(differences(wanted.fields, found.fields)) == [field]


@pytest.mark.parametrize("change", [{"block": 128}, {"dynamic_smem": 1024}])
def test_launch_shapes_of_cuda_programs_are_in_the_key(change):
    program = replace(PROGRAM, device="cuda", block=256)
    target = Target(arch="sm_90a")
    found = differences(key_for(program, target).fields, key_for(replace(program, **change), target).fields)
    assert list(found) == list(change)
    assert differences(key_for(program, target).fields, key_for(program, Target(arch="sm_80")).fields) == {
        "target.arch": ("sm_90a", "sm_80")
    }


def test_the_instruction_set_is_in_the_key():
    levels = {key_for(PROGRAM, jit.cpu_target(name)).digest for name in ("native", "x86-64-v3", "generic")}
    assert len(levels) == 3


def test_compiler_versions_are_in_the_key(monkeypatch):
    before = key_for(PROGRAM, HOST)
    monkeypatch.setattr(keys, "compiler_versions", lambda device: {**compiler_versions(device), "numba": "0"})
    assert list(differences(before.fields, key_for(PROGRAM, HOST).fields)) == ["versions.numba"]
    assert before.fields["versions"]["numba"] is not None
    assert "nvidia-nvvm" in compiler_versions("cuda")


EXTERNAL = """
from tileops.jit.keys import source_fingerprint
print(source_fingerprint("acme"))
"""


def fingerprint(directory: Path) -> str:
    code = f"import sys; sys.path.insert(0, {str(directory)!r})\n{EXTERNAL}"
    return run(code).strip()


def test_an_edit_anywhere_in_the_package_of_a_kernel_changes_its_key(tmp_path):
    package = tmp_path / "one" / "acme"
    (package / "helpers").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "kernel.py").write_text("from acme.helpers.scale import scale\n")
    (package / "helpers" / "__init__.py").write_text("")
    (package / "helpers" / "scale.py").write_text("def scale(): return 1\n")
    first = fingerprint(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert fingerprint(tmp_path / "two") == first, "the place of the package does not matter"
    (package / "helpers" / "scale.py").write_text("def scale(): return 2\n")
    assert fingerprint(tmp_path / "one") != first
    (tmp_path / "two" / "acme" / "kernel.py").rename(tmp_path / "two" / "acme" / "renamed.py")
    assert fingerprint(tmp_path / "two") != first


def test_modules_beside_a_module_without_a_package_count(tmp_path):
    (tmp_path / "acme.py").write_text("from other import scale\n")
    (tmp_path / "other.py").write_text("def scale(): return 1\n")
    first = fingerprint(tmp_path)
    (tmp_path / "other.py").write_text("def scale(): return 2\n")
    assert fingerprint(tmp_path) != first


@pytest.mark.nightly
@pytest.mark.in_tree_kernels
def test_an_edit_of_a_helper_or_a_constant_changes_the_result(tmp_path):
    (tmp_path / "scaling.py").write_text(
        "from tileops.jit import lang\n"
        "from factors import factor\n"
        "def tens():\n"
        "    value = 10 * factor()\n"
        "    def body(begin, end, tid, out):\n"
        "        lang.store_i64(out, value)\n"
        "    return body\n"
    )
    found = []
    for text in ("def factor(): return 1\n", "def factor(): return 2\n", "K = 3\ndef factor(): return K\n",
                 "K = 4\ndef factor(): return K\n", "K = 4\ndef factor(): return K\n"):  # fmt: skip
        (tmp_path / "factors.py").write_text(text)
        found += run(
            "import torch; from tileops import jit; from tileops.jit import Program\n"
            "out = torch.zeros(1, dtype=torch.int64)\n"
            "jit.get_entry(Program.of('scaling:tens', ['ptr'])).launch(1, 1, out.data_ptr())\n"
            "print(out.item(), jit.stats().compiled)",
            env={"TILEOPS_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": f"{ROOT}:{tmp_path}"},
        ).split()
    assert found == ["10", "1", "20", "1", "30", "1", "40", "1", "40", "0"]


def test_further_sources_can_be_named(tmp_path):
    before = source_fingerprint("tileops")
    table = tmp_path / "table.bin"
    table.write_bytes(b"1")
    try:
        keys.add_sources("tileops", table)
        first = source_fingerprint("tileops")
        assert first != before
        table.write_bytes(b"2")
        source_fingerprint.cache_clear()
        assert source_fingerprint("tileops") != first
    finally:
        keys._extra_sources.clear()
        source_fingerprint.cache_clear()
    assert source_fingerprint("tileops") == before


def test_a_package_that_is_not_there_is_named():
    with pytest.raises(KernelCompileError, match="no_such_package"):
        source_fingerprint("no_such_package")
