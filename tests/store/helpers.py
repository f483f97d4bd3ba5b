"""Keys, artifacts and processes for the tests of the store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tileops.jit.artifact import Artifact, ArtifactKey
from tileops.jit.store import Store

ROOT = Path(__file__).resolve().parents[2]
#: Instructions other than those this process compiles for.
OTHER_CPU = "x86-64-v3" if os.environ.get("TILEOPS_CPU") == "generic" else "generic"


def key(n: int = 0, **fields: object) -> ArtifactKey:
    """A key like that of a kernel; `n` and `fields` tell keys apart."""
    return ArtifactKey(
        {
            "factory": "toy.kernels:rows",
            "config": {"dtype": "bf16", "n": n},
            "device": "cpu",
            "target": {"cpu": "toy"},
            **fields,
        }
    )


def artifact(n: int = 0, size: int = 4000) -> Artifact:
    """The artifact that belongs to `key(n)`."""
    return Artifact({"kernel": bytes([n % 256]) * size, "wrapper": b"w"}, {"entry": f"rows_{n}"})


def run(code: str, *arguments: object, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """What a fresh Python process prints; its failure fails the test."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=environment(env),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of this process, with this checkout importable."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **(extra or {})}


def filled(root: Path, count: int = 3, **options: object) -> Store:
    """A store at `root` that holds `count` artifacts."""
    store = Store(root, **options)  # type: ignore[arg-type]
    for n in range(count):
        assert store.put(key(n), artifact(n))
    return store
