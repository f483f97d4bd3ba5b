"""Where compiled kernels live between processes.

`Store` puts artifacts into the cache directory and finds them there, and before that in read-only bundle
files. Its methods never raise for a fault of the store: damage, a full or read-only disk, a directory that
cannot be trusted and the like are a miss and one `CacheWarning` (see `disk.ByteStore`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from tileops import settings
from tileops.jit.artifact import Artifact, ArtifactError, ArtifactKey, differences, read_header
from tileops.jit.disk import ByteStore, log

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


@contextlib.contextmanager
def built_for(op: str) -> Iterator[None]:
    """Inside the block, stored kernels are labelled as compiled for the operator `op` (for listings only)."""
    token = _built_for.set(op)
    try:
        yield
    finally:
        _built_for.reset(token)


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

    def nearest(self, key: ArtifactKey) -> tuple[str, dict[str, tuple[Any, Any]]] | None:
        """The stored key most like `key`: its digest and ``{field: (wanted, stored)}``. None in an empty
        store.

        Kernels of the same factory come first, then those that differ in the fewest fields.
        """
        best: tuple[tuple[bool, int, str], dict[str, tuple[Any, Any]]] | None = None
        for digest, header, _, _ in self._headers():
            differing = differences(key.fields, header["key"])
            rank = ("factory" in differing, len(differing), digest)
            if best is None or rank < best[0]:
                best = rank, differing
        return None if best is None else (best[0][2], best[1])

    def entries(self) -> list[StoredEntry]:
        """Every intact entry of the cache directory, the most recently used first."""
        return [_summary(digest, header, size, used) for digest, header, size, used in self._headers(bundles=False)]

    def info(self) -> dict[str, Any]:
        """Directory, state, number of entries, bytes, limit and bundles, as plain values."""
        return {
            "directory": str(self.root),
            "state": self._disk.state(),
            "entries": self._disk.count(),
            "bytes": self._disk.size(),
            "size_limit": self._disk.size_limit,
            "bundles": [str(bundle) for bundle in self.bundles],
        }

    def encoded(self) -> dict[str, bytes]:
        """Every entry of the cache directory as stored, by digest."""
        return {row.name: row.value for row in self._disk.rows()}

    def clear(self) -> int:
        """Removes every compiled kernel of the cache directory; the number removed. Tuning records stay."""
        return self._disk.clear()

    def _headers(self, bundles: bool = True) -> Iterator[tuple[str, dict[str, Any], int, float]]:
        for row in self._disk.rows():
            try:
                yield row.name, read_header(row.value), len(row.value), row.used
            except ArtifactError as error:
                log.debug("skipped the damaged entry %s: %s", row.name, error)
        for bundle in self.bundles if bundles else ():
            for digest in bundle.digests():
                data = bundle.get(digest)
                if data is not None:
                    try:
                        yield digest, read_header(data), len(data), 0.0
                    except ArtifactError as error:
                        log.debug("skipped the damaged entry %s of %s: %s", digest, bundle, error)


def _summary(digest: str, header: Mapping[str, Any], size: int, used: float) -> StoredEntry:
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
