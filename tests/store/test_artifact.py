"""The format of stored kernels: every damage is found before anything is used."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.store.helpers import artifact, key
from tileops.jit.artifact import (
    Artifact,
    ArtifactError,
    ArtifactKey,
    canonical_json,
    differences,
    read_header,
)


def test_an_artifact_survives_encoding_with_its_parts_in_order():
    made = Artifact({"kernel": b"\0code", "wrapper": b"", "debug": b"x" * 999}, {"entry": "f", "smem": 0})
    found = Artifact.decode(made.encode(key()), key())
    assert list(found.parts.items()) == list(made.parts.items())
    assert found.facts == made.facts


def test_the_header_shows_every_field_of_the_key():
    header = read_header(artifact().encode(key(7)))
    assert header["key"]["config"] == {"dtype": "bf16", "n": 7}
    assert header["parts"] == [["kernel", 4000], ["wrapper", 1]]


def test_every_flipped_byte_is_found():
    data = artifact(size=300).encode(key())
    for position in range(len(data)):
        for mask in (0x01, 0x80):
            broken = bytearray(data)
            broken[position] ^= mask
            with pytest.raises(ArtifactError):
                Artifact.decode(bytes(broken), key())


def test_every_truncation_is_found():
    data = artifact(size=300).encode(key())
    for size in range(len(data)):
        with pytest.raises(ArtifactError):
            Artifact.decode(data[:size], key())
    with pytest.raises(ArtifactError):
        Artifact.decode(data + b"x", key())


def test_an_entry_of_another_key_is_refused():
    with pytest.raises(ArtifactError, match="another key"):
        Artifact.decode(artifact().encode(key(1)), key(2))


@pytest.mark.parametrize(
    ("left", "right"),
    [(1, True), (1, 1.0), (0, False), ("1", 1), (None, "None"), (0.1, np.float32(0.1)), (math.inf, "inf")],
)
def test_values_of_different_meaning_are_different_keys(left, right):
    assert ArtifactKey({"x": left}).digest != ArtifactKey({"x": right}).digest


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((1, 2), [1, 2]),
        (0.5, np.float32(0.5)),
        (3, np.int64(3)),
        (True, np.bool_(True)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ],
)
def test_values_of_equal_meaning_are_equal_keys(left, right):
    assert ArtifactKey({"x": left}) == ArtifactKey({"x": right})
    assert hash(ArtifactKey({"x": left})) == hash(ArtifactKey({"x": right}))


@pytest.mark.parametrize("value", [object(), {1: 2}, {"$float": "1"}, b"bytes", {1, 2}])
def test_a_key_takes_plain_values_only(value):
    with pytest.raises(TypeError, match="key"):
        canonical_json({"x": value})


def test_differences_name_nested_fields():
    wanted = {"config": {"n": 1, "dtype": "f32"}, "device": "cpu"}
    found = {"config": {"n": 1.0, "dtype": "f32"}, "device": "cpu", "block": 256}
    assert differences(wanted, found) == {"config.n": (1, 1.0), "block": (None, 256)}
    assert differences(wanted, wanted) == {}
