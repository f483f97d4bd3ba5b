"""docs/deployment.md, run as written: what it tells to type, a reader can type."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.helpers import SMALL_APPLICATION
from tests.store.helpers import ROOT, environment

pytestmark = [pytest.mark.in_tree_kernels, pytest.mark.xdist_group("deployment")]

PAGE = (ROOT / "docs" / "deployment.md").read_text()
BLOCKS = {
    kind: re.findall(rf"^ *```{kind}\n(.*?)^ *```", PAGE, re.MULTILINE | re.DOTALL) for kind in ("bash", "dockerfile")
}
OUTPUT = "192.0\n"


def block(start: str) -> str:
    """The commands that begin with `start`."""
    (found,) = (text for text in BLOCKS["bash"] if text.strip().startswith(start))
    return found


class Machine:
    """A place of its own to work in, with its own cache."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.path = path
        (path / "serve.py").write_text(SMALL_APPLICATION)
        # `tileops` and `python` of this environment, whatever PATH holds.
        (path / "bin").mkdir()
        for name, words in {"tileops": "-m tileops.cli.main", "python": "-W error::UserWarning"}.items():
            (path / "bin" / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
            (path / "bin" / name).chmod(0o755)

    def run(self, commands: str, **env: str) -> str:
        extra = {"PATH": f"{self.path}/bin:{os.environ['PATH']}", "TILEOPS_CACHE_DIR": str(self.path / "cache"), **env}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=self.path, env=environment(extra), capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def build(tmp_path_factory) -> Machine:
    """The build machine, after the steps that come before shipping."""
    machine = Machine(tmp_path_factory.mktemp("deployment") / "build")
    assert machine.run(block("TILEOPS_RECORD=")) == OUTPUT
    machine.run("rm -r cache")
    assert "0 failed" in machine.run(block("tileops warm"))
    return machine


def test_in_an_image(build, tmp_path):
    """The Dockerfile's steps, with the image's paths below a temporary directory."""
    (text,) = BLOCKS["dockerfile"]
    stages = [stage.strip().splitlines()[1:] for stage in re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]]
    context = build.path
    images = []
    for number, lines in enumerate(stages):
        root = tmp_path / f"image{number}"
        machine, env, workdir = Machine(root), dict[str, str](), root
        images.append(root)
        # Compiled are the kernels of the fixture, once; the second stage has no cache but the image's.
        env["TILEOPS_CACHE_DIR"] = "/proc/nowhere" if number == 1 else str(build.path / "cache")
        for line in lines:
            step, _, rest = line.partition(" ")
            words = rest.split()
            if step == "WORKDIR":
                workdir = root / rest.lstrip("/")
                workdir.mkdir(parents=True)
            elif step == "COPY":
                source, words = (images[0], words[1:]) if words[0].startswith("--from") else (context, words)
                *files, target = [word.lstrip("/") for word in words]
                place = workdir if target == "./" else root / target
                for name in files:
                    goal = place / name if target == "./" else place
                    goal.parent.mkdir(parents=True, exist_ok=True)
                    goal.write_bytes((source / name).read_bytes())
            elif step == "ENV":
                env |= dict(word.split("=", 1) for word in rest.replace("=/", f"={root}/").split())
            else:
                assert step in ("RUN", "CMD")
                said = machine.run(f"cd {workdir} && {rest}", **env)
    assert said == OUTPUT
    (bundle,) = (images[1] / "opt" / "tileops").iterdir()
    assert bundle.suffix == ".tobundle"


def test_a_bundle_at_start_up(build, tmp_path):
    build.run(block("openssl genpkey"))
    server = Machine(tmp_path / "server")
    for name in ("kernels.tobundle", "signing.pub"):
        (server.path / name).write_bytes((build.path / name).read_bytes())
    assert server.run(block("tileops cache import")).endswith(OUTPUT)


def test_a_shared_directory(tmp_path):
    said = Machine(tmp_path / "host").run(block("export TILEOPS_CACHE_DIR"), SHARED=str(tmp_path / "shared"))
    # Two processes print at once: a line end may come after both numbers.
    assert said.count(OUTPUT.strip()) == 2
    assert said.strip().endswith("sound")
    assert (tmp_path / "shared" / "tileops").stat().st_mode & 0o777 == 0o770


@pytest.mark.nightly
def test_tuning(build):
    assert "speed-up" in build.run(block("tileops tune"))


def test_memory_settings(build):
    assert build.run(block("export MALLOC")) == OUTPUT


def test_every_block_is_run():
    """A block that is added to the page is added here."""
    assert len(BLOCKS["bash"]) == 7
    assert len(BLOCKS["dockerfile"]) == 1
