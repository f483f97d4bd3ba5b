"""Moving compiled kernels and tuning records between machines, as bundle files.

A kernel cache is executable code. So what is imported must be signed with a key that the importer names, or be trusted
by word; and nothing is imported from a file of which one byte is not as it was written.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tileops.autotune.record import RecordStore, default_records
from tileops.errors import TileOpsError
from tileops.jit.artifact import ArtifactError, check_intact, read_header
from tileops.jit.bundle import Bundle, BundleError, write_bundle
from tileops.jit.keys import compiler_versions
from tileops.jit.signing import SignatureError, check_signature, sign
from tileops.jit.store import Store, StoredEntry, default_store


@dataclass(frozen=True)
class Selection:
    """What to export; an entry must satisfy every criterion that is given.

    Attributes:
        ops: operators, by the name that `tileops cache ls` shows.
        arches: compute capabilities ("sm_90"), CPU names as LLVM gives them, or "cpu" for all of these.
        kernels: keys of kernels.
        records: keys of tuning records.
    """

    ops: Collection[str] | None = None
    arches: Collection[str] | None = None
    kernels: Collection[str] | None = None
    records: Collection[str] | None = None

    def takes(self, entry: StoredEntry) -> bool:
        """Whether a kernel is wanted."""
        return (
            (self.ops is None or entry.op in self.ops)
            and (self.arches is None or entry.arch in self.arches or entry.device in self.arches)
            and (self.kernels is None or entry.key in self.kernels)
        )

    def takes_record(self, digest: str, header: dict[str, Any]) -> bool:
        """Whether a tuning record is wanted. Records know the device, not its architecture: CPU or GPU is told."""
        for_cpu = not str(header["key"].get("device", "")).endswith(" SMs")  # see `problem.device_name`
        gpus = {arch for arch in self.arches or () if arch.startswith("sm_")}
        return (
            (self.ops is None or header["facts"].get("op") in self.ops)
            and (self.arches is None or bool(set(self.arches) - gpus if for_cpu else gpus))
            and (self.records is None or digest in self.records)
        )


EVERYTHING = Selection()


def export_cache(
    path: str | os.PathLike[str],
    selection: Selection = EVERYTHING,
    *,
    sign_key: str | os.PathLike[str] | None = None,
    store: Store | None = None,
    records: RecordStore | None = None,
) -> dict[str, Any]:
    """Writes kernels and tuning records to one file.

    Kernels of the bundles in ``TILEOPS_CACHE_PATH`` count as well, so that the file serves what this process is
    served.

    Args:
        path: the file, customarily ``*.tobundle``.
        selection: what to write.
        sign_key: PEM file of the Ed25519 private key to sign with.
        store: by default the kernel cache in force.
        records: by default the records in force.

    Returns:
        ``{"file", "kernels", "records", "bytes", "signed"}``.

    Raises:
        TileOpsError: nothing is selected, the file cannot be written, or the key cannot be used.
    """
    store, records = store or default_store(), records or default_records()
    kernels: dict[str, bytes] = {}
    for entry in store.entries(bundles=True):
        if entry.key not in kernels and selection.takes(entry):
            data = store.encoded_one(entry.key)
            if data is not None:
                kernels[entry.key] = data
    kept = {}
    for digest, data in records.encoded():
        try:
            if selection.takes_record(digest, read_header(data)):
                kept[digest] = data
        except ArtifactError:
            continue  # damaged: `tileops cache verify` tells
    if not kernels and not kept and selection != EVERYTHING:
        raise TileOpsError(
            f"nothing to export: the cache at {store.root} has no such kernel or tuning record; `tileops cache ls` "
            "lists what it has, `tileops warm` fills it"
        )
    facts = {
        "host": platform.node(),
        "python": platform.python_version(),
        "versions": {device: dict(compiler_versions(device)) for device in ("cpu", "cuda")},
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    place = Path(path)
    try:
        write_bundle(
            place, kernels, kept, facts=facts, sign=None if sign_key is None else lambda text: sign(text, sign_key)
        )
        size = place.stat().st_size
    except OSError as error:
        raise TileOpsError(f"cannot write {place}: {error.strerror or error}") from error
    return {
        "file": str(place),
        "kernels": len(kernels),
        "records": len(kept),
        "bytes": size,
        "signed": sign_key is not None,
    }


def import_cache(
    path: str | os.PathLike[str],
    *,
    key: str | os.PathLike[str] | None = None,
    trust: bool = False,
    store: Store | None = None,
    records: RecordStore | None = None,
) -> dict[str, Any]:
    """Puts the contents of a bundle into the kernel cache, after checking all of it.

    Tuning records that the cache has already stay as they are: what was measured here comes first.

    Args:
        path: the bundle.
        key: PEM file of the Ed25519 public key that it must be signed with.
        trust: take it unsigned. Checksums are checked all the same.
        store: by default the kernel cache in force.
        records: by default the records in force.

    Returns:
        ``{"file", "kernels", "records", "present", "created", "tileops"}``: numbers of what was new, and of entries
        that were there already.

    Raises:
        TileOpsError: no bundle, damaged (the message names the entry), not signed as demanded, or the cache cannot be
            written.
    """
    store, records = store or default_store(), records or default_records()
    if (key is not None) == trust:
        raise TileOpsError(
            f"{path}: a bundle is executable code: give the key that it must be signed with (--key), or vouch for it "
            "(--trust)"
        )
    try:
        bundle = Bundle(Path(path))
        if key is not None:
            _check_signed(bundle, key)
        for kind, digest, data in bundle.entries():
            try:
                check_intact(data, digest)
            except ArtifactError as error:
                raise BundleError(f"{path}: {kind}/{digest}: {error}") from error
        counts = {"kernels": 0, "records": 0, "present": 0}
        for kind, digest, data in bundle.entries():
            mine = store.holds(digest) if kind == "kernels" else records.holds(digest)
            if mine:
                counts["present"] += 1
                continue
            if not (store if kind == "kernels" else records).put_encoded(digest, data):
                reason = store.fault() if kind == "kernels" else records.disk.fault()
                raise TileOpsError(f"{path}: {kind}/{digest} cannot be written to {store.root}: {reason}")
            counts[kind] += 1
    except BundleError as error:
        raise TileOpsError(f"nothing was imported: {error}") from error
    except OSError as error:
        raise TileOpsError(f"nothing was imported: {path}: {error.strerror or error}") from error
    return {
        "file": str(path),
        **counts,
        "created": bundle.manifest["created"],
        "tileops": bundle.manifest["tileops"],
    }


def _check_signed(bundle: Bundle, key: str | os.PathLike[str]) -> None:
    if bundle.signature is None:
        raise SignatureError(
            f"nothing was imported: {bundle} is not signed; sign it when exporting (--sign), or --trust it"
        )
    try:
        check_signature(bundle.manifest_text, bundle.signature, key)
    except SignatureError as error:
        raise SignatureError(f"nothing was imported: {bundle}: {error}") from error
