"""Read-only files of compiled kernels and tuning records, to be baked into an image or copied to a machine.

A bundle is a tar archive whose first member, ``manifest.json``, says where in the file each entry lies. So
any tool can list and unpack it, and reading one entry takes one `pread`: no SQLite, no lock, nothing
written, nothing unpacked. Entries are encoded as in the cache directory and checked in the same way when
they are used.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import tempfile
import time
import warnings
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tileops import __version__
from tileops.errors import CacheWarning
from tileops.jit.artifact import canonical_json
from tileops.jit.disk import private_refusal

FORMAT = 1
SUFFIX = ".tobundle"
_BLOCK = 512
_MANIFEST = "manifest.json"
_MANIFEST_LIMIT = 64 << 20


class BundleError(ValueError):
    """A file is not a bundle of this format, or is damaged."""


class Bundle:
    """An open bundle. Safe for threads and across ``fork``.

    Args:
        path: the file.

    Raises:
        BundleError: it is no bundle, or its manifest is damaged.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # Kept open: a bundle whose file is replaced stays readable to the end.
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        self.manifest = self._read_manifest()
        self._kernels: Mapping[str, Any] = self.manifest["kernels"]
        self._records: Mapping[str, Any] = self.manifest["records"]

    def get(self, digest: str) -> bytes | None:
        """The encoded kernel of a key, or None."""
        return self._entry(self._kernels.get(digest))

    def record(self, digest: str) -> bytes | None:
        """The encoded tuning record of a key, or None."""
        return self._entry(self._records.get(digest))

    def digests(self) -> Sequence[str]:
        """The keys of its kernels."""
        return tuple(self._kernels)

    def verify(self) -> list[str]:
        """Names of the entries whose bytes do not match the manifest."""
        wrong = []
        for kind, entries in (("kernels", self._kernels), ("records", self._records)):
            for digest, place in entries.items():
                data = self._entry(place)
                if data is None or hashlib.sha256(data).hexdigest() != place["sha256"]:
                    wrong.append(f"{kind}/{digest}")
        return wrong

    def _entry(self, place: Any) -> bytes | None:
        if place is None:
            return None
        try:
            data = os.pread(self._file, place["size"], place["offset"])
        except OSError:
            return None  # a miss, as for any store
        return data if len(data) == place["size"] else None

    def _read_manifest(self) -> dict[str, Any]:
        try:
            head = os.pread(self._file, _BLOCK, 0)
            member = tarfile.TarInfo.frombuf(head, "utf-8", "strict")
            if member.name != _MANIFEST or member.size > _MANIFEST_LIMIT:
                raise BundleError(f"{self.path} is a tar archive, but not a bundle")
            text = os.pread(self._file, member.size, _BLOCK)
            manifest: dict[str, Any] = json.loads(text)
            checksum = manifest.pop("sha256")
            if manifest["format"] != FORMAT:
                raise BundleError(f"{self.path} has format {manifest['format']}; this version reads {FORMAT}")
            if hashlib.sha256(canonical_json(manifest).encode()).hexdigest() != checksum:
                raise BundleError(f"{self.path}: the manifest does not match its checksum")
        except BundleError:
            raise
        except (tarfile.TarError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BundleError(f"{self.path} is not a bundle: {error}") from error
        return manifest

    def __str__(self) -> str:
        return str(self.path)


def write_bundle(path: Path, kernels: Mapping[str, bytes], records: Mapping[str, bytes]) -> None:
    """Writes a bundle and puts it in place in one step.

    Args:
        path: the file, customarily ``*.tobundle``.
        kernels: encoded artifacts by digest of their key.
        records: encoded tuning records by digest.

    Raises:
        OSError: the file cannot be written.
    """
    entries = [(f"kernels/{digest}", data) for digest, data in sorted(kernels.items())]
    entries += [(f"records/{digest}", data) for digest, data in sorted(records.items())]
    now = int(time.time())
    text, start = b"", 0
    # Offsets depend on the length of the manifest, which holds them: a few rounds settle it.
    while True:
        settled = _manifest(entries, start, now)
        if len(settled) == len(text):
            break
        text, start = settled, 2 * _BLOCK + _padded(len(settled))
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
                for member, data in [(_MANIFEST, settled), *entries]:
                    facts = tarfile.TarInfo(member)
                    facts.size, facts.mtime, facts.mode = len(data), now, 0o644
                    archive.addfile(facts, io.BytesIO(data))
            os.fchmod(file.fileno(), 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _manifest(entries: Sequence[tuple[str, bytes]], start: int, now: int) -> bytes:
    content: dict[str, Any] = {
        "format": FORMAT,
        "tileops": __version__,
        "created": now,
        "kernels": {},
        "records": {},
    }
    offset = start
    for name, data in entries:
        kind, _, digest = name.partition("/")
        content[kind][digest] = {
            "offset": offset,
            "size": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        offset += _BLOCK + _padded(len(data))
    checksum = hashlib.sha256(canonical_json(content).encode()).hexdigest()
    return canonical_json({**content, "sha256": checksum}).encode()


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


@cache
def open_bundles(places: tuple[str, ...]) -> tuple[Bundle, ...]:
    """The bundles that ``TILEOPS_CACHE_PATH`` names: files, or every ``*.tobundle`` of a directory, sorted.

    A place that is missing, damaged, or could be altered by others is left out with a `CacheWarning`.
    Opened once per process.
    """
    found = []
    for place in places:
        path = Path(place).expanduser()
        for file in sorted(path.glob(f"*{SUFFIX}")) if os.path.isdir(path) else [path]:
            try:
                # Images are built by root and read by others.
                refusal = private_refusal(file, trust_group=True)
                if refusal is not None:
                    raise BundleError(f"{refusal}, so its contents cannot be trusted as code")
                found.append(Bundle(file))
            except (BundleError, OSError) as error:
                warnings.warn(
                    f"TILEOPS_CACHE_PATH: {file} is not used: {error}. Its kernels are looked for elsewhere.",
                    CacheWarning,
                    stacklevel=4,
                )
    return tuple(found)
