"""``tileops.stats``, hooks, ``tileops.preload``, the warning after ``tileops.warm``, ``tileops config``."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import tileops
from tests import processes
from tests.ops_runtime.toys import fresh_kernel, make_op
from tests.store.helpers import environment
from tileops import jit, settings
from tileops.cli.main import app
from tileops.errors import DispatchError
from tileops.norm import RMSNormFwdOp
from tileops.ops import observing


@pytest.fixture(autouse=True)
def own_counts() -> Any:
    observing.reset()
    yield
    observing.reset()


def test_counts_by_op() -> None:
    small = fresh_kernel(refusal=classmethod(lambda cls, call: "too large" if call.x.numel > 8 else None))
    cls = make_op(small)
    op = cls()
    for size in (1, 2, 3, 3):
        op(torch.ones(size))
    op(torch.ones(2, dtype=torch.bfloat16))
    with pytest.raises(DispatchError):
        op(torch.ones(9))
    counts = tileops.stats(by="op")[cls.__name__]
    assert (counts.misses, counts.hits, counts.refused) == (2, 2, 1)
    total = tileops.stats()
    assert (total.misses, total.hits, total.refused, total.tuned) == (2, 2, 1, 0)
    with pytest.raises(ValueError, match="expected None or 'op'"):
        tileops.stats(by="kernel")  # type: ignore[call-overload]


def run(code: str, cache: Path, **env: str) -> Any:
    """What a fresh process prints last, as JSON."""
    done = processes.run("-c", code, env=environment({"TILEOPS_CACHE_DIR": str(cache), **env}))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def call() -> list[int]:
    """Of one call, as if it were the first of this process: compiled, loaded and missed; events; compiled in all."""
    jit.reset()
    observing.reset()
    events = []
    stop = tileops.on_compile(lambda event: events.append(event.program.factory))
    RMSNormFwdOp((32,))(torch.ones(2, 32))
    stop()
    found = tileops.stats(by="op")["RMSNormFwdOp"]
    return [found.compiled, found.loaded, found.misses, len(events), tileops.stats().compiled]


PRELOAD = """
import json, sys, torch, tileops
before = tileops.preload("{calls}")
loaded = tileops.stats(by="op").get("RMSNormFwdOp")
from tileops.norm import RMSNormFwdOp
RMSNormFwdOp((32,))(torch.ones(2, 32))
after = tileops.stats()
print(json.dumps([before.loaded, len(before.missing), loaded and loaded.loaded, after.compiled, after.loaded,
                  "numba" in sys.modules]))
"""


@pytest.mark.in_tree_kernels
def test_a_process_counts_and_another_preloads(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    calls = tmp_path / "calls.jsonl"
    with settings.scope(cache_dir=str(cache)):
        with tileops.record(calls):
            compiled, loaded, misses, events, total = call()
        assert compiled == events == total >= 1
        assert (loaded, misses) == (0, 1)
        assert call()[:4] == [0, compiled, 1, 0]
    ready, missing, counted, built, now, numba = run(PRELOAD.format(calls=calls), cache)
    assert ready == counted == now == compiled
    assert (missing, built, numba) == (0, 0, False)
    empty = tmp_path / "empty"
    empty.mkdir(mode=0o700)
    ready, missing, _, built, _, _ = run(PRELOAD.format(calls=calls), empty)
    assert (ready, missing) == (0, compiled)
    assert built == compiled  # by the call; preload compiled nothing


def test_a_compile_after_warming_is_worth_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks: list[Any] = []
    monkeypatch.setattr(jit, "on_compile", hooks.append)
    monkeypatch.setattr(observing, "_watching", False)
    observing.warmed()
    observing.warmed()
    (hook,) = hooks
    event = jit.CompileEvent(jit.Program.of("pkg.module:kernel", ("ptr",)), None, 0.25)
    with caplog.at_level(logging.WARNING, "tileops"), observing.built_for("ToyFwdOp"):
        hook(event)
    assert caplog.messages == [
        "ToyFwdOp: compiled pkg.module:kernel in 0.25 s although tileops.warm had finished: the call was not among "
        "those warmed. Record the calls of the application (TILEOPS_RECORD) and warm those"
    ]


def test_config_shows_every_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(settings.current().describe()) <= 15
    monkeypatch.setenv("TILEOPS_JIT", "forbid")
    with settings.scope(jit="forbid", cache_size=3 << 30):
        shown, text = (CliRunner().invoke(app, ["config", *options]).output for options in (["--json"], []))
    rows = {row["variable"]: row for row in json.loads(shown)}
    assert rows["TILEOPS_JIT"] == {
        "variable": "TILEOPS_JIT",
        "value": "forbid",
        "source": "environment",
        "meaning": "'forbid' raises ColdKernelError instead of compiling.",
    }
    assert all(name.startswith("TILEOPS_") for name in rows)
    assert "TILEOPS_CPU" in text
    assert re.search(r"TILEOPS_CACHE_SIZE +3\.0 GiB", text), "as in `tileops cache info`"
    assert rows["TILEOPS_CACHE_SIZE"]["value"] == 3 << 30
