"""Many processes on one store."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time

from tests.store.helpers import artifact, environment, filled, key
from tileops.jit.store import Store

BUILD = """
import sys, time
from pathlib import Path
from tests.store.helpers import *
root, barrier = Path(sys.argv[1]), Path(sys.argv[2])
print("ready", flush=True)
while not barrier.exists():
    time.sleep(0.001)
store = Store(root)
compiled = 0
found = store.get(key(0))
if found is None:
    with store.lock(key(0)):
        found = store.get(key(0))
        if found is None:
            time.sleep(0.2)
            compiled += 1
            found = artifact(0)
            store.put(key(0), found)
assert found == artifact(0)
print("compiled", compiled)
"""

PUBLISH = """
import sys
from pathlib import Path
from tests.store.helpers import *
store = Store(Path(sys.argv[1]), size_limit=1 << 20)
n = int(sys.argv[2])
print("ready", flush=True)
while True:
    with store.lock(key(n)):
        store.put(key(n), artifact(n, size=30_000))
    n += 1
"""


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )


def test_eight_processes_compile_a_kernel_once(tmp_path):
    barrier = tmp_path / "go"
    processes = [start(BUILD, tmp_path / "cache", barrier) for _ in range(8)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    barrier.touch()
    said = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 8
    assert sorted(said) == ["compiled 0\n"] * 7 + ["compiled 1\n"]
    assert len(Store(tmp_path / "cache").entries()) == 1
    assert not list((tmp_path / "cache").rglob("*.tmp*"))


def test_killed_writers_leave_a_sound_store(tmp_path):
    filled(tmp_path, 3)
    chance = random.Random(0)
    for round_ in range(12):
        process = start(PUBLISH, tmp_path, 100 * (round_ + 1))
        assert process.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0.02, 0.15))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        store = Store(tmp_path)
        for entry in store.entries():
            n = entry.fields["config"]["n"]
            found = store.get(key(n))
            assert found == artifact(n, size=30_000 if n >= 100 else 4000)
        with store.lock(key(round_)):
            assert store.put(key(round_), artifact(round_))
    assert not (tmp_path / "quarantine").exists()
