"""Tuning results that outlive a process.

A record holds the chosen parameters by name, every measured point and the environment. It is found by the
key of `problem.record_key`, and applied only where its parameters still form a valid point for the call at
hand.
"""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tileops import __version__, settings
from tileops.autotune.problem import Outcome, config_text
from tileops.autotune.space import Config
from tileops.jit.artifact import Artifact, ArtifactError, ArtifactKey, canonical_json, check_intact, read_header
from tileops.jit.bundle import Bundle, open_bundles
from tileops.jit.disk import FILES, ByteStore
from tileops.jit.keys import compiler_versions, source_fingerprint
from tileops.jit.store import Damage, default_root

log = logging.getLogger("tileops.autotune")

#: Subdirectory of tuning records; a new number where old records would be misread.
RECORDS = "records-1"


@dataclass(frozen=True)
class Point:
    """One measured config.

    Attributes:
        config: tile parameters by name.
        outcome: see `problem.Outcome`.
        seconds: of one launch; NaN where the outcome is not "ok".
        ratio: its time over the default config's in the same rounds; below 1 is faster.
        cause: why it failed.
    """

    config: Mapping[str, Any]
    outcome: Outcome
    seconds: float = math.nan
    ratio: float = math.nan
    cause: str = ""

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"

    @property
    def text(self) -> str:
        """The config as comparable text."""
        return config_text(self.config)


@dataclass(frozen=True)
class Record:
    """The result of tuning one problem.

    Attributes:
        config: the chosen parameters by name.
        default: the kernel's own choice at the time.
        points: everything measured, the default first.
        op: the operator for which it was tuned, or "".
        environment: versions, device and time of the measurement.
    """

    config: Mapping[str, Any]
    default: Mapping[str, Any]
    points: tuple[Point, ...]
    op: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def speedup(self) -> float:
        """Time of the default over time of the choice."""
        chosen = config_text(self.config)
        return next((1 / point.ratio for point in self.points if point.text == chosen and point.ok), 1.0)

    def encode(self, key: ArtifactKey) -> bytes:
        """The record as checksummed bytes under `key`."""
        return Artifact({"record": canonical_json(asdict(self)).encode()}, {"op": self.op}).encode(key)

    @classmethod
    def decode(cls, data: bytes, key: ArtifactKey) -> Record:
        """Raises:
        ArtifactError: `data` is damaged, of another version, or belongs to another key.
        """
        parts = Artifact.decode(data, key).parts
        try:
            content = json.loads(parts["record"], object_hook=_floats)
            content["points"] = tuple(Point(**point) for point in content["points"])
            return cls(**content)
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"not a tuning record of this version: {error}") from error


def _floats(mapping: dict[str, Any]) -> Any:
    return float(mapping["$float"]) if mapping.keys() == {"$float"} else mapping


def environment() -> dict[str, Any]:
    """What a measurement depended on, for a reader of the record."""
    import torch

    return {
        "tileops": __version__,
        "sources": source_fingerprint("tileops"),
        "torch": str(torch.__version__),
        **compiler_versions("cpu"),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "host": platform.node(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


class RecordStore:
    """Tuning records of one cache directory. They are never evicted; faults are misses, as in
    `disk.ByteStore`.
    """

    def __init__(self, root: Path, trust_group: bool = False, bundles: Sequence[Bundle] = ()) -> None:
        self.root = root
        self._records = str(root / RECORDS)
        self.bundles = tuple(bundles)
        self.disk = ByteStore(root, RECORDS, trust_group=trust_group)
        self._known: dict[str, Record | None] = {}
        self._kernels: set[str] = set()  # names of kernels with records
        self._seen: Any = None  # the state of the files that these were read from
        self._look_again = 0.0

    def get(self, key: ArtifactKey, fresh: bool = False) -> Record | None:
        """The record of `key`, remembered for the life of the process; `fresh` looks again."""
        if fresh or key.digest not in self._known:
            self._known[key.digest] = self._read(key)
        return self._known[key.digest]

    def may_hold(self, kernels: Iterable[str]) -> bool:
        """False where nothing was ever recorded for these kernels, so that a new call need not look. Asked at every new
        kind of call: the file system, which another process may write to, is asked once a second at most.

        Args:
            kernels: their names, see `problem.kernel_name`.
        """
        now = time.monotonic()
        if now >= self._look_again:
            self._look_again = now + 1.0
            self._look()
        return bool(self._kernels) and (_ANY in self._kernels or not self._kernels.isdisjoint(kernels))

    def _look(self) -> None:
        """Reads which kernels have records, unless the files are as they were when these were read."""
        state = [_state(os.path.join(self._records, name)) for name in FILES]
        if state == self._seen:
            return
        if any(state) or self.bundles:
            self._kernels |= {_kernel_of(data) for _, data in self.encoded()}
        # A file that is being written may change again without its time doing so.
        newest = max((facts[0] for facts in state if facts is not None), default=0)
        self._seen = state if newest < time.time_ns() - 2_000_000_000 else None

    def _read(self, key: ArtifactKey) -> Record | None:
        """What was measured here comes before what came with a bundle."""
        data = self.disk.get(key.digest)
        if data is not None:
            try:
                return Record.decode(data, key)
            except ArtifactError as error:
                self.disk.warn(f"ignored a damaged tuning record {key.digest}: {error}")
                self.disk.discard(key.digest, keep_copy=True)
        for bundle in self.bundles:
            data = bundle.record(key.digest)
            if data is not None:
                try:
                    return Record.decode(data, key)
                except ArtifactError as error:
                    log.warning("ignored a damaged tuning record %s of %s: %s", key.digest, bundle, error)
        return None

    def encoded(self) -> Iterator[tuple[str, bytes]]:
        """Every record as stored, with its key: those of the directory, then those of the bundles."""
        seen = set()
        for row in self.disk.rows():
            seen.add(row.name)
            yield row.name, row.value
        for bundle in self.bundles:
            for digest in bundle.manifest["records"]:
                data = bundle.record(digest)
                if data is not None and digest not in seen:
                    seen.add(digest)
                    yield digest, data

    def holds(self, digest: str) -> bool:
        """Whether the directory has a record of a key."""
        return self.disk.peek(digest) is not None

    def put_encoded(self, digest: str, data: bytes) -> bool:
        """Stores a record that `encoded` gave, here or elsewhere. False where that was not possible.

        Raises:
            ArtifactError: it is damaged, or belongs to another key.
        """
        check_intact(data, digest)
        self._known.pop(digest, None)
        self._kernels.add(_kernel_of(data))
        return self.disk.put(digest, data)

    def verify(self) -> tuple[int, list[Damage]]:
        """Checks every byte of every record of the directory: their number, and what would not be used.

        Raises:
            OSError: the database cannot be examined.
        """
        place = str(self.disk.directory)
        damage = [Damage(place, "database", reason) for reason in self.disk.damage()]
        rows = [] if damage else self.disk.rows()
        for row in rows:
            try:
                check_intact(row.value, row.name)
            except ArtifactError as error:
                damage.append(Damage(place, row.name, str(error)))
        return len(rows), damage

    def clear(self) -> int:
        """Removes every record of the directory; the number removed."""
        self._known.clear()
        return self.disk.clear()

    def put(self, key: ArtifactKey, record: Record) -> bool:
        """Stores `record`; False where that was not possible. This process uses it either way."""
        self._known[key.digest] = record
        self._kernels.add(key.fields["kernel"])
        return self.disk.put(key.digest, record.encode(key))


#: In place of the name of a kernel: a record that cannot be read may be of any.
_ANY = "any"


def _kernel_of(data: bytes) -> str:
    try:
        return str(read_header(data)["key"].get("kernel", _ANY))
    except ArtifactError:
        return _ANY


def _state(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


_stores: dict[tuple[Any, ...], RecordStore] = {}
_latest: tuple[Any, Any, RecordStore | None] = None, None, None  # settings, stores, and what they name
_stores_lock = threading.Lock()


def default_records() -> RecordStore:
    """The records of the cache directory that the settings in force name."""
    global _latest
    now = settings.current()
    known, stores, store = _latest
    if store is not None and known is now and stores is _stores:
        return store
    facts = (now.cache_dir, now.cache_trust, now.cache_path)
    with _stores_lock:
        if facts not in _stores:
            trust_group = now.cache_trust == "group" and now.cache_dir is not None
            _stores[facts] = RecordStore(default_root(), trust_group, open_bundles(now.cache_path))
        _latest = now, _stores, _stores[facts]
        return _stores[facts]


def applicable(kernel: type[Any], call: Any, record: Record | None) -> dict[str, Any] | None:
    """The config of `record` where it is a valid point for `call`, else None with one log line."""
    if record is None:
        return None
    config = {name: record.config[name] for name in sorted(record.config)}
    if _fits(kernel, call, config):
        return config
    text = f"{kernel.__qualname__}: {config_text(config)}"
    if text not in _ignored:
        _ignored.add(text)
        log.warning(
            "ignored the tuning record of %s: %s is no valid config for this call; the default runs",
            kernel.__qualname__,
            config,
        )
    return None


def _fits(kernel: type[Any], call: Any, config: Config) -> bool:
    return kernel.tile_space.is_valid(config, call)


_ignored: set[str] = set()
