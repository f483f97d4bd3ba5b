"""Whatever happens to the store is a miss and one warning, never an error and never a wrong kernel."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import shutil
import sqlite3
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.store.helpers import artifact, filled, key, run
from tileops.autotune.record import RecordStore
from tileops.errors import CacheWarning
from tileops.jit.disk import private_refusal
from tileops.jit.mounts import filesystem_of
from tileops.jit.store import KERNELS, Store

DATABASE = Path(KERNELS) / "cache.db"


def check_recovers(root: Path, *, warns: bool | None = True) -> None:
    """A fresh store at `root` never gives a wrong artifact, warns at most once, and takes new ones."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store = Store(root)
        for n in range(3):
            found = store.get(key(n))
            assert found is None or found == artifact(n)
            store.put(key(n), artifact(n))
        again = Store(root)
        for n in range(3):
            assert again.get(key(n)) == artifact(n)
    issued = [item for item in caught if issubclass(item.category, CacheWarning)]
    assert len(issued) <= 1
    if warns is not None:
        assert len(issued) == warns, [str(item.message) for item in issued]


@contextmanager
def one_warning(text: str = "") -> Iterator[list[str]]:
    """Exactly one `CacheWarning` comes out of the block; its text is in the list afterwards."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    found += [str(item.message) for item in caught if issubclass(item.category, CacheWarning)]
    assert len(found) == 1, found
    assert text in found[0]


@pytest.fixture
def root(tmp_path) -> Path:
    filled(tmp_path)
    return tmp_path


@pytest.mark.parametrize("part", [0, 10, 0.3, 0.5, 0.9, -1])
def test_a_truncated_database(root, part):
    size = (root / DATABASE).stat().st_size
    os.truncate(root / DATABASE, int(size * part) if isinstance(part, float) else part % size)
    check_recovers(root, warns=None)


def test_a_database_of_noise(root):
    (root / DATABASE).write_bytes(b"noise" * 1000)
    check_recovers(root)
    assert list((root / "quarantine").iterdir()), "kept for inspection"


@pytest.mark.parametrize("step", range(24))
def test_a_database_with_flipped_bytes(root, step):
    data = bytearray((root / DATABASE).read_bytes())
    for position in range(step * 17, len(data), 4099):
        data[position] ^= 0x41
    (root / DATABASE).write_bytes(data)
    check_recovers(root, warns=None)


def test_a_flipped_byte_in_an_entry_is_quarantined(root):
    data = (root / DATABASE).read_bytes()
    where = data.index(artifact(1).parts["kernel"][:64])
    (root / DATABASE).write_bytes(data[: where + 30] + b"\x77" + data[where + 31 :])
    with pytest.warns(CacheWarning, match="checksum"):
        assert Store(root).get(key(1)) is None
    assert (root / "quarantine" / f"{key(1).digest}.entry").exists()
    assert Store(root).get(key(0)) == artifact(0)
    check_recovers(root, warns=False)


def test_a_directory_in_place_of_the_database(root):
    (root / DATABASE).unlink()
    (root / DATABASE).mkdir()
    check_recovers(root)


def test_the_database_of_another_program(root):
    (root / DATABASE).unlink()
    connection = sqlite3.connect(root / DATABASE)
    connection.execute("CREATE TABLE Cache (key TEXT, other INTEGER)")
    connection.commit()
    connection.close()
    check_recovers(root)


class Bomb:
    def __reduce__(self):
        return os.mkdir, (os.environ["TILEOPS_TEST_MARKER"],)


@pytest.fixture
def bomb(tmp_path_factory, monkeypatch) -> tuple[bytes, Path]:
    marker = tmp_path_factory.mktemp("marker") / "executed"
    monkeypatch.setenv("TILEOPS_TEST_MARKER", str(marker))
    return pickle.dumps(Bomb()), marker


def test_a_pickled_row_is_damage_and_is_not_unpickled(root, bomb):
    data, marker = bomb
    connection = sqlite3.connect(root / DATABASE)
    connection.execute("UPDATE Cache SET mode = 4, value = ?", (data,))
    connection.execute("UPDATE Cache SET key = ?, raw = 0 WHERE rowid = 1", (data,))
    connection.commit()
    connection.close()
    check_recovers(root, warns=None)
    store = Store(root)
    store.entries()
    store.clear()
    assert not marker.exists()


def test_pickles_in_place_of_every_file(root, bomb):
    data, marker = bomb
    for path in [item for item in root.rglob("*") if item.is_file()]:
        path.write_bytes(data)
    check_recovers(root)
    assert not marker.exists()


def test_a_row_that_names_a_file_is_damage(root, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "secret"
    outside.write_bytes(artifact(0).encode(key(0)))
    connection = sqlite3.connect(root / DATABASE)
    connection.execute("UPDATE Cache SET mode = 2, filename = ?, value = NULL", (str(outside),))
    connection.commit()
    connection.close()
    check_recovers(root, warns=None)
    assert outside.exists()


def refused(root: Path, **options: object) -> str:
    """The one warning of a store that refuses its directory."""
    with one_warning() as caught:
        store = Store(root, **options)
        assert store.get(key(0)) is None
        assert not store.put(key(5), artifact(5))
        with store.lock(key(5)):
            pass
        assert store.entries() == []
    assert store.info()["state"] in caught[0]
    return caught[0]


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o720])
@pytest.mark.parametrize("place", [".", KERNELS])
def test_what_others_may_write_is_refused(root, mode, place):
    (root / place).chmod(mode)
    text = refused(root)
    assert "writable" in text
    assert "TILEOPS_CACHE_DIR" in text


def test_a_group_can_be_trusted(root):
    root.chmod(0o770)
    assert Store(root, trust_group=True).get(key(0)) == artifact(0)
    root.chmod(0o777)
    assert "everyone" in refused(root, trust_group=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_foreign_directory_is_refused_also_behind_a_link(root, tmp_path_factory):
    link = tmp_path_factory.mktemp("links") / "cache"
    link.symlink_to(root)
    assert Store(link).get(key(0)) == artifact(0), "a link to our own directory is fine"
    os.chown(root, 12345, -1)
    assert "belongs to user 12345" in refused(root)
    assert "belongs to user 12345" in refused(link)


def test_group_trust_is_for_our_groups_and_for_root(monkeypatch, tmp_path):
    facts = list(tmp_path.stat())
    facts[stat.ST_MODE] |= 0o020
    facts[stat.ST_UID], facts[stat.ST_GID] = 0, 4321
    monkeypatch.setattr(os, "stat", lambda path: os.stat_result(facts))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getgroups", lambda: [4321])
    assert private_refusal(tmp_path, trust_group=True) is None
    assert "belongs to user 0" in private_refusal(tmp_path)
    monkeypatch.setattr(os, "getgroups", lambda: [1])
    assert "group 4321" in private_refusal(tmp_path, trust_group=True)


@pytest.mark.parametrize("place", ["/proc/tileops", "/dev/null", "/dev/null/below", "file", "n" * 300])
def test_a_directory_that_cannot_be(tmp_path, place):
    (tmp_path / "file").write_text("not a directory")
    path = tmp_path / place  # an absolute place stays what it is
    with one_warning():
        store = Store(path)
        assert store.get(key(0)) is None
        assert not store.put(key(0), artifact(0))
        assert not store.put(key(1), artifact(1))
        with store.lock(key(0)):
            pass
        assert store.get(key(0)) is None
    assert store.info()["state"] not in ("ok", "empty")


@contextmanager
def no_access(directory: Path) -> Iterator[None]:
    """Nobody may look into `directory` inside the block, as where the home directory is another user's."""
    directory.chmod(0)
    was_root = os.geteuid() == 0  # whom no mode stops
    if was_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if was_root:
            os.seteuid(0)
        directory.chmod(0o700)


def test_a_directory_that_we_may_not_look_into(tmp_path):
    (tmp_path / "home").mkdir()
    place = tmp_path / "home" / "cache"
    with no_access(tmp_path / "home"):
        assert not RecordStore(place).may_hold(["any"])
        with one_warning("Permission denied"):
            store = Store(place)
            assert store.get(key(0)) is None
            assert not store.put(key(0), artifact(0))
            assert "Permission denied" in store.info()["state"]


def test_no_home_costs_one_warning():
    printed = run(
        "import sys, warnings; from tests.store.helpers import *\n"
        "from tileops.jit.store import default_store\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    store = default_store()\n"
        "    print(store.get(key(0)), store.put(key(0), artifact(0)), len(caught))\n",
        env={"HOME": "/proc/nowhere", "XDG_CACHE_HOME": "", "TILEOPS_CACHE_DIR": ""},
    )
    assert printed.split() == ["None", "False", "1"]


def test_a_read_only_store_still_serves(root, monkeypatch):
    real = sqlite3.connect

    def connect(path, *arguments, **options):
        connection = real(path, *arguments, **options)
        connection.execute("PRAGMA query_only = 1")
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect)
    with one_warning():
        store = Store(root)
        assert store.get(key(0)) == artifact(0)
        assert not store.put(key(5), artifact(5))
        assert not store.put(key(6), artifact(6))
        assert store.get(key(1)) == artifact(1)
    assert not (root / "quarantine").exists()


def test_a_full_disk(root):
    store = Store(root)
    assert store.put(key(3), artifact(3))
    store._disk._writer._con.execute("PRAGMA max_page_count = 1")  # SQLite answers SQLITE_FULL
    with one_warning("full"):
        assert not store.put(key(4), artifact(4, size=1_000_000))
        assert not store.put(key(5), artifact(5, size=1_000_000))
    assert store.get(key(3)) == artifact(3)
    assert not (root / "quarantine").exists()


@pytest.mark.parametrize("code", [errno.EBUSY, errno.ENOLCK, errno.ESTALE])
def test_network_file_system_errors(root, monkeypatch, code):
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "replace", fail)
    monkeypatch.setattr(os, "unlink", fail)
    monkeypatch.setattr(fcntl, "flock", fail)
    monkeypatch.setattr(shutil, "rmtree", fail)
    with one_warning():
        store = Store(root)
        for _ in range(2):
            with store.lock(key(7)):
                assert store.put(key(7), artifact(7))
                assert store.get(key(7)) == artifact(7)
    (root / DATABASE).write_bytes(b"noise" * 1000)
    with pytest.warns(CacheWarning):
        assert Store(root).get(key(0)) is None


def test_a_default_directory_on_a_network_file_system_is_one_warning(tmp_path, monkeypatch):
    monkeypatch.setattr("tileops.jit.disk.filesystem_of", lambda path: "nfs4")
    with one_warning("network file system (nfs4)"):
        store = Store(tmp_path, chosen=False)
        assert store.put(key(0), artifact(0))
        assert store.put(key(1), artifact(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Store(tmp_path, chosen=False).get(key(0)) == artifact(0)
        assert Store(tmp_path, chosen=True).put(key(2), artifact(2))


def test_the_file_system_of_a_directory_is_found():
    assert filesystem_of(Path("/proc/self")) == "proc"
    assert filesystem_of(Path("/dev/shm/not/there")) == "tmpfs"


def test_faults_with_warnings_as_errors_are_the_callers_wish(root):
    (root / DATABASE).write_bytes(b"noise" * 1000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(CacheWarning):
            Store(root).get(key(0))
