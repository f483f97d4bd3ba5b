"""Bytes by name on disk, shared by processes, where every fault is a miss.

One `ByteStore` is one SQLite file in the layout of `diskcache`. Values are bytes and live inside the
database, so publishing is a transaction and a process killed at any moment leaves nothing half-written.
diskcache itself is loaded for writing only: reading goes straight to SQLite, because importing diskcache
and opening its `Cache` costs 15-50 ms, more than the whole first call of a warm process may take. Nothing
is memory-mapped or unpickled.

The directory must belong to us and be writable by nobody else, since what it holds is executed.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import sqlite3
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tileops.errors import CacheWarning, warn
from tileops.jit.database import BUSY, BUSY_SECONDS, TRANSIENT, behind, damage_of, open_cache, primary_code, transaction
from tileops.jit.mounts import NETWORK, filesystem_of

if TYPE_CHECKING:
    import diskcache

log = logging.getLogger("tileops.cache")
T = TypeVar("T")

_DATABASE = "cache.db"
#: Files of a store that change whenever something is stored.
FILES = (_DATABASE, f"{_DATABASE}-wal")
_LOCK_SECONDS = 300.0  # how long a build waits for another process's build of the same kernel
_STAMP_SECONDS = 5.0  # how long after a use its time is written
_FRESH_SECONDS = 60.0  # a last-used stamp younger than this is not written again
_QUARANTINED = 4  # damaged databases and entries kept for inspection, each


def private_refusal(path: Path, trust_group: bool = False) -> str | None:
    """Why what lies at `path` must not be trusted as code, or None.

    Args:
        path: directory or file; a symbolic link counts as what it leads to.
        trust_group: accept root as owner, and write permission for a group that this process is in.

    Raises:
        OSError: `path` cannot be examined.
    """
    facts = os.stat(path)
    us = os.geteuid()
    if facts.st_uid != us and not (trust_group and facts.st_uid == 0):
        return f"{path} belongs to user {facts.st_uid}, not to user {us}"
    if facts.st_mode & stat.S_IWOTH:
        return f"{path} is writable by everyone (mode {stat.S_IMODE(facts.st_mode):04o})"
    if facts.st_mode & stat.S_IWGRP and not (trust_group and facts.st_gid in {os.getegid(), *os.getgroups()}):
        return f"{path} is writable by group {facts.st_gid} (mode {stat.S_IMODE(facts.st_mode):04o})"
    return None


@dataclass(frozen=True)
class Row:
    """One stored value, or its beginning, with its times (seconds since the epoch).

    Attributes:
        name: what it is stored under.
        value: the bytes asked for.
        size: bytes of the whole value.
        stored: when it was written.
        used: when it was last read, or written.
    """

    name: str
    value: bytes
    size: int
    stored: float
    used: float


class ByteStore:
    """Bytes by name in ``<root>/<name>``; no method raises for a fault of the store.

    A fault (damage, no permission, full disk, a lock that cannot be had) is a miss or an unpublished value,
    reported by one `CacheWarning` per store and process and logged at debug level after that. A damaged
    database is moved to ``<root>/quarantine`` and replaced. Safe for threads, for processes, and across
    ``fork``.

    Args:
        root: directory shared by the stores of one cache; created with mode 0700 on first write. None:
            nothing is ever found or kept.
        name: subdirectory of this store.
        size_limit: bytes; the values used longest ago are dropped beyond it. None: nothing is ever dropped.
        trust_group: see `private_refusal`.
        chosen: somebody named `root`. One that nobody chose is warned about where it lies on a network file
            system.
    """

    def __init__(
        self,
        root: Path,
        name: str,
        *,
        size_limit: int | None = None,
        trust_group: bool = False,
        chosen: bool = True,
    ) -> None:
        self.root = root
        self.directory = root / name
        self.size_limit = size_limit
        self._trust_group = trust_group
        self._chosen = chosen
        self._off: str | None = None
        self._last_fault = ""
        self._checked = False
        self._warned = False
        self._used: dict[str, float] = {}
        self._reader: sqlite3.Connection | None = None
        self._writer: diskcache.Cache | None = None
        self._mutex = threading.RLock()
        _stores.add(self)

    def get(self, name: str) -> bytes | None:
        """The value stored under `name`, or None."""

        def read() -> bytes | None:
            connection = self._open_reader()
            if connection is None:
                return None
            row = connection.execute(
                "SELECT value, access_time FROM Cache WHERE key = ? AND raw = 1 AND mode = 1", (name,)
            ).fetchone()
            if row is None:
                return None
            value, used = row
            if type(value) is not bytes:
                raise sqlite3.DatabaseError(f"the value of {name} is not bytes")
            now = time.time()
            if now - used > _FRESH_SECONDS:
                self._note_use(name, now)
            return value

        return self._attempt("read", read, None)

    def put(self, name: str, value: bytes) -> bool:
        """Stores `value` under `name`, replacing what was there. False where that was not possible."""

        def write() -> bool:
            writer = self._open_writer()
            self._stamp()
            writer.set(name, value)
            self._evict(keep=name)
            return True

        return self._attempt("write", write, False)

    def discard(self, name: str, keep_copy: bool = False) -> bool:
        """Removes the value under `name`; with `keep_copy` a copy goes to the quarantine. True where one
        was removed.
        """

        def remove() -> bool:
            if keep_copy:
                value = self.get(name)
                if value is not None:
                    self._quarantine_entry(name, value)
            return bool(self._open_writer().delete(name))

        return self._attempt("remove", remove, False)

    def rows(self, head: int | None = None) -> list[Row]:
        """Every stored value, the most recently used first. Does not count as use.

        Args:
            head: read at most this many bytes of each value.
        """

        def read() -> list[Row]:
            connection = self._open_reader()
            if connection is None:
                return []
            value = "value" if head is None else f"substr(value, 1, {int(head)})"
            found = connection.execute(
                f"SELECT key, {value}, length(value), store_time, access_time FROM Cache"
                " WHERE raw = 1 AND mode = 1 ORDER BY access_time DESC"
            ).fetchall()
            rows = [
                Row(name, value, size, stored, max(used, self._used.get(name, 0.0)))
                for name, value, size, stored, used in found
                if type(name) is str and type(value) is bytes
            ]
            return sorted(rows, key=lambda row: -row.used)

        return self._attempt("read", read, [])

    def peek(self, name: str) -> bytes | None:
        """Like `get`, but does not count as use."""

        def read() -> bytes | None:
            connection = self._open_reader()
            if connection is None:
                return None
            row = connection.execute(
                "SELECT value FROM Cache WHERE key = ? AND raw = 1 AND mode = 1", (name,)
            ).fetchone()
            return row[0] if row is not None and type(row[0]) is bytes else None

        return self._attempt("read", read, None)

    def drop(self, names: Sequence[str]) -> int:
        """Removes the values under `names` in one step; the number removed."""

        def remove() -> int:
            connection = self._open_reader()
            if connection is None or not names:
                return 0
            with transaction(connection):
                done = connection.executemany(
                    "DELETE FROM Cache WHERE key = ? AND raw = 1", [(name,) for name in names]
                )
            return done.rowcount

        return self._attempt("remove", remove, 0)

    def clear(self) -> int:
        """Removes every value; the number removed."""

        def remove() -> int:
            if self._open_reader() is None:
                return 0
            self._used.clear()
            return int(self._open_writer().clear())

        return self._attempt("clear", remove, 0)

    def count(self) -> int:
        """Number of stored values."""

        def read() -> int:
            connection = self._open_reader()
            return 0 if connection is None else connection.execute("SELECT count(*) FROM Cache").fetchone()[0]

        return self._attempt("read", read, 0)

    def size(self) -> int:
        """Bytes that the store takes on disk."""
        try:
            return sum(item.stat().st_size for item in os.scandir(self.directory) if item.is_file())
        except OSError:
            return 0

    def state(self) -> str:
        """ "ok", "empty" (nothing stored yet), or why the store is not used."""
        if not self._usable():
            return str(self._off)
        if os.path.lexists(self.root) and not self.root.is_dir():
            return f"{self.root} is not a directory"
        if not (self.directory / _DATABASE).exists() and self._last_fault:
            return self._last_fault
        if not os.path.lexists(self.root):
            parent = next(path for path in self.root.absolute().parents if path.exists())
            if not os.access(parent, os.W_OK):
                return f"{self.root} does not exist and cannot be created"
        return "ok" if (self.directory / _DATABASE).exists() else "empty"

    def fault(self) -> str:
        """Why the last attempt that failed did, or ""."""
        return self._off or self._last_fault

    def damage(self) -> list[str]:
        """What is wrong with the database file; empty where it is sound or there is none. Moves nothing away.

        Raises:
            OSError: it cannot be examined.
        """
        path = self.directory / _DATABASE
        if not self._usable() or not os.path.lexists(path):
            return []
        if not path.is_file():
            return [f"{path} is not a file"]
        return damage_of(path)

    def kept_aside(self) -> int:
        """Number of damaged entries and databases that lie in the quarantine."""
        try:
            return len(os.listdir(self.root / "quarantine"))
        except OSError:
            return 0

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Holds a lock over the value `name` against other processes and threads; it dies with its holder.

        Where no lock can be had (no directory, a file system without locks, a holder that does not finish)
        the block runs without one: then two processes may do the same work, and both results are right.
        Names share 256 lock files, so a thread must hold one at a time.
        """
        with self.lock_file(f"{name[:2]}.lock"):
            yield

    @contextmanager
    def lock_file(self, file: str) -> Iterator[None]:
        """Like `lock`, over the lock file called `file`."""
        held = self._acquire(file)
        try:
            yield
        finally:
            if held is not None:
                try:
                    held.release()
                except OSError as error:
                    self._fault("unlock", error)

    def _acquire(self, file: str) -> Any:
        if not self._usable():
            return None
        from filelock import FileLock, Timeout  # 25 ms to import, and needed to compile only

        try:
            self._make_directories()
            places = self.root / "locks"
            places.mkdir(mode=0o700, exist_ok=True)
            held = FileLock(places / file, timeout=_LOCK_SECONDS)
            held.acquire(poll_interval=0.02)
        except (OSError, NotImplementedError, Timeout) as error:
            self._fault("lock", error)
            return None
        return held

    # Opening -----------------------------------------------------------------------------------------------

    def _usable(self) -> bool:
        """Whether the directory, if it exists, may be trusted. Decided once."""
        if self._off is None and not self._checked:
            try:
                for path in (self.root, self.directory, self.directory / _DATABASE):
                    try:
                        os.lstat(path)
                    except FileNotFoundError:
                        break
                    refusal = private_refusal(path, self._trust_group)
                    if refusal is not None:
                        self._turn_off(f"{refusal}, so its contents cannot be trusted as code")
                        break
                    self._checked = True
            except OSError as error:
                self._turn_off(str(error))
        return self._off is None

    def _turn_off(self, reason: str) -> None:
        self._off = reason
        self.warn(f"the kernel cache is not used: {reason}")

    def _make_directories(self) -> None:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory.mkdir(mode=0o700, exist_ok=True)
        for path in (self.root, self.directory):
            refusal = private_refusal(path, self._trust_group)
            if refusal is not None:
                raise PermissionError(refusal)

    def _open_reader(self) -> sqlite3.Connection | None:
        if self._reader is None:
            path = self.directory / _DATABASE
            if not path.exists():
                return None
            self._reader = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=rw",
                uri=True,
                timeout=BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
            )
        return self._reader

    def _open_writer(self) -> diskcache.Cache:
        if self._writer is None:
            self._make_directories()
            path = os.path.abspath(self.directory)
            if os.path.expandvars(os.path.expanduser(path)) != path:
                raise OSError(f"{path} holds a '$' that diskcache would expand")
            kind = None if self._chosen else filesystem_of(self.directory)
            if kind in NETWORK:
                self.warn(f"the kernel cache at {self.directory} lies on a network file system ({kind})")
            self._writer = open_cache(path, durable=self.size_limit is None)
        return self._writer

    def _close(self) -> None:
        for connection in (self._reader, self._writer):
            if connection is not None:
                try:
                    connection.close()
                except Exception as error:  # closing a damaged database may fail in any way
                    log.debug("closing %s: %s", self.directory, error)
        self._reader = self._writer = None

    # Last use and size -------------------------------------------------------------------------------------

    def _note_use(self, name: str, now: float) -> None:
        if not self._used:
            # Soon, and not at the end of the process: services are ended by signals.
            timer = threading.Timer(_STAMP_SECONDS, self.flush)
            timer.daemon = True
            timer.start()
        self._used[name] = now

    def _stamp(self) -> None:
        """Writes the times at which values were last used, collected so that reading never waits for a
        writer.
        """
        connection = self._open_reader()
        if connection is None or not self._used:
            return
        with transaction(connection):
            connection.executemany(
                "UPDATE Cache SET access_time = max(access_time, ?) WHERE key = ? AND raw = 1",
                [(used, name) for name, used in self._used.items()],
            )
        self._used.clear()

    def _evict(self, keep: str) -> None:
        """Drops the values used longest ago, except `keep`, until the database fits its limit."""
        connection = self._open_reader()
        if self.size_limit is None or connection is None:
            return
        (page_size,) = connection.execute("PRAGMA page_size").fetchone()
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        excess = pages * page_size - self.size_limit
        if excess <= 0:
            return
        dropped = []
        with transaction(connection):
            oldest = connection.execute(
                "SELECT rowid, length(value) FROM Cache WHERE key != ? ORDER BY access_time", (keep,)
            )
            for row, size in oldest:
                dropped.append((row,))
                excess -= size or 0
                if excess <= 0:
                    break
            connection.executemany("DELETE FROM Cache WHERE rowid = ?", dropped)
        log.debug("dropped %d entries of %s to stay within %d bytes", len(dropped), self.directory, self.size_limit)

    def flush(self) -> None:
        """Writes pending last-used times; runs a while after a use, and when the process ends.

        Silent where that is not possible: a read-only store serves all the same.
        """
        if self._used and self._off is None:
            with self._mutex:
                try:
                    self._stamp()
                except Exception as error:
                    log.debug("last-used times of %s are not written: %s", self.directory, error)

    # Faults ------------------------------------------------------------------------------------------------

    def _attempt(self, what: str, action: Callable[[], T], default: T) -> T:
        """`action()`, or `default` after a fault. Damage moves the database away and `action` runs again."""
        if not self._usable():
            return default
        patience = time.monotonic() + BUSY_SECONDS
        moved_away = False
        with self._mutex:
            while True:
                try:
                    return action()
                except OSError as error:
                    self._fault(what, error)
                    return default
                except Exception as error:  # diskcache meets damage with TypeError, KeyError, ... as well
                    fault = behind(error)
                    code = primary_code(fault)
                    if code in BUSY and time.monotonic() < patience:
                        # SQLite itself does not wait while another process undoes a killed writer's work.
                        time.sleep(0.01)
                        continue
                    if code == sqlite3.SQLITE_ERROR and "no such table" in str(fault):
                        return default  # another process is just creating the database
                    self._fault(what, fault)
                    if moved_away or not self._is_damage(code) or not self._quarantine_database():
                        return default
                    moved_away = True

    def _is_damage(self, code: int | None) -> bool:
        if code == sqlite3.SQLITE_CANTOPEN:
            return not (self.directory / _DATABASE).is_file()
        return code not in TRANSIENT

    def _fault(self, what: str, error: BaseException) -> None:
        self._last_fault = f"cannot {what} it: {type(error).__name__}: {error}"
        self.warn(f"the kernel cache at {self.directory} is not used now: {self._last_fault}")

    def warn(self, message: str) -> None:
        """Issues `message` as the one `CacheWarning` of this store and process; logs it where one was
        issued.
        """
        if self._warned:
            log.debug("%s", message)
            return
        self._warned = True
        warn(
            f"{message}. Results stay right, but kernels may be compiled again. Set TILEOPS_CACHE_DIR to a "
            "directory that you own, with mode 0700 and free space; `tileops doctor` shows its state.",
            CacheWarning,
        )

    def _quarantine_database(self) -> bool:
        """Moves the whole directory away in one step, so that no journal of the old database meets the new
        one.
        """
        self._close()
        try:
            place = self._quarantine_place(f"{self.directory.name}-{time.time_ns()}")
            os.replace(self.directory, place)
        except FileNotFoundError:
            return True  # another process was faster
        except OSError as error:
            self._turn_off(f"{self.directory} is damaged and cannot be moved away ({error})")
            return False
        log.warning("moved the damaged kernel cache to %s", place)
        return True

    def _quarantine_entry(self, name: str, value: bytes) -> None:
        try:
            self._quarantine_place(f"{name}.entry").write_bytes(value)
        except OSError as error:
            log.debug("no copy of the damaged entry %s: %s", name, error)

    def _quarantine_place(self, name: str) -> Path:
        quarantine = self.root / "quarantine"
        quarantine.mkdir(mode=0o700, exist_ok=True)
        for files in (True, False):
            known = sorted(
                (item for item in quarantine.iterdir() if item.is_file() == files),
                key=lambda item: item.lstat().st_mtime_ns,
            )
            for item in known[: max(0, len(known) - _QUARANTINED + 1)]:
                if files:
                    item.unlink(missing_ok=True)
                else:
                    shutil.rmtree(item, ignore_errors=True)
        return quarantine / name

    def _after_fork(self) -> None:
        # The child must neither use nor close a connection of its parent, so they are kept until it ends.
        _inherited.extend((self._reader, self._writer))
        self._reader = self._writer = None
        self._used = {}
        self._mutex = threading.RLock()


_stores: weakref.WeakSet[ByteStore] = weakref.WeakSet()
_inherited: list[Any] = []


def _after_fork() -> None:
    for store in list(_stores):
        store._after_fork()


def _at_exit() -> None:
    for store in list(_stores):
        store.flush()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
