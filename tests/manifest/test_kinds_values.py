"""Kinds from types, and the conversion of values by kind."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tileops.errors import ManifestError
from tileops.manifest import kinds as k
from tileops.manifest.dtypes import DTYPES, represents
from tileops.manifest.values import ValueMismatch, convert


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("int", k.INT),
        ("bool", k.BOOL),
        ("'a' | 'b'", k.Str(("a", "b"))),
        ("list[int]", k.Seq(k.INT, None, "list")),
        ("tuple[int, ...]", k.Seq(k.INT, None, "tuple")),
        ("tuple[int, int]", k.Seq(k.INT, 2, "tuple")),
        ("list[int | None]", k.Seq(k.Maybe(k.INT))),
        ("int | None", k.Maybe(k.INT)),
        ("'a' | 'b' | None", k.Maybe(k.Str(("a", "b")))),
        ("int | tuple[int, int]", k.Union((k.INT, k.Seq(k.INT, 2, "tuple")))),
        ("int | float", k.Union((k.INT, k.REAL))),
        ("float16 | bfloat16", k.DType(("float16", "bfloat16"))),
        ("float16 | None", k.Maybe(k.DType(("float16",)))),
        ("torch.dtype", k.DType(tuple(DTYPES))),
        ("float", k.REAL),
        ("str", k.STRING),
        ("Number", k.Opaque("Number")),
    ],
)
def test_types(text: str, kind: k.Kind) -> None:
    assert k.parse_type(text) == kind


@pytest.mark.parametrize(
    "text",
    [
        "integer",
        "int |",
        "None",
        "tuple[int, bool]",
        "int or float",
        "set[int]",
        3,
        "a" * 5,
        "float16 | float16",
        "list[float]",
        "list[bool]",
        "tuple['a' | 'b', ...]",
        "tuple[float | None, float | None]",
        "list[list[int]]",
    ],
)
def test_bad_types(text: object) -> None:
    with pytest.raises(ManifestError):
        k.parse_type(text)


@pytest.mark.parametrize("text", ["DType[float13]", "DType[]", "DType[float16 | float16]", "int", "Seq[Dim]", 1, "dim"])
def test_bad_index_kinds(text: object) -> None:
    with pytest.raises(ManifestError):
        k.parse_index_kind(text)


def test_fits() -> None:
    assert k.fits(k.DIM, k.INT)
    assert not k.fits(k.INT, k.DIM)
    assert k.fits(k.SHAPE, k.INTS)
    assert not k.fits(k.INTS, k.SHAPE)
    assert k.fits(k.NONE, k.Maybe(k.INT))
    assert k.fits(k.DIM, k.Maybe(k.INT))
    assert not k.fits(k.Maybe(k.INT), k.INT)
    assert k.fits(k.Str(("a",)), k.Str(("a", "b")))
    assert not k.fits(k.Str(("c",)), k.Str(("a", "b")))
    assert not k.fits(k.BOOL, k.INT)
    assert k.fits(k.Union((k.DIM, k.INT)), k.INT)


def test_disjoint() -> None:
    assert k.disjoint(k.Str(("a",)), k.Str(("b", "c")))
    assert not k.disjoint(k.Str(("a", "b")), k.Str(("b", "c")))
    assert not k.disjoint(k.Str(("a",)), k.STRING)
    assert k.disjoint(k.DType(("float16",)), k.DType(("float32",)))
    assert not k.disjoint(k.DType(("float16", "float32")), k.DType(("float32",)))


def test_join() -> None:
    assert k.join(k.DIM, k.INT) == k.INT
    assert k.join(k.NONE, k.DIM) == k.Maybe(k.DIM)
    assert k.join(k.Maybe(k.DIM), k.INT) == k.Maybe(k.INT)
    assert k.join(k.BOOL, k.INT) is None
    assert k.join(k.DType(("float16",)), k.DType(("float32",))) == k.DType(("float16", "float32"))


@pytest.mark.parametrize(
    ("kind", "value", "result"),
    [
        ("int", np.int64(3), 3),
        ("tuple[int, ...]", [1, 2], (1, 2)),
        ("tuple[int, ...]", torch.Size([1, 2]), (1, 2)),
        ("list[int]", (1, 2), [1, 2]),
        ("float", 2, 2.0),
        ("float", np.float32(0.5), 0.5),
        ("int | float", 2, 2),
        ("int | float", 2.0, 2.0),
        ("int | None", None, None),
        ("int | tuple[int, int]", (1, 2), (1, 2)),
        ("'a' | 'b'", "b", "b"),
        ("'a' | 'b'", np.str_("b"), "b"),
        ("Number", True, True),
        ("Number", 1.5, 1.5),
    ],
)
def test_conversion(kind: str, value: object, result: object) -> None:
    got = convert(value, k.parse_type(kind))
    assert got == result
    assert type(got) is type(result)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("int", True, "expected an integer, got True"),
        ("int", 2.0, "expected an integer, got 2.0"),
        ("int", 2**63, "expected an integer of 64 bits"),
        ("tuple[int, ...]", (-(2**63) - 1,), "expected an integer of 64 bits"),
        ("bool", 1, "expected True or False, got 1"),
        ("float", "1", "expected a float, got '1'"),
        ("float", True, "expected a float, got True"),
        ("float", 10**400, "which is too large"),
        ("tuple[int, int]", (1,), "expected 2 elements, got (1,)"),
        ("tuple[int, ...]", 3, "expected a list or tuple, got 3"),
        ("tuple[int, ...]", (1, None), "expected an integer, got None in (1, None)"),
        ("'a' | 'b'", "c", "expected one of 'a', 'b', got 'c'"),
        ("int | None", "x", "expected an integer, got 'x' (None is accepted too)"),
        ("int | float", "x", "expected an integer or a float, got 'x'"),
        ("int | float", 1 << 70, "expected an integer of 64 bits, got 1180591620717411303424"),
        ("float16 | float32", "int8", "expected one of the dtypes float16, float32, got 'int8'"),
    ],
)
def test_mismatches(kind: str, value: object, message: str) -> None:
    with pytest.raises(ValueMismatch) as caught:
        convert(value, k.parse_type(kind))
    assert message in str(caught.value)


def test_dtype_facts_are_torch_s() -> None:
    for name, dtype in DTYPES.items():
        actual = getattr(torch, name)
        assert dtype.itemsize == actual.itemsize
        if actual.is_floating_point or actual.is_complex:
            info = torch.finfo(actual)
            assert (dtype.low, dtype.high) == (info.min, info.max)
        elif name != "bool":
            assert (dtype.low, dtype.high) == (torch.iinfo(actual).min, torch.iinfo(actual).max)


@pytest.mark.parametrize("name", ["bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    "value", [0, 1, -1, 127, 128, -128, -129, 255, 256, -255, -256, 70000, 2**31, 2**63 - 1, -(2**63)]
)
def test_representable_ints_agree_with_torch(name: str, value: int) -> None:
    try:
        torch.zeros(1, dtype=getattr(torch, name)).masked_fill(torch.ones(1, dtype=torch.bool), value)
    except RuntimeError:
        accepted = False
    else:
        accepted = True
    assert represents(DTYPES[name], value) == accepted


@pytest.mark.parametrize(
    ("name", "value", "fits"),
    [
        ("float16", 65504.0, True),
        ("float16", 65520.0, False),
        ("float16", float("inf"), True),
        ("float8_e4m3fn", 448.0, True),
        ("float8_e4m3fn", 500.0, False),
        ("float8_e4m3fn", float("inf"), False),
        ("float32", float("nan"), True),
        ("int32", float("nan"), False),
        ("int32", 1.5, True),
        ("float32", 1e39, False),
        ("bool", True, True),
        ("bool", 2.5, True),
        ("bool", float("nan"), True),
    ],
)
def test_representable_floats(name: str, value: float, fits: bool) -> None:
    assert represents(DTYPES[name], value) is fits
