"""Read-only files of compiled kernels and tuning records, to be baked into an image or copied to a machine.

A bundle is a tar archive whose first member, ``manifest.json``, says where in the file each entry lies. So
any tool can list and unpack it, and reading one entry takes one `pread`: no SQLite, no lock, nothing
written, nothing unpacked. Entries are encoded as in the cache directory and checked in the same way when
they are used.

The manifest holds the SHA-256 of every entry, so a signature over the manifest (the second member,
``manifest.sig``: 64 raw bytes of Ed25519) covers the whole file.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import tarfile
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from tileops import __version__
from tileops.errors import CacheWarning, warn
from tileops.jit.artifact import canonical_json
from tileops.jit.disk import private_refusal
from tileops.jit.signing import SIGNATURE_BYTES

FORMAT = 1
SUFFIX = ".tobundle"
_BLOCK = 512
_MANIFEST = "manifest.json"
_SIGNATURE = "manifest.sig"
_MANIFEST_LIMIT = 64 << 20


class BundleError(ValueError):
    """A file is not a bundle of this format, or is damaged."""


class Bundle:
    """An open bundle. Safe for threads and across ``fork``.

    Args:
        path: the file.

    Attributes:
        manifest: its contents: format, version, creation facts, and place and checksum of every entry.
        manifest_text: the very bytes of the manifest, which a signature covers.
        signature: 64 bytes, or None for an unsigned bundle. Not checked here.

    Raises:
        BundleError: it is no bundle, or its manifest is damaged.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # Kept open: a bundle whose file is replaced stays readable to the end.
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        self.manifest_text, self.signature = self._read_head()
        self.manifest = self._parse_manifest()
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

    def entries(self) -> Iterator[tuple[str, str, bytes]]:
        """Every entry as (kind, key, bytes), kind being "kernels" or "records".

        Raises:
            BundleError: an entry does not match the manifest; the message names it.
        """
        for kind, places in (("kernels", self._kernels), ("records", self._records)):
            for digest, place in places.items():
                data = self._intact(place)
                if data is None:
                    raise BundleError(f"{self.path}: {kind}/{digest} does not match its checksum")
                yield kind, digest, data

    def verify(self) -> list[str]:
        """Names of the entries whose bytes do not match the manifest."""
        return [
            f"{kind}/{digest}"
            for kind, places in (("kernels", self._kernels), ("records", self._records))
            for digest, place in places.items()
            if self._intact(place) is None
        ]

    def _intact(self, place: Any) -> bytes | None:
        data = self._entry(place)
        return data if data is not None and hashlib.sha256(data).hexdigest() == place["sha256"] else None

    def _entry(self, place: Any) -> bytes | None:
        if place is None:
            return None
        try:
            data = os.pread(self._file, place["size"], place["offset"])
        except (OSError, ValueError, LookupError, TypeError, OverflowError, MemoryError):
            return None  # a miss, as for any store, also where the manifest says what cannot be
        return data if len(data) == place["size"] else None

    def _read_head(self) -> tuple[bytes, bytes | None]:
        try:
            size = self._member(0, _MANIFEST, _MANIFEST_LIMIT)
            if size is None:
                raise BundleError(f"{self.path} is a tar archive, but not a bundle")
            text = os.pread(self._file, size, _BLOCK)
            place = _BLOCK + _padded(size)
            signed = None
            with suppress(tarfile.HeaderError):  # nothing but a manifest
                signed = self._member(place, _SIGNATURE, SIGNATURE_BYTES)
        except tarfile.TarError as error:
            raise BundleError(f"{self.path} is not a bundle: {error}") from error
        return text, None if signed is None else os.pread(self._file, signed, place + _BLOCK)

    def _member(self, place: int, name: str, limit: int) -> int | None:
        """Size of the member whose header lies at `place`, or None if it is another one."""
        member = tarfile.TarInfo.frombuf(os.pread(self._file, _BLOCK, place), "utf-8", "strict")
        return member.size if member.name == name and member.size <= limit else None

    def _parse_manifest(self) -> dict[str, Any]:
        try:
            manifest: dict[str, Any] = json.loads(self.manifest_text)
            checksum = manifest.pop("sha256")
            if manifest["format"] != FORMAT:
                raise BundleError(f"{self.path} has format {manifest['format']}; this version reads {FORMAT}")
            if hashlib.sha256(canonical_json(manifest).encode()).hexdigest() != checksum:
                raise BundleError(f"{self.path}: the manifest does not match its checksum")
            for name, kind in (("created", int), ("tileops", str), ("kernels", dict), ("records", dict)):
                if type(manifest[name]) is not kind:
                    raise BundleError(f"{self.path} is not a bundle: {name!r} of its manifest is no {kind.__name__}")
        except BundleError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BundleError(f"{self.path} is not a bundle: {error}") from error
        return manifest

    def __str__(self) -> str:
        return str(self.path)


def write_bundle(
    path: Path,
    kernels: Mapping[str, bytes],
    records: Mapping[str, bytes],
    *,
    facts: Mapping[str, Any] | None = None,
    sign: Callable[[bytes], bytes] | None = None,
) -> None:
    """Writes a bundle and puts it in place in one step.

    Args:
        path: the file, customarily ``*.tobundle``.
        kernels: encoded artifacts by digest of their key.
        records: encoded tuning records by digest.
        facts: how it came about (plain values), for a reader of the manifest.
        sign: makes the signature of the manifest's bytes; None leaves the bundle unsigned.

    Raises:
        OSError: the file cannot be written.
    """
    if path.exists() and not path.is_file():  # a device or a pipe would be replaced by a file
        raise OSError(errno.EINVAL, "it is there and is no regular file", str(path))
    entries = [(f"kernels/{digest}", data) for digest, data in sorted(kernels.items())]
    entries += [(f"records/{digest}", data) for digest, data in sorted(records.items())]
    now = int(time.time())
    before_entries = _BLOCK if sign is None else 2 * _BLOCK + _padded(SIGNATURE_BYTES)
    text, start = b"", 0
    # Offsets depend on the length of the manifest, which holds them: a few rounds settle it.
    while True:
        settled = _manifest(entries, start, now, facts or {})
        if len(settled) == len(text):
            break
        text, start = settled, _BLOCK + _padded(len(settled)) + before_entries
    head = [(_MANIFEST, settled)] + ([] if sign is None else [(_SIGNATURE, sign(settled))])
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
                for member, data in [*head, *entries]:
                    info = tarfile.TarInfo(member)
                    info.size, info.mtime, info.mode = len(data), now, 0o644
                    archive.addfile(info, io.BytesIO(data))
            os.fchmod(file.fileno(), 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _manifest(entries: Sequence[tuple[str, bytes]], start: int, now: int, facts: Mapping[str, Any]) -> bytes:
    content: dict[str, Any] = {
        "format": FORMAT,
        "tileops": __version__,
        "created": now,
        "facts": dict(facts),
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
                warn(
                    f"TILEOPS_CACHE_PATH: {file} is not used: {error}. Its kernels are looked for elsewhere.",
                    CacheWarning,
                )
    return tuple(found)
