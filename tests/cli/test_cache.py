"""`tileops cache`: listing, explaining, checking, pruning and shipping what is stored."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tests.store.helpers import OTHER_CPU, artifact, filled, key
from tileops import jit, settings
from tileops.autotune.record import Point, Record, default_records
from tileops.cli.cache import app
from tileops.errors import CacheWarning, TileOpsError
from tileops.jit.artifact import ArtifactKey
from tileops.jit.bundle import Bundle
from tileops.jit.store import KERNELS, Store, built_for, default_store
from tileops.norm import RMSNormFwdOp

RECORD = ArtifactKey({"kernel": "toy.rows_cpu:Rows", "device": "Toy CPU, native"})


@pytest.fixture(autouse=True)
def cache(tmp_path) -> Iterator[Path]:
    with settings.scope(cache_dir=str(tmp_path / "cache"), cache_path=()):
        yield tmp_path / "cache"


@pytest.fixture
def stored(cache) -> Store:
    """Five kernels of two operators, and a tuning record."""
    for n in range(5):
        with built_for("RMSNormFwdOp" if n < 3 else "GemmFwdOp"):
            target = {"target": {"arch": "sm_90a"}, "device": "cuda"} if n == 4 else {}
            default_store().put(key(n, **target), artifact(n))
    record = Record({"unroll": 4}, {"unroll": 1}, (Point({"unroll": 1}, "ok", 1e-5, 1.0),), op="RMSNormFwdOp")
    default_records().put(RECORD, record)
    return default_store()


def run(*arguments: object, code: int = 0, answer: str | None = None) -> str:
    """What ``tileops cache <arguments>`` prints."""
    done = CliRunner().invoke(app, [str(item) for item in arguments], input=answer)
    if isinstance(done.exception, TileOpsError):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.output


def run_json(*arguments: object, code: int = 0):
    return json.loads(run(*arguments, "--json", code=code))


def digests(store: Store) -> set[str]:
    return {entry.key for entry in store.entries()}


def test_info_counts_kernels_and_records(stored, cache):
    facts = run_json("info")
    assert (facts["entries"], facts["records"], facts["quarantine"], facts["state"]) == (5, 1, 0, "ok")
    assert facts["directory"] == str(cache)
    assert "tuning records" in run("info")


def test_ls_filters_by_operator(stored):
    assert [entry["op"] for entry in run_json("ls", "--op", "gemm")] == ["GemmFwdOp"] * 2
    assert len(run_json("ls")) == 5
    assert key(0).digest[:12] in run("ls")


def test_show_tells_everything_of_a_key_by_its_first_digits(stored):
    facts = run_json("show", key(3).digest[:10])
    assert facts["key"] == key(3).digest
    assert facts["fields"]["config"] == {"dtype": "bf16", "n": 3}
    assert facts["facts"] == {"entry": "rows_3", "op": "GemmFwdOp"}
    assert facts["place"].endswith(KERNELS)
    with pytest.raises(AssertionError, match="5 kernels have such a key"):
        run("show", "")
    with pytest.raises(AssertionError, match="no kernel"):
        run("show", "xyz")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Path:
    """A cache directory with the kernels of one case of RMSNorm."""
    place = tmp_path_factory.mktemp("compiled")
    with settings.scope(cache_dir=str(place), cache_path=()):
        jit.reset()
        RMSNormFwdOp(normalized_shape=(64,))(torch.ones(2, 64))
    return place


@pytest.mark.in_tree_kernels
def test_why_says_present_or_names_the_fields_that_differ(compiled, monkeypatch):
    case = ("RMSNormFwdOp", "--case", "smollm2-prefill-float32")
    with settings.scope(cache_dir=str(compiled)):
        (found,) = run_json("why", *case)
        assert found["state"] == "present"
        assert "present in" in run("why", *case)
        (found,) = run_json("why", *case, "--cpu", OTHER_CPU)
        assert found["state"] == "missing"
        assert {name.partition(".")[0] for name in found["differs"]} == {"target"}
        assert found["differs"]["target.lanes"]["wanted"] == jit.cpu_target(OTHER_CPU).lanes
        monkeypatch.setattr("tileops.jit.keys.source_fingerprint", lambda package: "edited")
        (found,) = run_json("why", *case)
        assert list(found["differs"]) == ["sources"]
        assert found["differs"]["sources"]["wanted"] == "edited"
        assert "missing; the nearest key is" in run("why", *case)
    (found,) = run_json("why", *case)
    assert (found["state"], found["nearest"]) == ("missing", None)
    assert "the cache is empty" in run("why", *case)
    with pytest.raises(AssertionError, match="no case"):
        run("why", "RMSNormFwdOp", "--case", "no-such-case")


def test_verify_names_what_is_damaged(stored, cache, monkeypatch):
    assert run_json("verify") == {"kernels": 5, "records": 1, "bundles": 0, "damaged": []}
    database = cache / KERNELS / "cache.db"
    data = database.read_bytes()
    where = data.index(artifact(2).parts["kernel"][:64])
    database.write_bytes(data[: where + 30] + b"\x77" + data[where + 31 :])
    monkeypatch.setattr("tileops.jit.store._default", {})  # another process, which has nothing of it in memory
    found = run_json("verify", code=1)
    assert [item["name"] for item in found["damaged"]] == [key(2).digest]
    assert "checksum" in run("verify", code=1)
    database.write_bytes(b"noise" * 1000)
    assert [item["name"] for item in run_json("verify", code=1)["damaged"]] == ["database"]
    assert not (cache / "quarantine").exists(), "looking changes nothing"


def test_verify_looks_into_bundles(stored, tmp_path):
    run("export", tmp_path / "a.tobundle")
    with settings.scope(cache_path=(str(tmp_path / "a.tobundle"),), cache_dir=str(tmp_path / "empty")):
        assert run_json("verify") == {"kernels": 5, "records": 1, "bundles": 1, "damaged": []}
    place = Bundle(tmp_path / "a.tobundle").manifest["kernels"][key(1).digest]
    data = bytearray((tmp_path / "a.tobundle").read_bytes())
    data[place["offset"] + place["size"] - 3] ^= 1
    (tmp_path / "b.tobundle").write_bytes(data)
    with settings.scope(cache_path=(str(tmp_path / "b.tobundle"),), cache_dir=str(tmp_path / "empty")):
        assert [item["name"] for item in run_json("verify", code=1)["damaged"]] == [key(1).digest]


def test_clear_asks_and_can_take_records(stored):
    assert "Aborted" in run("clear", code=1, answer="n\n")
    assert len(digests(stored)) == 5
    assert run_json("clear", "--yes")["kernels"] == 5
    assert default_records().get(RECORD, fresh=True) is not None
    assert "1 tuning records" in run("clear", "--records", answer="y\n")
    assert default_records().get(RECORD, fresh=True) is None


def test_prune_by_size_age_and_staleness(stored, monkeypatch):
    assert "say what" in run("prune", code=2)
    assert len(run_json("prune", "--max-size", "10KiB", "--dry-run")["chosen"]) == 3
    assert len(digests(stored)) == 5
    for n in (1, 0):
        stored.get(key(n))
    stored._disk._used.update({key(n).digest: 2e9 + n for n in (0, 1)})
    run("prune", "--max-size", "10KiB", answer="y\n")
    assert digests(stored) == {key(0).digest, key(1).digest}, "those used last stay"
    assert run_json("prune", "--unused", "1", "--yes")["removed"] == 0
    monkeypatch.setattr("tileops.jit.store.stale_reason", lambda fields: "old" if fields["config"]["n"] else None)
    assert run_json("prune", "--stale", "--yes")["removed"] == 1
    assert digests(stored) == {key(0).digest}


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> dict[str, Path]:
    """Two pairs of signing keys, made as the documentation says."""
    place = tmp_path_factory.mktemp("keys")
    for name in ("ours", "theirs"):
        private, public = place / f"{name}.pem", place / f"{name}.pub"
        subprocess.run(
            ["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True, capture_output=True
        )
        subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True, capture_output=True)
    return {path.name: path for path in place.iterdir()}


def test_a_signed_bundle_is_imported_with_its_key_only(stored, keys, tmp_path):
    bundle = tmp_path / "all.tobundle"
    facts = run_json("export", bundle, "--sign", keys["ours.pem"])
    assert (facts["kernels"], facts["records"], facts["signed"]) == (5, 1, True)
    with settings.scope(cache_dir=str(tmp_path / "fresh")):
        with pytest.raises(TileOpsError, match=r"theirs\.pub"):
            run("import", bundle, "--key", keys["theirs.pub"])
        with pytest.raises(TileOpsError, match="executable code"):
            run("import", bundle)
        assert default_store().entries() == []
        done = run_json("import", bundle, "--key", keys["ours.pub"])
        assert (done["kernels"], done["records"], done["present"]) == (5, 1, 0)
        assert default_store().get(key(3)).parts == artifact(3).parts
        assert default_records().get(RECORD).config == {"unroll": 4}
        assert {entry.op for entry in default_store().entries()} == {"RMSNormFwdOp", "GemmFwdOp"}
        assert run_json("import", bundle, "--trust")["present"] == 6


def test_an_unsigned_bundle_needs_trust(stored, keys, tmp_path):
    run("export", tmp_path / "plain.tobundle")
    with settings.scope(cache_dir=str(tmp_path / "fresh")):
        with pytest.raises(TileOpsError, match="not signed"):
            run("import", tmp_path / "plain.tobundle", "--key", keys["ours.pub"])
        assert run_json("import", tmp_path / "plain.tobundle", "--trust")["kernels"] == 5


def test_one_flipped_byte_anywhere_is_refused(stored, keys, tmp_path):
    bundle = tmp_path / "all.tobundle"
    run("export", bundle, "--sign", keys["ours.pem"])
    intact = bundle.read_bytes()
    made = Bundle(bundle).manifest
    places = {digest: place for kind in ("kernels", "records") for digest, place in made[kind].items()}
    with settings.scope(cache_dir=str(tmp_path / "fresh")):
        for digest, place in places.items():
            for offset in (0, place["size"] // 2, place["size"] - 1):
                _flip(bundle, intact, place["offset"] + offset)
                for accept in (("--key", keys["ours.pub"]), ("--trust",)):
                    with pytest.raises(TileOpsError, match=digest):
                        run("import", bundle, *accept)
        for position in (0, 600, 512 + len(Bundle(tmp_path / "all.tobundle").manifest_text) // 2):
            _flip(bundle, intact, position)
            with pytest.raises(TileOpsError):
                run("import", bundle, "--key", keys["ours.pub"])
        signature = intact.index(b"manifest.sig") + 512
        for position in (signature, signature + 63):
            _flip(bundle, intact, position)
            with pytest.raises(TileOpsError, match="signature"):
                run("import", bundle, "--key", keys["ours.pub"])
        assert default_store().entries() == []


def _flip(path: Path, data: bytes, position: int) -> None:
    path.write_bytes(data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :])


def test_openssl_verifies_what_we_sign(stored, keys, tmp_path):
    bundle = tmp_path / "all.tobundle"
    run("export", bundle, "--sign", keys["ours.pem"])
    subprocess.run(["tar", "-xf", bundle, "-C", tmp_path], check=True)
    check = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", keys["ours.pub"], "-rawin"]
    files = ["-in", tmp_path / "manifest.json", "-sigfile", tmp_path / "manifest.sig"]
    assert b"Success" in subprocess.run([*check, *files], check=True, capture_output=True).stdout


@pytest.mark.parametrize("command", [("clear",), ("prune", "--max-size", "1KB")], ids=lambda words: words[0])
def test_what_cannot_be_removed_is_an_error(stored, monkeypatch, command):
    def refuse(*arguments):
        raise OSError("a read-only disk")

    monkeypatch.setattr(stored._disk, "_open_writer", refuse)
    monkeypatch.setattr("tileops.jit.disk.transaction", refuse)
    with pytest.warns(CacheWarning), pytest.raises(TileOpsError, match=r"5 of 5 entries .* a read-only disk"):
        run(*command, "--yes")


def test_a_selection_of_nothing_makes_no_bundle(stored, tmp_path):
    path = tmp_path / "none.tobundle"
    with pytest.raises(TileOpsError, match=r"nothing to export.* has no such kernel"):
        run("export", path, "--arch", "sm_80")
    assert not path.exists()


def test_a_bundle_replaces_files_only(stored, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for place, words in ((tmp_path / "pipe", "no regular file"), (tmp_path, "no regular file")):
        with pytest.raises(TileOpsError, match=f"cannot write .*{words}"):
            run("export", place)
    assert (tmp_path / "pipe").is_fifo()


def test_an_empty_cache_makes_an_empty_bundle(tmp_path, keys):
    for sign in ((), ("--sign", keys["ours.pem"])):
        run("export", tmp_path / "none.tobundle", *sign)
        assert run_json("import", tmp_path / "none.tobundle", "--trust")["kernels"] == 0


@pytest.mark.parametrize(
    ("options", "expected", "records"),
    [
        (("--op", "gemm"), {3, 4}, 0),
        (("--op", "rmsnorm"), {0, 1, 2}, 1),
        (("--arch", "sm_90a"), {4}, 0),
        (("--arch", "sm_90"), {4}, 0),
        (("--arch", "toy"), {0, 1, 2, 3}, 1),
        (("--arch", "cpu"), {0, 1, 2, 3}, 1),
    ],
)
def test_export_filters(stored, tmp_path, options, expected, records):
    run("export", tmp_path / "some.tobundle", *options)
    target = {"target": {"arch": "sm_90a"}, "device": "cuda"}
    names = {key(n, **(target if n == 4 else {})).digest: n for n in range(5)}
    found = Bundle(tmp_path / "some.tobundle")
    assert {names[digest] for digest in found.digests()} == expected
    assert len(found.manifest["records"]) == records


@pytest.mark.in_tree_kernels
def test_export_takes_exactly_the_kernels_of_recorded_calls(compiled, tmp_path):
    import tileops

    calls = tmp_path / "calls.jsonl"
    with settings.scope(cache_dir=str(compiled)):
        with tileops.record(calls):
            RMSNormFwdOp(normalized_shape=(64,))(torch.ones(7, 64))
        filled(compiled, 3)
        facts = run_json("export", tmp_path / "app.tobundle", "--calls", calls)
        assert facts["kernels"] == 1
        default_store().remove([key(n).digest for n in range(3)])
    bundle = Bundle(tmp_path / "app.tobundle")
    assert "versions" in bundle.manifest["facts"]


@pytest.mark.parametrize("what", ["missing", "noise", "key"])
def test_what_cannot_be_read_is_an_error(what, stored, keys, tmp_path):
    path = tmp_path / "x.tobundle"
    if what == "key":
        run("export", path)
        with pytest.raises(TileOpsError, match="cannot use the key"):
            run("export", path, "--sign", tmp_path / "nowhere.pem")
        with pytest.raises(TileOpsError, match=r"no Ed25519 private key|cannot use the key"):
            run("export", path, "--sign", keys["ours.pub"])
        return
    if what == "noise":
        path.write_bytes(b"noise" * 1000)
    with pytest.raises(TileOpsError, match=r"x\.tobundle"):
        run("import", path, "--trust")
