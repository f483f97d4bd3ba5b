"""Warming: an application that was recorded runs where compiling is forbidden."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import tileops
from tests.cli.helpers import APPLICATION, SMALL_APPLICATION, script, tileops_json
from tests.cli.helpers import tileops as run
from tests.store.helpers import OTHER_CPU
from tileops import jit, settings
from tileops.errors import CacheWarning, TileOpsError
from tileops.jit import _numba_cuda
from tileops.jit.pool import Outcome, Task, compile_all
from tileops.jit.program import Program
from tileops.jit.recording import describe
from tileops.jit.store import default_store
from tileops.norm import RMSNormFwdOp
from tileops.ops.recording import read_calls, read_programs
from tileops.ops.warming import WarmReport, _still_there, needs

pytestmark = [pytest.mark.in_tree_kernels, pytest.mark.xdist_group("warm")]

OUTPUT = "torch.Size([3, 32]) 32.0\n"


@pytest.fixture(scope="module")
def application(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("application") / "serve.py"
    path.write_text(APPLICATION)
    return path


@pytest.fixture(scope="module")
def calls(application) -> Path:
    path = application.with_name("calls.jsonl")
    assert script(application, TILEOPS_RECORD=str(path), cache=application.with_name("cache")) == OUTPUT
    return path


def test_a_recorded_application_starts_without_compiling(application, calls, tmp_path):
    report = tileops_json("warm", "--calls", calls, "--jobs", 1, cache=tmp_path)
    assert report["failed"] == []
    assert report["without_kernel"] == {}
    assert report["compiled"] >= 4
    assert script(application, cache=tmp_path, TILEOPS_JIT="forbid") == OUTPUT
    with settings.scope(cache_dir=str(tmp_path)):
        again = tileops.warm(calls=calls)
    assert (again.compiled, again.present) == (0, report["compiled"])


def test_a_warm_deployment_packs_its_weights_without_compiling(tmp_path):
    """Also without recorded calls: the rows of a matrix product are warmed with their weights packed too."""
    report = tileops_json("warm", "GemmFwdOp", "--jobs", 1, cache=tmp_path)
    assert report["failed"] == []
    path = tmp_path / "serve.py"
    path.write_text(
        "import torch\n"
        "from tileops import jit\n"
        "from tileops.gemm import GemmFwdOp, pack\n"
        "for dtype in (torch.float32, torch.bfloat16, torch.float16):\n"
        "    w = torch.ones(96, 64, dtype=dtype)\n"
        "    for w, trans_b in ((w, True), (w.t(), False)):\n"
        "        held = pack(w, trans_b=trans_b)\n"
        "        for m in (1, 16, 512):\n"
        "            y = GemmFwdOp(trans_b=trans_b)(torch.ones(m, 64, dtype=dtype), w)\n"
        "            assert held.is_current and ((y - 64).abs() < 1e-4).all()\n"
        "print(jit.stats().compiled)\n"
    )
    assert script(path, cache=tmp_path, TILEOPS_JIT="forbid") == "0\n"


def test_another_cpu_is_warmed_by_name(calls, tmp_path):
    path = tmp_path / "serve.py"
    path.write_text(SMALL_APPLICATION)
    with settings.scope(cache_dir=str(tmp_path / "cache")):
        assert tileops.warm([RMSNormFwdOp], calls=calls, cpu=OTHER_CPU, jobs=1).compiled == 1
    cold = {"cache": tmp_path / "cache", "TILEOPS_JIT": "forbid"}
    assert script(path, TILEOPS_CPU=OTHER_CPU, **cold) == "192.0\n"
    assert "ColdKernelError" in script(path, code=1, **cold)


def test_a_cpu_that_is_not_here_is_warmed_by_its_name(calls, tmp_path):
    with settings.scope(cache_dir=str(tmp_path)):
        report = tileops.warm(["RMSNormFwdOp"], calls=calls, cpu="sapphirerapids", jobs=1)
        assert (report.compiled, report.failed) == (1, ())
        (entry,) = default_store().entries()
    assert entry.arch == "sapphirerapids"
    assert "+amx-bf16" in entry.fields["target"]["features"]
    with pytest.raises(TileOpsError, match="'saphirerapids'; did you mean sapphirerapids"):
        tileops.warm(calls=calls, cpu="saphirerapids")


def test_an_operator_named_for_a_device_without_its_kernels_is_reported(tmp_path):
    with settings.scope(cache_dir=str(tmp_path)):
        report = tileops.warm(["GQADenseFwdOp"], arch=["sm_90a"])
    assert (report.compiled, report.ok) == (0, True)
    assert "GQADenseFwdOp on sm_90a" in report.without_kernel


def test_a_missing_compiler_is_said_once(calls, monkeypatch):
    monkeypatch.setattr(_numba_cuda, "version", lambda: None)
    with pytest.raises(TileOpsError, match=r"^arch 'sm_90a': numba-cuda is not installed; .*'tileops\[cuda13\]'$"):
        tileops.warm(calls=calls, arch=["native", "sm_90a"])


def test_a_reason_that_many_programs_share_is_printed_once():
    failed = (("a:x", "no disk"), ("a:y", "no disk"), ("a:z", "odd"))
    lines = str(WarmReport(0, 0, failed, {}, 1.0)).splitlines()
    assert lines == ["0 kernels compiled, 0 present, 3 failed, 1.0 s", "  a:x and 1 more: no disk", "  a:z: odd"]


OWN_KERNEL = """
from tileops.jit import lang

def nothing(dtype):
    size = lang.itemsize(dtype)

    def body(begin, end, tid, target):
        pass

    return body
"""


def test_programs_of_the_application_itself_are_recorded_and_warmed(tmp_path, monkeypatch):
    (tmp_path / "own_kernels.py").write_text(OWN_KERNEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    program = Program.of("own_kernels:nothing", ["ptr"], dtype="f32")
    with settings.scope(cache_dir=str(tmp_path / "made")):
        jit.get_entry(program)
        with tileops.record(tmp_path / "calls.jsonl") as calls:
            jit.get_entry(program)  # is in memory, and recorded all the same
            jit.get_entry(program)
    assert len(calls.read_text().splitlines()) == 1
    assert read_programs(calls) == [("calls.jsonl:1", program)]
    assert not needs(calls=calls, arch=["sm_90a"]).programs
    assert not needs(["RMSNormFwdOp"], calls=calls).programs
    with settings.scope(cache_dir=str(tmp_path / "warmed")):
        report = tileops.warm(calls=calls, cpu="generic", jobs=1)
        assert (report.compiled, report.failed) == (1, ())
        assert jit.load(program, jit.cpu_target("generic"))


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("subprocess:run", "does not import tileops.jit.lang"),
        ("tileops.jit.pool:compile_all", "does not import tileops.jit.lang"),
        ("tileops.bench._probe_kernels:lang", "defines no function lang"),
        ("no_such_package._kernels:rows", "no module"),
        ("sys:exit", "has no Python source"),
    ],
)
def test_a_file_of_calls_runs_nothing_but_factories_of_kernels(factory, words, tmp_path):
    program = Program.of(factory, ["ptr"], command=f"touch {tmp_path}/executed")
    path = tmp_path / "calls.jsonl"
    path.write_text(json.dumps({"program": describe(program)}))
    ((_, reason),) = tileops.warm(calls=path).failed
    assert reason.startswith("calls.jsonl:1: ")
    assert words in reason
    assert not (tmp_path / "executed").exists()


def test_recorded_calls_are_planned_for_a_gpu_that_is_not_there(calls):
    found = needs(["RMSNormFwdOp", "SiluAndMulFwdOp"], calls=calls, arch=["sm_80", "sm_90a"])
    assert {(need.arch, need.op) for need in found.programs} == {
        (arch, op) for arch in ("sm_80", "sm_90a") for op in ("RMSNormFwdOp", "SiluAndMulFwdOp")
    }
    assert all(need.program.device == "cuda" for need in found.programs)


def test_record_sees_calls_that_were_planned_before(tmp_path):
    op, x = RMSNormFwdOp(normalized_shape=(8,)), torch.ones(2, 8)
    op(x)
    for _ in range(2):
        path = tmp_path / "calls.jsonl"
        path.unlink(missing_ok=True)
        with tileops.record(path):
            op(x)
            op(x)
            op(torch.ones(3, 8))
        op(torch.ones(4, 8))
        assert [call.tensors["x"].shape for call in read_calls(path)] == [(2, 8), (3, 8)]
    assert settings.current().record is None


def test_record_writes_facts_and_no_contents(tmp_path):
    with tileops.record(tmp_path / "calls.jsonl") as path:
        RMSNormFwdOp(normalized_shape=(8,))(torch.full((2, 8), 12345.0).t().contiguous().t())
    (line,) = path.read_text().splitlines()
    assert "12345" not in line
    assert json.loads(line)["tensors"]["x"] == {
        "dtype": "float32", "shape": [2, 8], "strides": [1, 2], "device": "cpu", "alignment": 4,
    }  # fmt: skip


def test_record_says_at_once_that_it_cannot_write(tmp_path):
    with pytest.raises(OSError, match="calls"), tileops.record(tmp_path / "no" / "calls"):
        pass


def test_what_cannot_be_kept_is_no_success(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no directory")
    with (
        settings.scope(cache_dir=str(tmp_path / "file")),
        pytest.warns(CacheWarning),
        pytest.raises(TileOpsError, match=r"nothing was compiled, because nothing can be kept.*TILEOPS_CACHE_DIR"),
    ):
        tileops.warm(["AddFwdOp"])
    task = Task(Program.of("tileops.kernels:rows", []), "native", "AddFwdOp")
    with settings.scope(cache_dir=str(tmp_path / "small"), cache_size=1024):
        (outcome,) = _still_there([Outcome(task, "compiled")])
        assert (outcome.state, outcome.reason) == (
            "failed", f"compiled, but {tmp_path / 'small'} holds 1024 bytes at most; raise TILEOPS_CACHE_SIZE",
        )  # fmt: skip
    with settings.scope(cache_dir=str(tmp_path / "full")):
        store = default_store()
        monkeypatch.setattr(store, "put", lambda key, artifact: False)
        monkeypatch.setattr(store, "fault", lambda: "the disk is full")
        monkeypatch.setattr("tileops.jit.engine.compile_program", lambda program, target: None)
        with pytest.raises(TileOpsError, match="does not keep it: the disk is full"):
            jit.warm(task.program)


@pytest.mark.parametrize(
    "line", ["noise", "[" * 9999, "[]", "{}", '{"op": "x", "call": {}, "tensors": {"x": {"dtype": "odd"}}}']
)
def test_a_line_that_is_no_call_is_named(calls, line, tmp_path):
    path = tmp_path / "calls.jsonl"
    path.write_text(calls.read_text() + line + "\n")
    with pytest.raises(TileOpsError, match=rf"calls.jsonl:{len(path.read_text().splitlines())}"):
        tileops.warm(calls=path)


def test_calls_that_no_longer_fit_are_reported(calls, tmp_path):
    path = tmp_path / "calls.jsonl"
    path.write_text(
        calls.read_text().replace('"RMSNormFwdOp"', '"OldNormFwdOp"').replace('"shape": [64]', '"shape": [9]')
    )
    found = needs(calls=path)
    assert {op for op, _, _, _ in found.refused} == {"OldNormFwdOp"}
    assert found.programs


def test_warm_from_python_reports_and_counts(calls, tmp_path):
    seen = []
    with settings.scope(cache_dir=str(tmp_path)):
        report = tileops.warm(
            [RMSNormFwdOp], calls=calls, jobs=1, progress=lambda *state: seen.append((*state[:2], state[2].state))
        )
    assert seen == [(1, 1, "compiled")]
    assert (report.compiled, report.present, report.ok) == (1, 0, True)
    assert str(report).startswith("1 kernels compiled, 0 present, 0 failed, ")


def test_a_compiler_that_dies_costs_one_program(tmp_path, monkeypatch):
    (tmp_path / "deadly.py").write_text(
        "import os\n"
        "def die():\n    os.abort()\n"
        "def fail():\n    raise RuntimeError('no such kernel')\n"
        "def good():\n    def body(begin, end, tid, a):\n        pass\n    return body\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    tasks = [Task(Program.of(f"deadly:{name}", ["ptr"]), "native", "") for name in ("die", "fail", "good")]
    with settings.scope(cache_dir=str(tmp_path / "cache")):
        outcomes = {outcome.task.program.name: outcome for outcome in compile_all(tasks, 1)}
        assert jit.get_entry(tasks[2].program)
    assert {name: outcome.state for name, outcome in outcomes.items()} == {
        "die": "failed", "fail": "failed", "good": "compiled",
    }  # fmt: skip
    assert "SIGABRT" in outcomes["die"].reason
    assert "no such kernel" in outcomes["fail"].reason


@pytest.mark.parametrize(
    "arguments",
    [("--arch", "sm_1"), ("--cpu", "z80"), ("--rows", "manifest", "--calls", "x"), ("NoSuchOp",)],
)
def test_bad_usage(arguments):
    assert run("warm", *arguments, code=2)


def test_an_unknown_operator_or_arch_is_an_error():
    with pytest.raises(TileOpsError, match="NoSuchOp"):
        tileops.warm(["NoSuchOp"])
    with pytest.raises(TileOpsError, match="sm_1"):
        tileops.warm(arch=["sm_1"])


@pytest.mark.nightly
def test_the_demo_starts_without_compiling_on_an_empty_machine(tmp_path):
    demo = ("demo", "--no-compare", "--max-tokens", 4)
    calls = tmp_path / "calls.jsonl"
    said = run(*demo, cache=tmp_path / "made", TILEOPS_RECORD=str(calls))
    assert tileops_json("warm", "--calls", calls, cache=tmp_path / "warmed")["failed"] == []
    again = run(*demo, cache=tmp_path / "warmed", TILEOPS_JIT="forbid")
    assert again.splitlines()[:2] == said.splitlines()[:2]
    assert "nothing was compiled" in again


@pytest.mark.nightly
def test_an_imported_bundle_serves_every_case_without_compiling(tmp_path):
    """Every kernel of every case of the manifest, from the cache that imported it and from the bundle itself.

    Some 550 kernels are compiled first: two minutes on two idle cores.
    """
    bundle = tmp_path / "all.tobundle"
    assert tileops_json("warm", cache=tmp_path / "made", timeout=1200.0)["failed"] == []
    run("cache", "export", bundle, cache=tmp_path / "made")
    run("cache", "import", bundle, "--trust", cache=tmp_path / "imported")
    found = needs()
    assert len(found.programs) > 500
    places = ({"cache_dir": str(tmp_path / "imported")}, {"cache_dir": "/proc/nowhere", "cache_path": (str(bundle),)})
    for place in places:
        jit.reset()
        with settings.scope(jit="forbid", **place):
            for need in found.programs:
                jit.get_entry(need.program)
        assert jit.stats().compiled == 0
    jit.reset()
