"""Compiled kernels as bytes: keys that name them and the format that holds them.

An `ArtifactKey` is a mapping of plain values; its digest is the SHA-256 of the canonical JSON of that
mapping, so it is the same in every process, whatever the hash seed, the working directory or the order of
imports.

An `Artifact` is a few named blobs (object code, cubin) and the facts needed to load them. Encoded it reads

    magic (8 bytes) · header length (u32) · SHA-256 of the header · header (canonical JSON) · the blobs

and the header holds every field of the key by name, the names and sizes of the blobs and the SHA-256 of the
blobs, so that an entry explains itself and damage anywhere is found before anything is loaded. Nothing is
ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

MAGIC = b"TILEOPS\x01"
_PREAMBLE = struct.Struct("<8sI32s")
_HEADER_LIMIT = 1 << 20


class ArtifactError(ValueError):
    """Bytes are not an intact artifact of this format; the store treats them as a miss."""


def _plain(value: Any) -> Any:
    """`value` in types whose JSON text tells True, 1, 1.0 and "1" apart."""
    kind = type(value)
    if kind is str or kind is bool or kind is int or value is None:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind is tuple or kind is list:
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        for name in value:
            if type(name) is not str or name.startswith("$"):
                raise TypeError(f"a name in a key must be a string without a leading '$', not {name!r}")
        return {name: _plain(item) for name, item in value.items()}
    if hasattr(value, "dtype") and getattr(value, "ndim", None) == 0:
        return _plain(value.item())  # a NumPy scalar is its Python value
    raise TypeError(f"a key holds plain values only, not {kind.__module__}.{kind.__qualname__}: {value!r}")


def canonical_json(value: Any) -> str:
    """The one JSON text of `value`: names sorted, no spaces, floats exact.

    Raises:
        TypeError: `value` holds something else than None, bool, int, float, str, NumPy scalars, and tuples,
            lists and string-keyed mappings of these.
    """
    return _text(_plain(value))


def _text(plain: Any) -> str:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def flatten(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted names: ``{"a": {"b": 1}}`` becomes ``{"a.b": 1}``."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def differences(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The fields, by dotted name, in which a key and one read from a header differ: ``{field: (wanted, found)}``."""
    left, right = flatten(_plain(wanted)), flatten(found)  # `found` comes from a header, where all is plain
    return {
        name: (left.get(name), right.get(name))
        for name in sorted(left.keys() | right.keys())
        if name not in left or name not in right or _text(left[name]) != _text(right[name])
    }


@dataclass(frozen=True, eq=False)
class ArtifactKey:
    """Names a compiled kernel; equal keys have equal digests.

    Attributes:
        fields: every fact that the compiled bytes depend on, by name.
    """

    fields: Mapping[str, Any]

    @cached_property
    def text(self) -> str:
        """The canonical JSON of the fields."""
        return canonical_json(self.fields)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of `text`, 64 hexadecimal digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArtifactKey) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"ArtifactKey({self.digest[:12]}: {self.text})"


@dataclass(frozen=True)
class Artifact:
    """A compiled kernel, not yet loaded.

    Attributes:
        parts: the blobs by name, for example ``{"kernel": ..., "wrapper": ...}`` or ``{"cubin": ...}``.
        facts: plain values needed to load it or worth showing: entry names, registers, shared memory,
            compile seconds.
    """

    parts: Mapping[str, bytes]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def encode(self, key: ArtifactKey) -> bytes:
        """The bytes that a store keeps under `key`."""
        payload = b"".join(self.parts.values())
        header = canonical_json(
            {
                "key": key.fields,
                "facts": self.facts,
                "parts": [[name, len(blob)] for name, blob in self.parts.items()],
                "sha256": hashlib.sha256(payload).hexdigest(),
            }
        ).encode()
        return _PREAMBLE.pack(MAGIC, len(header), hashlib.sha256(header).digest()) + header + payload

    @classmethod
    def decode(cls, data: bytes, key: ArtifactKey | None = None) -> Artifact:
        """The artifact in `data`, checked to the last byte.

        Args:
            data: what `encode` made.
            key: the key that `data` was found under; None accepts any.

        Raises:
            ArtifactError: `data` is damaged, of another version, or belongs to another key.
        """
        header, start = _read_header(data)
        if key is not None and _text(header["key"]) != key.text:
            raise ArtifactError("the entry belongs to another key")
        payload = memoryview(data)[start:]
        if hashlib.sha256(payload).hexdigest() != header["sha256"]:
            raise ArtifactError("the payload does not match its checksum")
        parts, offset = {}, 0
        for name, size in header["parts"]:
            parts[name] = bytes(payload[offset : offset + size])
            offset += size
        if offset != len(payload):
            raise ArtifactError("the sizes of the parts do not add up to the payload")
        return cls(MappingProxyType(parts), MappingProxyType(header["facts"]))


def read_header(data: bytes) -> dict[str, Any]:
    """The header of an encoded artifact: ``key``, ``facts``, ``parts``, ``sha256``. The payload is not
    looked at.

    Raises:
        ArtifactError: the header is damaged or of another version.
    """
    return _read_header(data)[0]


def check_intact(data: bytes, digest: str) -> dict[str, Any]:
    """The header of `data`, after checking every byte of it and that it belongs under `digest`.

    Raises:
        ArtifactError: `data` is damaged, of another version, or belongs to another key.
    """
    Artifact.decode(data)
    header = read_header(data)
    if hashlib.sha256(_text(header["key"]).encode()).hexdigest() != digest:
        raise ArtifactError("the entry belongs to another key")
    return header


def _read_header(data: bytes) -> tuple[dict[str, Any], int]:
    if len(data) < _PREAMBLE.size:
        raise ArtifactError("too short for a header")
    magic, length, checksum = _PREAMBLE.unpack_from(data)
    if magic != MAGIC:
        raise ArtifactError("not an artifact of this version")
    start = _PREAMBLE.size + length
    if length > _HEADER_LIMIT or start > len(data):
        raise ArtifactError("the header is cut off")
    header = bytes(data[_PREAMBLE.size : start])
    if hashlib.sha256(header).digest() != checksum:
        raise ArtifactError("the header does not match its checksum")
    # The checksum has vouched for the header, so its structure is what `encode` wrote.
    return json.loads(header), start
