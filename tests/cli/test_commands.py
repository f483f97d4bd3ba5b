"""The command as programs and people use it: in a process of its own, but where nothing depends on the process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cli.helpers import tileops
from tests.store.helpers import environment
from tileops import __version__, settings
from tileops.cli.main import app
from tileops.errors import CacheWarning, TileOpsError


def inside(*arguments: str, cache: Path | None = None, code: int = 0) -> str:
    """What ``tileops <arguments>`` prints in this process, which has imported torch already."""
    with settings.scope(**({} if cache is None else {"cache_dir": str(cache)})):
        done = CliRunner().invoke(app, arguments)
    if isinstance(done.exception, TileOpsError):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.output if code else done.stdout


def test_version_loads_neither_torch_nor_numba():
    assert tileops("--version") == f"tileops {__version__}\n"
    loaded = (
        "import sys\n"
        "from tileops.cli.main import main\n"
        "try:\n"
        "    main(['--version'])\n"
        "except SystemExit as end:\n"
        "    assert not end.code\n"
        "print([name for name in ('torch', 'numba', 'optuna', 'llvmlite') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", loaded], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_ops_lists_every_operator():
    rows = json.loads(tileops("ops", "--json"))
    assert {"RMSNormFwdOp", "GemmFwdOp", "GQADenseFwdOp"} <= {row["op"] for row in rows}
    for row in rows:
        assert list(row) == ["op", "family", "status", "devices"]
        assert set(row["devices"]) <= {"cpu", "cuda"}
    assert "RMSNormFwdOp" in inside("ops", "--family", "norm")


def test_show_explains_an_operator_by_any_of_its_names():
    assert "RMSNormFwdOp" in inside("show", "rmsnorm")


@pytest.fixture(scope="module")
def warmed(tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    """A cache that the command has filled, and what it said."""
    path = tmp_path_factory.mktemp("warmed")
    return path, json.loads(tileops("warm", "RMSNormFwdOp", "--jobs", "1", "--json", cache=path))


@pytest.mark.in_tree_kernels
@pytest.mark.xdist_group("warmed")
def test_warm_fills_the_cache_that_ls_lists(warmed, tmp_path):
    made, first = warmed
    assert first["compiled"] > 0
    assert first["failed"] == []
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    again = json.loads(inside("warm", "RMSNormFwdOp", "--jobs", "1", "--json", cache=tmp_path))
    assert (again["compiled"], again["present"]) == (0, first["compiled"])
    entries = json.loads(inside("cache", "ls", "--json", cache=tmp_path))
    assert len(entries) == first["compiled"]
    for entry in entries:
        assert list(entry) == ["key", "op", "device", "arch", "dtype", "identity", "size", "last_used"]
        assert (entry["op"], entry["device"]) == ("RMSNormFwdOp", "cpu")
    assert "RMSNormFwdOp" in inside("cache", "ls", cache=tmp_path)
    info = json.loads(inside("cache", "info", "--json", cache=tmp_path))
    assert (info["state"], info["entries"]) == ("ok", len(entries))
    assert "removed" in inside("cache", "clear", "--yes", cache=tmp_path)
    assert json.loads(inside("cache", "ls", "--json", cache=tmp_path)) == []


@pytest.mark.in_tree_kernels
@pytest.mark.serial
def test_tune_shows_what_it_found_and_a_second_process_uses_it(tmp_path):
    arguments = ("tune", "RMSNormFwdOp", "--case", "smollm2-prefill-float32", "--jobs", "1")
    cases = inside("show", "RMSNormFwdOp")
    if arguments[3] not in cases:
        pytest.fail(f"the manifest renamed a case; choose another of:\n{cases}")
    first = json.loads(tileops(*arguments, "--json", "--no-progress", cache=tmp_path))
    (kernel,) = first["kernels"]
    assert kernel["measured"] > 0
    assert kernel["outcomes"]["ok"] == len(kernel["points"])
    assert kernel["speedup"] > 0.9
    again = json.loads(tileops(*arguments, "--json", cache=tmp_path))
    if kernel["persisted"]:
        assert again["measured"] == 0
        assert again["kernels"][0]["best"] == kernel["best"]
        assert json.loads(inside("cache", "ls", "--op", "RMSNormFwdOp", "--json", cache=tmp_path)), "the chosen kernel"
    assert "speed-up" in inside(*arguments, "--no-progress", cache=tmp_path)


def test_doctor_names_what_matters(tmp_path):
    facts = json.loads(tileops("doctor", "--json", cache=tmp_path, TILEOPS_CPU="generic"))
    assert facts["versions"]["tileops"] == __version__
    assert facts["cpu"]["setting"] == "generic"
    assert facts["cache"]["directory"] == str(tmp_path)
    assert facts["packs"] == {"held": 0, "bytes": 0}
    assert facts["settings"]["TILEOPS_CPU"] == "generic"


def test_doctor_says_why_a_cache_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.warns(CacheWarning):
        facts = json.loads(inside("doctor", "--json", cache=tmp_path))
    assert "writable by everyone" in facts["cache"]["state"]


BAD_USAGE = (
    ("nonsense",),
    ("show", "NoSuchOp"),
    ("show", "AddFwdOp", "--device", "gpu"),
    ("bench", "AddFwdOp", "--device", "gpu"),
    ("bench", "AddFwdOp", "--device", "cuda:99"),
    ("tune", "RMSNormFwdOp", "--case", "no-such-case"),
    ("warm", "--arch", "sm_1"),
    ("ops", "--family", "no-such-family"),
    ("cache", "ls", "--no-such-flag"),
)


@pytest.mark.parametrize("arguments", BAD_USAGE, ids=" ".join)
def test_bad_usage_is_exit_code_2(arguments):
    assert inside(*arguments, code=2).strip()


def test_bad_usage_is_the_exit_code_of_the_process():
    assert tileops(*BAD_USAGE[0], code=2).strip()


def test_an_error_is_one_clean_line_and_exit_code_1():
    text = tileops("cache", "info", code=1, TILEOPS_CACHE_SIZE="plenty")
    assert text.strip().splitlines() == ["error: TILEOPS_CACHE_SIZE='plenty': expected a size such as 2GiB or 500MB"]


def test_a_file_that_cannot_be_written_is_refused_before_any_work(tmp_path):
    for place, reason in ((tmp_path / "no" / "x.json", "create it first"), (tmp_path, "is a folder")):
        assert reason in inside("bench", "--save", str(place), code=2)


def test_a_model_that_is_no_gguf_file_is_an_error_of_one_line(tmp_path):
    (tmp_path / "model.gguf").write_bytes(bytes(64))
    text = tileops("demo", "--model", str(tmp_path / "model.gguf"), code=1)
    assert text.startswith("error: ")
    assert "not a GGUF file" in text
    assert len(text.strip().splitlines()) == 1


def test_bench_names_the_baselines_there_are():
    assert "'foo': expected some of torch, torch-compile" in inside("bench", "AddFwdOp", "--against", "foo", code=2)


@pytest.mark.parametrize("arguments", [("ops",), ("--help",), ("validate", "--help")], ids=" ".join)
def test_a_reader_that_goes_away_is_no_error(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "tileops.cli.main", *arguments],
        env=environment(),
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=240,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_output_that_is_closed_is_no_error():
    shell = '"$1" -m tileops.cli.main ops >&-'
    command = ["sh", "-c", shell, "sh", sys.executable]
    done = subprocess.run(command, env=environment(), stderr=subprocess.PIPE, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("arguments", [("ops", "--json"), ("--help",)], ids=" ".join)
def test_a_full_disk_is_one_clean_line(arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tileops.cli.main", *arguments],
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=240,
        )
    assert (done.returncode, done.stderr) == (1, "error: No space left on device\n")


def heed_interrupts() -> None:
    """In a child: a test run in the background may have been told to ignore them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.in_tree_kernels
def test_warm_ends_when_interrupted(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "tileops.cli.main", "warm", "--jobs", "1"],
        env=environment({"TILEOPS_CACHE_DIR": str(tmp_path)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_interrupts,
    )
    # Of some sixty kernels, the first is being made.
    deadline = time.monotonic() + 200
    while (
        not any(path.is_file() for path in tmp_path.rglob("*"))
        and process.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=240)
    *before, last = err.splitlines()
    assert (process.returncode, out, last) == (130, "", "error: interrupted")
    assert all(line.startswith("compiling: ") for line in before), "every ten seconds, on a slow machine"


@pytest.mark.in_tree_kernels
@pytest.mark.xdist_group("warmed")
def test_an_exported_cache_serves_where_compiling_is_forbidden(warmed, tmp_path):
    bundle = tmp_path / "kernels.tobundle"
    facts = json.loads(inside("cache", "export", str(bundle), "--json", cache=warmed[0]))
    assert facts["kernels"] > 0
    code = (
        "import torch; from tileops.norm import RMSNormFwdOp\n"
        "x = torch.ones(3, 4)\n"
        "assert torch.equal(RMSNormFwdOp(normalized_shape=(4,), eps=0.0)(x, x[0]), x)"
    )
    env = {
        "TILEOPS_CACHE_PATH": str(bundle),
        "TILEOPS_CACHE_DIR": "/proc/nowhere",
        "TILEOPS_JIT": "forbid",
    }
    subprocess.run([sys.executable, "-W", "error", "-c", code], env=environment(env), check=True, timeout=240)


def test_a_bundle_that_cannot_be_written_is_an_error(tmp_path):
    text = tileops("cache", "export", str(tmp_path / "no" / "x.tobundle"), cache=tmp_path, code=1)
    assert "cannot write" in text
