"""Bundles: read-only stores in one file."""

from __future__ import annotations

import hashlib
import json
import tarfile
import warnings
from pathlib import Path

import pytest

from tests.store.helpers import artifact, filled, key, run
from tileops import settings
from tileops.errors import CacheWarning
from tileops.jit import bundle as bundle_module
from tileops.jit.artifact import canonical_json
from tileops.jit.bundle import Bundle, BundleError, open_bundles, write_bundle
from tileops.jit.store import Store, default_store


@pytest.fixture
def bundle(tmp_path) -> Path:
    path = tmp_path / "kernels.tobundle"
    write_bundle(path, dict(filled(tmp_path / "source", 40).encoded()), {"r": b"a record"})
    return path


def test_a_bundle_serves_without_a_cache_directory(bundle, tmp_path):
    store = Store(tmp_path / "absent", bundles=[Bundle(bundle)])
    for n in range(40):
        assert store.get(key(n)) == artifact(n)
    assert store.get(key(99)) is None
    assert store.nearest(key(7, device="cuda"))[1] == {"device": ("cuda", "cpu")}
    assert store.info()["bundles"] == [str(bundle)]
    assert not (tmp_path / "absent").exists()
    assert Bundle(bundle).record("r") == b"a record"


def test_any_tar_tool_lists_it(bundle):
    with tarfile.open(bundle) as archive:
        names = archive.getnames()
        manifest = json.load(archive.extractfile("manifest.json"))
        assert names[0] == "manifest.json"
        assert set(names[1:]) == {f"kernels/{digest}" for digest in manifest["kernels"]} | {"records/r"}
        for digest, place in manifest["kernels"].items():
            assert archive.getmember(f"kernels/{digest}").offset_data == place["offset"]


def test_the_settings_name_files_and_directories(bundle, tmp_path):
    (tmp_path / "folder").mkdir()
    write_bundle(tmp_path / "folder" / "b.tobundle", {key(100).digest: artifact(100).encode(key(100))}, {})
    places = (str(bundle), str(tmp_path / "folder"))
    with settings.scope(cache_path=places, cache_dir=str(tmp_path / "mine")):
        assert default_store().get(key(3)) == artifact(3)
        assert default_store().get(key(100)) == artifact(100)


def test_bundles_are_read_without_diskcache_or_a_writable_directory(bundle):
    printed = run(
        "import sys; from tests.store.helpers import *\n"
        "from tileops.jit.store import default_store\n"
        "print(default_store().get(key(5)) == artifact(5), 'diskcache' in sys.modules)",
        env={"TILEOPS_CACHE_PATH": str(bundle), "TILEOPS_CACHE_DIR": "/proc/nowhere"},
    )
    assert printed.split() == ["True", "False"]


def test_flipped_bytes_are_misses_and_verify_names_them(bundle, tmp_path):
    place = Bundle(bundle).manifest["kernels"][key(5).digest]
    data = bytearray(bundle.read_bytes())
    data[place["offset"] + place["size"] // 2] ^= 1
    bundle.write_bytes(data)
    damaged = Bundle(bundle)
    assert damaged.verify() == [f"kernels/{key(5).digest}"]
    store = Store(tmp_path / "absent", bundles=[damaged])
    assert store.get(key(5)) is None
    assert store.get(key(6)) == artifact(6)


@pytest.mark.parametrize("position", [3, 200, 512, 700, 3000])
def test_a_damaged_manifest_is_refused(bundle, position):
    data = bytearray(bundle.read_bytes())
    data[position] ^= 1
    bundle.write_bytes(data)
    with pytest.raises(BundleError):
        Bundle(bundle)


@pytest.mark.parametrize(
    ("change", "served"),
    [
        ({"size": -1}, True),
        ({"size": 1 << 62}, True),
        ({"offset": -5}, True),
        ({"offset": "x"}, True),
        (None, True),
        ({"kernels": []}, False),
        ({"created": "x"}, False),
        ({"nested": "[" * 100_000}, False),
    ],
    ids=str,
)
def test_a_manifest_that_says_what_cannot_be_is_a_miss_or_refused(tmp_path, monkeypatch, change, served):
    """With a checksum of its own that fits, as somebody may write it."""
    made = bundle_module._manifest

    def changed(*arguments):
        content = json.loads(made(*arguments))
        del content["sha256"]
        if change is None or "size" in change or "offset" in change:
            place = content["kernels"][key(0).digest]
            content["kernels"][key(0).digest] = None if change is None else {**place, **change}
        else:
            content |= change
        if change is not None and "nested" in change:
            return change["nested"].encode()
        return canonical_json(
            {**content, "sha256": hashlib.sha256(canonical_json(content).encode()).hexdigest()}
        ).encode()

    monkeypatch.setattr(bundle_module, "_manifest", changed)
    path = tmp_path / "odd.tobundle"
    write_bundle(path, {key(0).digest: artifact(0).encode(key(0))}, {})
    if not served:
        with pytest.raises(BundleError, match="is not a bundle"):
            Bundle(path)
        return
    assert Bundle(path).get(key(0).digest) is None
    assert Bundle(path).verify() == [f"kernels/{key(0).digest}"]


@pytest.mark.parametrize("size", [0, 100, 600, 20_000])
def test_a_truncated_bundle_never_serves_a_wrong_kernel(bundle, size, tmp_path):
    bundle.write_bytes(bundle.read_bytes()[:size])
    try:
        store = Store(tmp_path / "absent", bundles=[Bundle(bundle)])
    except BundleError:
        return
    for n in range(40):
        assert store.get(key(n)) in (None, artifact(n))


@pytest.mark.parametrize("spoil", ["missing", "writable", "noise", "long name"])
def test_a_place_that_cannot_be_used_is_one_warning(bundle, spoil):
    open_bundles.cache_clear()
    if spoil == "missing":
        bundle.unlink()
    if spoil == "writable":
        bundle.chmod(0o666)
    if spoil == "noise":
        bundle.write_bytes(b"noise" * 1000)
    if spoil == "long name":
        bundle = bundle.with_name("n" * 300)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert open_bundles((str(bundle),)) == ()
        assert open_bundles((str(bundle),)) == ()
    assert [item.category for item in caught] == [CacheWarning]
    assert "TILEOPS_CACHE_PATH" in str(caught[0].message)
