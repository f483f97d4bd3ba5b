"""What the store keeps, drops, lists and explains."""

from __future__ import annotations

import stat
import threading
from concurrent.futures import ThreadPoolExecutor

from tests.store.helpers import artifact, filled, key, run
from tileops.jit import store as store_module
from tileops.jit.disk import ByteStore
from tileops.jit.store import KERNELS, Store, built_for


def test_nothing_is_touched_before_something_is_stored(tmp_path):
    store = Store(tmp_path / "cache")
    assert store.get(key()) is None
    assert store.entries() == []
    assert store.nearest(key()) is None
    assert store.clear() == 0
    assert store.info()["state"] == "empty"
    assert not (tmp_path / "cache").exists()


def test_what_is_stored_is_found_by_every_later_process(tmp_path):
    filled(tmp_path)
    printed = run(
        "import sys; from pathlib import Path; from tests.store.helpers import *\n"
        "found = Store(Path(sys.argv[1])).get(key(2))\n"
        "print(found == artifact(2), 'diskcache' in sys.modules, 'filelock' in sys.modules)",
        tmp_path,
    )
    assert printed.split() == ["True", "False", "False"], "reading loads neither diskcache nor filelock"


def test_directory_and_files_are_private(tmp_path):
    filled(tmp_path / "new" / "cache")
    for path in (tmp_path / "new" / "cache", tmp_path / "new" / "cache" / KERNELS):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_entries_say_what_they_are(tmp_path):
    store = Store(tmp_path)
    with built_for("RMSNormFwdOp"):
        store.put(key(1), artifact(1))
    store.put(key(2), artifact(2))
    named = {entry.op: entry.to_dict() for entry in store.entries()}
    assert named.keys() == {"RMSNormFwdOp", "kernels:rows"}
    entry = named["RMSNormFwdOp"]
    assert list(entry) == ["key", "op", "device", "arch", "dtype", "identity", "size", "last_used"]
    assert entry["key"] == key(1).digest
    assert (entry["device"], entry["arch"], entry["dtype"]) == ("cpu", "toy", "bf16")
    assert entry["identity"] == "toy.kernels:rows(dtype=bf16, n=1)"
    assert entry["size"] > 4000


def test_the_nearest_key_says_what_differs(tmp_path):
    store = filled(tmp_path)
    store.put(key(1, factory="toy.kernels:columns"), artifact(1))
    digest, fields = store.nearest(key(1, target={"cpu": "other"}))
    assert digest == key(1).digest
    assert fields == {"target.cpu": ("other", "toy")}


def test_clear_removes_kernels_but_no_records(tmp_path):
    store = filled(tmp_path, 5)
    records = ByteStore(tmp_path, "records-1")
    assert records.put("a", b"record")
    assert store.clear() == 5
    assert store.get(key(0)) is None
    assert records.get("a") == b"record"


def test_the_size_limit_drops_what_was_used_longest_ago(tmp_path, monkeypatch):
    now = [1_000_000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    store = Store(tmp_path, size_limit=1 << 20)
    for n in range(300):
        now[0] += 100
        store.put(key(n), artifact(n, size=20_000))
        assert store.get(key(0)) is not None, "in use all along"
        assert store.info()["bytes"] <= 1 << 20
    kept = [n for n in range(300) if store.get(key(n)) is not None]
    assert kept[0] == 0
    assert kept[1:] == list(range(300 - len(kept) + 1, 300)), "the most recent ones stay"
    assert len(kept) > 40


def test_the_size_limit_holds_under_concurrent_writers(tmp_path):
    code = (
        "import sys; from pathlib import Path; from tests.store.helpers import *\n"
        "store = Store(Path(sys.argv[1]), size_limit=1 << 20)\n"
        "first = int(sys.argv[2])\n"
        "for n in range(first, first + 40):\n"
        "    assert store.put(key(n), artifact(n, size=20_000))\n"
    )
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: run(code, tmp_path, 100 * i), range(4)))
    info = Store(tmp_path).info()
    assert info["bytes"] <= (1 << 20) + 24_000
    assert info["entries"] > 40


def test_records_are_never_dropped(tmp_path):
    records = ByteStore(tmp_path, "records-1")
    for n in range(100):
        assert records.put(str(n), b"x" * 50_000)
    assert records.count() == 100


def test_threads_share_a_store(tmp_path):
    store = Store(tmp_path)
    failures = []

    def work(first: int) -> None:
        for n in range(first, first + 20):
            store.put(key(n), artifact(n))
            if store.get(key(n)) != artifact(n):
                failures.append(n)

    threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(store.entries()) == 120


def test_a_forked_child_uses_its_own_connection(tmp_path):
    printed = run(
        "import os, sys; from pathlib import Path; from tests.store.helpers import *\n"
        "store = filled(Path(sys.argv[1]))\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    good = store.get(key(1)) == artifact(1) and store.put(key(9), artifact(9))\n"
        "    os._exit(0 if good else 1)\n"
        "code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
        "print(code, store.get(key(9)) == artifact(9), store.put(key(10), artifact(10)))",
        tmp_path,
    )
    assert printed.split() == ["0", "True", "True"]


def test_default_store_follows_the_settings(tmp_path):
    from tileops import settings

    with settings.scope(cache_dir=str(tmp_path / "a"), cache_size=123):
        first = store_module.default_store()
        assert first.root == tmp_path / "a"
        assert first.info()["size_limit"] == 123
        assert store_module.default_store() is first
    with settings.scope(cache_dir=str(tmp_path / "b")):
        assert store_module.default_store().root == tmp_path / "b"
