"""The SQLite side of the store: opening a database through diskcache, result codes, and checking one for damage."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import diskcache

BUSY_SECONDS = 10.0
"""How long a transaction waits for another process's."""

BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
# Outcomes of SQLite that say nothing about the contents: someone else writes, the disk is full or
# read-only, ...
TRANSIENT = {
    *BUSY,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_NOLFS,
    sqlite3.SQLITE_INTERRUPT,
}


def open_cache(path: str, *, durable: bool) -> diskcache.Cache:
    """A `diskcache.Cache` whose values are bytes inside the database.

    Args:
        path: absolute path of its directory.
        durable: survive a power cut. Kernels need not: what a cut damages is noticed and compiled again.
    """
    import diskcache
    from diskcache.core import MODE_RAW

    class BytesDisk(diskcache.Disk):
        """Stores and reads bytes only: a row that asks for unpickling, or for a file, is damage
        (CVE-2025-69872).
        """

        def put(self, key: Any) -> tuple[Any, bool]:
            if type(key) is not str:
                raise TypeError(f"a name in this store is a string, not {type(key).__name__}")
            return key, True

        def get(self, key: Any, raw: Any) -> Any:
            if not raw:
                raise sqlite3.DatabaseError("a name in this store is pickled")
            return key

        def store(self, value: Any, read: bool, key: Any = None) -> tuple[int, int, None, Any]:
            if type(value) is not bytes or read:
                raise TypeError(f"a value of this store is bytes, not {type(value).__name__}")
            return 0, MODE_RAW, None, sqlite3.Binary(value)

        def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> bytes:
            if mode != MODE_RAW or type(value) is not bytes or read:
                raise sqlite3.DatabaseError("a value of this store is not plain bytes")
            return value

        def remove(self, file_path: str) -> None:
            raise sqlite3.DatabaseError("a value of this store names a file")

    return diskcache.Cache(
        path,
        timeout=BUSY_SECONDS,
        disk=BytesDisk,
        eviction_policy="none",  # `ByteStore._evict` does it: diskcache drops ten rows at a time
        cull_limit=0,
        size_limit=sys.maxsize,
        disk_min_file_size=sys.maxsize,
        # A write-ahead log needs shared memory, which network file systems lack, and its size is not
        # bounded by ours.
        sqlite_journal_mode="delete",
        sqlite_synchronous=1 if durable else 0,
        sqlite_mmap_size=0,
    )


def behind(error: Exception) -> BaseException:
    """What SQLite said, where diskcache reports it as its own ``Timeout`` whatever it was."""
    return error.__context__ if type(error).__name__ == "Timeout" and error.__context__ else error


def primary_code(fault: BaseException) -> int | None:
    """SQLite's result code without its extension; None for other errors."""
    code = getattr(fault, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def damage_of(path: Path) -> list[str]:
    """What is wrong with the database at `path`; empty for a sound one. Changes nothing.

    Raises:
        OSError: it cannot be examined: no permission, or another process keeps writing.
    """
    with open(path, "rb"):
        pass
    try:
        # Writable, so that the journal of a killed writer is rolled back as any other reader would do.
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=BUSY_SECONDS)
        ) as database:
            found = [str(line) for (line,) in database.execute("PRAGMA integrity_check")]
            odd = "SELECT count(*) FROM Cache WHERE raw != 1 OR mode != 1 OR typeof(value) != 'blob'"
            (count,) = database.execute(odd).fetchone()
    except sqlite3.Error as error:
        if primary_code(error) in TRANSIENT:
            raise OSError(f"{path}: {error}") from error
        return [str(error)]
    problems = [] if found == ["ok"] else found
    return [*problems, f"{count} rows hold something else than bytes"] if count else problems
