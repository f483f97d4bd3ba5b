"""Processes that are killed at random moments, and many at once."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.helpers import ROUNDS, nursery
from tests.cli.helpers import tileops
from tests.store.helpers import artifact, environment, key
from tileops.jit.store import KERNELS, Store

pytestmark = pytest.mark.in_tree_kernels

ON_ONE_KEY = """
import json, time
from pathlib import Path
root = Path(sys.argv[1])
os.environ["TILEOPS_CACHE_DIR"] = str(root / "cache")
go = root / "go"

def wait():
    while not go.exists():
        time.sleep(0.001)

from threading import Thread
said = [None] * 8
def run(i):
    said[i] = call(wait)
threads = [Thread(target=run, args=(i,)) for i in range(8)]
for thread in threads:
    thread.start()
time.sleep(0.5)
go.touch()
for thread in threads:
    thread.join()
print(json.dumps(said))
"""


def test_eight_processes_compile_a_cold_key_once(tmp_path):
    said = nursery(ON_ONE_KEY, tmp_path)
    assert all(text.startswith("right=True") and text.endswith("warnings=0 []") for text in said), said
    compiled = [int(text.split("compiled=")[1].split()[0]) for text in said]
    assert sum(compiled) == 2, f"two operators, each compiled by one of the processes: {compiled}"
    assert len(Store(tmp_path / "cache").entries()) == 2
    assert not list((tmp_path / "cache").rglob("*.tmp*"))


KILLS = """
import json, random, signal, time
from pathlib import Path
from tests.store.helpers import *
from tileops.autotune.record import RecordStore
from tileops.autotune.shipping import export_cache, import_cache
from tileops.jit.artifact import ArtifactError

root, rounds = Path(sys.argv[1]), int(sys.argv[2])
chance = random.Random(int(sys.argv[3]))
bundle = root / "shipped.tobundle"
source = Store(root / "source")
for n in range(40):
    source.put(key(n), artifact(n, size=20_000))
export_cache(bundle, store=source, records=RecordStore(root / "source"))
cache = root / "cache"

def build(store, chance):
    n = chance.randrange(40)
    with store.lock(key(n)):
        if store.get(key(n)) is None:
            store.put(key(n), artifact(n, size=20_000))

def publish(store, chance):
    n = chance.randrange(40)
    store.put(key(n), artifact(n, size=20_000))

def prune(store, chance):
    store.remove([entry.key for entry in store.prunable(size=chance.randrange(400_000))])

def ship(store, chance):
    import_cache(bundle, trust=True, store=store, records=RecordStore(cache))

def clear(store, chance):
    if chance.random() < 0.1:
        store.clear()

def work(action, seed):
    store, chance = Store(cache, size_limit=600_000), random.Random(seed)
    while True:
        action(store, chance)

killed = 0
wrong = []
for number in range(rounds):
    children = []
    for action in chance.sample([build, publish, prune, ship, clear, publish], 3):
        seed = chance.random()
        child = os.fork()
        if child == 0:
            try:
                work(action, seed)
            finally:
                os._exit(3)  # only after an exception: a fault of the store must be none
        children.append(child)
    time.sleep(chance.uniform(0.0, 0.08))
    for child in children:  # the others go on while the first is killed
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)
        time.sleep(chance.uniform(0.0, 0.01))
    store = Store(cache)
    checked, damage = store.verify()
    wrong += [str(found) for found in damage]
    for n in range(40):
        found = store.get(key(n))
        if found is not None and found != artifact(n, size=20_000):
            wrong.append(f"round {number}: key {n} gave another kernel")
    store.put(key(number % 40), artifact(number % 40, size=20_000))
print(json.dumps([killed, wrong, sorted(os.listdir(cache))]))
"""


def test_killed_processes_leave_a_sound_store(tmp_path):
    killed, wrong, files = nursery(KILLS, tmp_path, ROUNDS, 11)
    assert killed == 3 * ROUNDS, "an action ended by itself: it raised"
    assert wrong == []
    assert "quarantine" not in files
    assert "sound" in tileops("cache", "verify", cache=tmp_path / "cache")


WRITER = """
import sys, time
from pathlib import Path
from tests.store.helpers import *
import tileops.jit.disk as disk
disk._STAMP_SECONDS = disk._FRESH_SECONDS = 0.01
store = Store(Path(sys.argv[1]), size_limit=1 << 20)
kind, first, count = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if kind == "write":
    print("ready", flush=True)
    for n in range(first, first + count):
        assert store.put(key(n), artifact(n, size=20_000))
else:
    for n in range(first, first + count):
        assert store.get(key(n)) is not None
    while store._disk._used:
        time.sleep(0.01)
    print("ready", flush=True)
    time.sleep(600)
"""
ENTRY = 24_600
"""Bytes that an entry of 20,000 takes in the database."""


def start(root: Path, kind: str, first: int, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", WRITER, str(root), kind, str(first), str(count)]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def kept(root: Path) -> set[int]:
    return {item.fields["config"]["n"] for item in Store(root).entries()}


def test_the_size_limit_holds_under_four_writers_and_what_is_used_stays(tmp_path):
    store = Store(tmp_path, size_limit=1 << 20)
    for n in range(20):
        store.put(key(n), artifact(n, size=20_000))
    reader = start(tmp_path, "read", 0, 5)
    reader.kill()  # a service, which never leaves Python by itself
    reader.wait()
    writers = [start(tmp_path, "write", 100 * (i + 1), 8) for i in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    assert kept(tmp_path) >= {*range(5), *(100 * (i + 1) + n for i in range(4) for n in range(8))}
    assert len(kept(tmp_path)) < 20 + 4 * 8, "others had to go, and nobody had used these"

    database = tmp_path / KERNELS / "cache.db"
    writers = [start(tmp_path, "write", 1000 * (i + 1), 40) for i in range(4)]
    largest = 0
    while any(writer.poll() is None for writer in writers):
        largest = max(largest, database.stat().st_size)
        time.sleep(0.002)
    assert [writer.wait() for writer in writers] == [0] * 4
    assert largest <= (1 << 20) + 4 * ENTRY, "while four processes write at once"
    assert database.stat().st_size <= (1 << 20) + ENTRY
    assert len(kept(tmp_path)) > 35
    assert max(kept(tmp_path)) > 1000
