"""Where compiled kernels live between processes.

`Store` puts artifacts into the cache directory and finds them there, and before that in read-only bundle
files. Its methods never raise for a fault of the store: damage, a full or read-only disk, a directory that
cannot be trusted and the like are a miss and one `CacheWarning` (see `disk.ByteStore`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from tileops import settings
from tileops.jit.artifact import Artifact, ArtifactError, ArtifactKey, check_intact, differences, read_header
from tileops.jit.disk import ByteStore, log
from tileops.jit.keys import stale_reason

#: Subdirectory of compiled kernels; a new number where old entries would be misread.
KERNELS = "kernels-1"

_DTYPES = (
    "f64",
    "f32",
    "bf16",
    "f16",
    "f8e4m3",
    "f8e5m2",
    "i64",
    "i32",
    "i16",
    "i8",
    "u8",
    "b1",
    "c64",
    "c128",
)
#: Bytes of an entry that are read to learn what it is; a longer header is read with the whole entry.
_HEAD_BYTES = 64 << 10

_built_for: ContextVar[str | None] = ContextVar("tileops_built_for", default=None)


class ReadOnlyStore(Protocol):
    """A bundle of artifacts that is only read."""

    def get(self, digest: str) -> bytes | None:
        """The encoded artifact, or None."""
        ...

    def digests(self) -> Sequence[str]:
        """The keys that it holds."""
        ...


@dataclass(frozen=True)
class StoredEntry:
    """What is known of a stored kernel without loading it.

    Attributes:
        key: digest of its key.
        op: operator that it was compiled for, or the name of its kernel.
        device: "cpu" or "cuda".
        arch: CPU name or compute capability.
        dtype: dtypes that the kernel was compiled for, joined by commas.
        identity: the factory and what else is compiled in.
        size: bytes.
        last_used: time of the last load in a process, UTC.
        fields: the whole key.
        facts: what is recorded beside the key: the operator, entry names, compile seconds.
        place: the cache directory or the bundle that holds it.
    """

    key: str
    op: str
    device: str
    arch: str
    dtype: str
    identity: str
    size: int
    last_used: datetime
    fields: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without the fields of the key."""
        return {
            "key": self.key,
            "op": self.op,
            "device": self.device,
            "arch": self.arch,
            "dtype": self.dtype,
            "identity": self.identity,
            "size": self.size,
            "last_used": self.last_used.isoformat(timespec="seconds"),
        }


@dataclass(frozen=True)
class Damage:
    """An entry that would not be used.

    Attributes:
        place: the cache directory or the bundle that holds it.
        name: its key, or "database" for the whole file.
        reason: what is wrong.
    """

    place: str
    name: str
    reason: str


@contextlib.contextmanager
def built_for(op: str | None) -> Iterator[None]:
    """Inside the block, stored kernels are labelled as compiled for the operator `op`, and counted for it; for None,
    as compiled for no operator.
    """
    token = _built_for.set(op)
    try:
        yield
    finally:
        _built_for.reset(token)


def built_label() -> str | None:
    """The operator of the `built_for` block that surrounds the caller."""
    return _built_for.get()


class Store:
    """Artifacts by key: bundles first, then the cache directory. Safe for threads, processes and ``fork``.

    Args:
        root: cache directory.
        size_limit: bytes of compiled kernels beyond which those used longest ago are dropped.
        trust_group: accept a directory that root owns or one of our groups may write.
        bundles: read-only stores, searched first to last before the directory.
        chosen: somebody named `root` (see `disk.ByteStore`).
    """

    def __init__(
        self,
        root: Path,
        *,
        size_limit: int = 2 << 30,
        trust_group: bool = False,
        bundles: Sequence[ReadOnlyStore] = (),
        chosen: bool = True,
    ) -> None:
        self.root = root
        self.bundles = tuple(bundles)
        self._disk = ByteStore(root, KERNELS, size_limit=size_limit, trust_group=trust_group, chosen=chosen)

    def get(self, key: ArtifactKey) -> Artifact | None:
        """The intact artifact of `key`, or None. A damaged entry is moved to the quarantine and is a miss."""
        for bundle in self.bundles:
            data = bundle.get(key.digest)
            if data is not None:
                try:
                    return Artifact.decode(data, key)
                except ArtifactError as error:
                    log.warning("ignored a damaged entry %s of %s: %s", key.digest, bundle, error)
        data = self._disk.get(key.digest)
        if data is None:
            return None
        try:
            return Artifact.decode(data, key)
        except ArtifactError as error:
            self.reject(key, str(error))
            return None

    def put(self, key: ArtifactKey, artifact: Artifact) -> bool:
        """Publishes `artifact` under `key`. False where that was not possible; the kernel works all the
        same.
        """
        facts = dict(artifact.facts)
        op = _built_for.get()
        if op is not None:
            facts["op"] = op
        return self._disk.put(key.digest, Artifact(artifact.parts, facts).encode(key))

    def lock(self, key: ArtifactKey) -> AbstractContextManager[None]:
        """A lock under which to look again, compile and publish, so that one process compiles a kernel.

        Held at most once per thread. Where none can be had the block runs without it.
        """
        return self._disk.lock(key.digest)

    def device_lock(self, device: str) -> AbstractContextManager[None]:
        """A lock over a device such as "cpu-0", held by whoever measures on it."""
        return self._disk.lock_file(f"device-{device}.lock")

    def reject(self, key: ArtifactKey, reason: str) -> None:
        """Moves the entry of `key` to the quarantine: it is damaged, or the loader refused it."""
        self._disk.warn(f"the entry {key.digest} of the kernel cache at {self._disk.directory} is not used: {reason}")
        self._disk.discard(key.digest, keep_copy=True)

    def place_of(self, key: ArtifactKey) -> str | None:
        """The bundle or directory that would serve `key`, or None. Does not count as use."""
        for bundle in self.bundles:
            if bundle.get(key.digest) is not None:
                return str(bundle)
        return str(self._disk.directory) if self._disk.peek(key.digest) is not None else None

    def nearest(self, key: ArtifactKey) -> tuple[str, dict[str, tuple[Any, Any]]] | None:
        """The stored key most like `key`: its digest and ``{field: (wanted, stored)}``. None in an empty
        store.

        Kernels of the same factory come first, then those that differ in the fewest fields.
        """
        best: tuple[tuple[bool, int, str], dict[str, tuple[Any, Any]]] | None = None
        for entry in self.entries(bundles=True):
            differing = differences(key.fields, entry.fields)
            rank = ("factory" in differing, len(differing), entry.key)
            if best is None or rank < best[0]:
                best = rank, differing
        return None if best is None else (best[0][2], best[1])

    def entries(self, bundles: bool = False) -> list[StoredEntry]:
        """Every readable entry of the cache directory, the most recently used first; then those of the bundles."""
        found = []
        for row in self._disk.rows(head=_HEAD_BYTES):
            try:
                header = read_header(row.value)
            except ArtifactError:
                try:
                    header = read_header(self._disk.peek(row.name) or b"")
                except ArtifactError as error:
                    log.debug("skipped the damaged entry %s: %s", row.name, error)
                    continue
            found.append(_summary(row.name, header, row.size, row.used, str(self._disk.directory)))
        for bundle in self.bundles if bundles else ():
            for digest in bundle.digests():
                data = bundle.get(digest) or b""
                try:
                    found.append(_summary(digest, read_header(data), len(data), 0.0, str(bundle)))
                except ArtifactError as error:
                    log.debug("skipped the damaged entry %s of %s: %s", digest, bundle, error)
        return found

    def info(self) -> dict[str, Any]:
        """Directory, state, number of entries, bytes, limit, damaged files kept and bundles, as plain values."""
        return {
            "directory": str(self.root),
            "state": self.state(),
            "entries": self._disk.count(),
            "bytes": self._disk.size(),
            "size_limit": self._disk.size_limit,
            "quarantine": self._disk.kept_aside(),
            "bundles": [str(bundle) for bundle in self.bundles],
        }

    def verify(self) -> tuple[int, list[Damage]]:
        """Checks every byte of every entry, of the bundles too: entries looked at, and those that would not be used.

        Raises:
            OSError: the database cannot be examined.
        """
        places: list[tuple[str, list[str], Callable[[str], bytes | None]]] = []
        damage = [Damage(str(self._disk.directory), "database", reason) for reason in self._disk.damage()]
        if not damage:
            names = [row.name for row in self._disk.rows(head=0)]
            places.append((str(self._disk.directory), names, self._disk.peek))
        places += [(str(bundle), list(bundle.digests()), bundle.get) for bundle in self.bundles]
        checked = 0
        for place, names, read in places:
            for name in names:
                data = read(name)
                if data is None:
                    continue  # another process has just dropped it
                checked += 1
                try:
                    check_intact(data, name)
                except ArtifactError as error:
                    damage.append(Damage(place, name, str(error)))
        return checked, damage

    def encoded(self) -> Iterator[tuple[str, bytes]]:
        """Every entry of the cache directory as stored, with its key."""
        for row in self._disk.rows(head=0):
            data = self._disk.peek(row.name)
            if data is not None:
                yield row.name, data

    def encoded_one(self, digest: str) -> bytes | None:
        """The intact entry of a key as stored, from a bundle or the cache directory. Does not count as use."""
        for read in (*(bundle.get for bundle in self.bundles), self._disk.peek):
            data = read(digest)
            if data is not None:
                with contextlib.suppress(ArtifactError):
                    check_intact(data, digest)
                    return data
        return None

    def holds(self, digest: str) -> bool:
        """Whether the cache directory has an intact entry of a key. Does not count as use."""
        data = self._disk.peek(digest)
        if data is None:
            return False
        try:
            check_intact(data, digest)
        except ArtifactError:
            return False
        return True

    def state(self) -> str:
        """ "ok", "empty" (nothing stored yet), or why the cache directory is not used."""
        return self._disk.state()

    def fault(self) -> str:
        """Why what was published last could not be kept, or ""."""
        return self._disk.fault()

    def put_encoded(self, digest: str, data: bytes) -> bool:
        """Publishes an entry that `encoded` gave, here or elsewhere. False where that was not possible.

        Raises:
            ArtifactError: it is damaged, or belongs to another key.
        """
        check_intact(data, digest)
        return self._disk.put(digest, data)

    def prunable(
        self, *, size: int | None = None, unused_for: float | None = None, stale: bool = False
    ) -> list[StoredEntry]:
        """Entries of the cache directory that may go, those used longest ago first.

        Args:
            size: enough entries that the others take at most this many bytes.
            unused_for: entries that were not used for this many seconds.
            stale: entries that this installation will not ask for again (other sources or compilers).
        """
        now = time.time()
        found, chosen = self.entries(), []
        kept = sum(entry.size for entry in found)
        for entry in reversed(found):
            unused = unused_for is not None and now - entry.last_used.timestamp() > unused_for
            if unused or (size is not None and kept > size) or (stale and stale_reason(entry.fields) is not None):
                chosen.append(entry)
                kept -= entry.size
        return chosen

    def remove(self, digests: Sequence[str]) -> int:
        """Removes entries of the cache directory; the number removed."""
        return self._disk.drop(digests)

    def clear(self) -> int:
        """Removes every compiled kernel of the cache directory; the number removed. Tuning records stay."""
        return self._disk.clear()


def _summary(digest: str, header: Mapping[str, Any], size: int, used: float, place: str) -> StoredEntry:
    fields = header["key"]
    config = fields.get("config", {})
    factory = fields.get("factory", "?")
    target = fields.get("target", {})
    dtypes = [value for value in config.values() if value in _DTYPES]
    return StoredEntry(
        key=digest,
        op=header["facts"].get("op") or factory.rpartition(".")[2],
        device=fields.get("device", "?"),
        arch=str(target.get("cpu") or target.get("arch") or "?"),
        dtype=",".join(dict.fromkeys(dtypes)),
        identity=f"{factory}({', '.join(f'{name}={value}' for name, value in config.items())})",
        size=size,
        last_used=datetime.fromtimestamp(used, UTC),
        fields=fields,
        facts=header["facts"],
        place=place,
    )


def default_root() -> Path:
    """The cache directory in force: ``TILEOPS_CACHE_DIR``, or the user's cache directory for tileops."""
    named = settings.current().cache_dir
    if named is not None:
        return Path(named).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("tileops", appauthor=False))


def _bundles(places: tuple[str, ...]) -> Sequence[ReadOnlyStore]:
    if not places:
        return ()
    from tileops.jit.bundle import open_bundles

    return open_bundles(places)


_default: dict[tuple[Any, ...], Store] = {}
_default_lock = threading.Lock()


def default_store() -> Store:
    """The store that the settings in force describe. Touches no file until it is asked for something."""
    now = settings.current()
    facts = (now.cache_dir, now.cache_path, now.cache_size, now.cache_trust)
    found = _default.get(facts)
    if found is None:
        with _default_lock:
            found = _default.get(facts)
            if found is None:
                found = _default[facts] = Store(
                    default_root(),
                    bundles=_bundles(now.cache_path),
                    chosen=now.cache_dir is not None,
                    size_limit=now.cache_size,
                    trust_group=now.cache_trust == "group" and now.cache_dir is not None,
                )
    return found
