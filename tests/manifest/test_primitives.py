"""Primitives against PyTorch and against what they state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tileops.manifest import adts
from tileops.manifest.primitives import GENERATORS, PREDICATES, PRIMITIVES, DomainError
from tileops.manifest.values import convert

SHAPES = st.lists(st.integers(0, 3), max_size=4)


def call(name: str, *arguments: Any, **keywords: Any) -> Any:
    return PRIMITIVES[name].function(*arguments, **keywords)


@given(st.lists(SHAPES, min_size=1, max_size=3))
def test_broadcast_is_torch_s(shapes: list[list[int]]) -> None:
    try:
        expected = tuple(torch.broadcast_shapes(*map(tuple, shapes)))
    except RuntimeError:
        with pytest.raises(DomainError, match="do not broadcast"):
            call("broadcast", *shapes)
    else:
        assert call("broadcast", *shapes) == expected


@given(SHAPES, st.one_of(st.none(), st.integers(-5, 5), st.lists(st.integers(-3, 3), max_size=3)), st.booleans())
def test_reduced_is_torch_s(shape: list[int], dim: Any, keepdim: bool) -> None:
    valid = call("valid_axes", dim, len(shape))
    unique = valid and call("unique_axes", dim, len(shape))
    x = torch.zeros(shape)
    if not valid:
        with pytest.raises((IndexError, RuntimeError)):
            x.sum(dim, keepdim=keepdim)
        with pytest.raises(DomainError, match="out of range"):
            call("reduced", shape, dim, keepdim)
    elif not unique:
        with pytest.raises(RuntimeError):
            x.sum(dim, keepdim=keepdim)
    else:
        expected = x.sum() if dim is None and not keepdim else x.sum(dim, keepdim=keepdim)
        assert call("reduced", shape, dim, keepdim) == tuple(expected.shape)


def test_reduced_modes() -> None:
    assert call("reduced", (2, 3), [], False, "noop") == (2, 3)
    assert call("reduced", (2, 3), None, True, "noop") == (1, 1)
    with pytest.raises(DomainError, match="name at least one axis"):
        call("reduced", (2, 3), [], False, "reject")


def test_axes_of_a_scalar() -> None:
    assert call("valid_axes", 0, 0)
    assert call("valid_axes", -1, 0)
    assert not call("valid_axes", 1, 0)
    assert not call("unique_axes", [0, -1], 0)
    assert not call("unique_axes", [1, -1], 2)


@given(st.integers(-20, 20), st.integers(1, 7))
def test_ceil_div(a: int, b: int) -> None:
    assert call("ceil_div", a, b) == -((-a) // b)


def test_ceil_div_domain() -> None:
    with pytest.raises(DomainError, match="positive divisor"):
        call("ceil_div", 3, 0)


def test_per_axis() -> None:
    assert call("per_axis", 3, 1, 2) == 3
    assert call("per_axis", (3, 4), 1, 2) == 4
    assert call("per_axis", None, 1, 2, fallback=9) == 9
    assert call("per_axis", (3, None), 1, 2, fallback=9) == 9
    for bad in ((None, 0, 2), ((1, 2, 3), 0, 2), (1, 2, 2)):
        with pytest.raises(DomainError):
            call("per_axis", *bad)


@given(
    st.integers(1, 30),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 2),
    st.integers(1, 2),
    st.booleans(),
)
def test_pool_out_is_torch_s(length: int, k: int, s: int, p: int, d: int, ceil_mode: bool) -> None:
    if p > k // 2 or length + 2 * p < d * (k - 1) + 1:
        return
    pooled = torch.nn.functional.max_pool1d(torch.zeros(1, 1, length), k, s, p, d, ceil_mode)
    assert call("pool.out", length, k, s, p, d, ceil_mode) == pooled.shape[-1]


@given(st.integers(1, 30), st.integers(1, 5), st.integers(1, 4), st.integers(0, 2), st.integers(1, 2))
def test_conv_out_is_torch_s(length: int, k: int, s: int, p: int, d: int) -> None:
    if length + 2 * p < d * (k - 1) + 1:
        return
    result = torch.nn.functional.conv1d(torch.zeros(1, 1, length), torch.zeros(1, 1, k), None, s, p, d)
    assert call("conv.out", length, k, s, p, d) == result.shape[-1]


def test_folds() -> None:
    assert call("prod", ()) == 1
    assert call("sum", ()) == 0
    assert call("len", (4, 5)) == 2
    assert call("max", (), default=3) == 3
    assert call("min", 4, 2) == 2
    assert call("all", iter([])) is True
    with pytest.raises(DomainError, match="max of nothing; give a default"):
        call("max", ())


def test_mhc_expansion() -> None:
    assert call("mhc.expansion", 24) == 4
    with pytest.raises(DomainError):
        call("mhc.expansion", 25)


def test_dtypes_and_categories() -> None:
    assert call("promote_int_to_float", "int8") == "float32"
    assert call("promote_int_to_float", "float16") == "float16"
    assert call("coalesce_dtype", None, "float16") == "float16"
    assert call("coalesce_dtype", "float32", "float16") == "float32"
    assert [call("category", x) for x in (True, 1, 1.0, 1j, "uint8", "bfloat16")] == (
        ["bool", "int", "float", "complex", "int", "float"]
    )
    assert call("representable", 300, "uint8") is False


def test_lists() -> None:
    assert call("repeat", 3, 2) == [3, 3]
    assert call("balanced_sizes", 10, 3) == [4, 3, 3]
    with pytest.raises(DomainError):
        call("balanced_sizes", 10, 0)


# rule: 001 "Primitives, generators and predicates are closed sets"; Tables 14 and 15
def test_the_primitives() -> None:
    general = "all broadcast category ceil_div coalesce_dtype len max min per_axis prod promote_int_to_float reduced"
    lists, tests = "balanced_sizes repeat", "representable sum unique_axes valid_axes"
    domain = "conv.out mhc.expansion moe.capacity pool.out"
    assert sorted(PRIMITIVES) == sorted(f"{general} {lists} {tests} {domain}".split())


# rule: rules.md 1 "moe.capacity(layout,rows,experts)"
@pytest.mark.parametrize(
    ("literal", "rows", "experts", "expected"),
    [
        ({"masked": {"max_m": 64}}, 100, 4, 256),
        ({"contiguous": {"packing": "tight", "metadata_kind": "per_row", "alignment": 1}}, 100, 4, 100),
        ({"contiguous": {"packing": "aligned", "metadata_kind": "per_row", "alignment": 16}}, 100, 4, 160),
        ({"contiguous": {"packing": "aligned", "metadata_kind": "per_row", "alignment": 16}}, 0, 4, 64),
        ({"contiguous": {"packing": "aligned", "metadata_kind": "physical_psum", "alignment": 16}}, 0, 0, 0),
    ],
)
def test_moe_capacity(literal: dict[str, Any], rows: int, experts: int, expected: int) -> None:
    layout = adts.lookup("MGroupedLayout")
    assert layout is not None
    assert call("moe.capacity", convert(literal, layout), rows, experts) == expected


def test_capacity_domain() -> None:
    layout = adts.ADTValue("MGroupedLayout", "masked", (("max_m", 2),))
    with pytest.raises(DomainError, match=r"rows of moe\.capacity must not be negative, got -1"):
        call("moe.capacity", layout, -1, 2)


def test_every_member_is_documented() -> None:
    for registry in (PRIMITIVES, GENERATORS, PREDICATES):
        for name, member in registry.items():
            assert member.function.__doc__, name
