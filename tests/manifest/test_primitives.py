"""Primitives against PyTorch, generators and predicates against what they state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tileops.manifest.primitives import GENERATORS, PREDICATES, PRIMITIVES, DomainError

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


def generate(name: str, *arguments: Any, seed: int = 0) -> np.ndarray:
    member = GENERATORS[name]
    leading = [np.random.default_rng(seed)] if member.random else []
    return member.function(*leading, *arguments)


def states(name: str, values: Any, *arguments: Any) -> bool:
    return PREDICATES[name].function(np.asarray(values), *arguments)


def test_deterministic_generators() -> None:
    lengths = [3, 0, 2]
    assert generate("as_tensor", lengths).tolist() == lengths
    assert generate("prefix_sum", lengths).tolist() == [0, 3, 3, 5]
    assert generate("exclusive_prefix_sum", lengths).tolist() == [0, 3, 3]
    assert generate("packed_positions", lengths).tolist() == [0, 1, 2, 0, 1]
    assert generate("token_indices", lengths).tolist() == [[0, 0], [0, 1], [0, 2], [2, 0], [2, 1]]
    assert generate("chunk_indices", [5, 2], 2).tolist() == [[0, 0], [0, 1], [0, 2], [1, 0]]
    assert generate("chunk_offsets", [5, 2], 2).tolist() == [0, 3, 4]
    assert generate("full", (2, 1), 7).tolist() == [[7], [7]]
    with pytest.raises(DomainError, match="must not be negative"):
        generate("prefix_sum", [-1])


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("paged_block_table", (3, 4, 20)),
        ("topk_ids", (5, 2, 8)),
        ("random_ids", (3, 4, 9)),
        ("sample_indices", (4, 9)),
    ],
)
def test_random_generators_repeat_and_declare_their_rank(name: str, arguments: tuple[int, ...]) -> None:
    first, second = generate(name, *arguments), generate(name, *arguments)
    assert np.array_equal(first, second)
    assert first.ndim == GENERATORS[name].rank
    assert not np.array_equal(first, generate(name, *arguments, seed=1))


def test_pages_are_disjoint_where_the_pool_is_large_enough() -> None:
    table = generate("paged_block_table", 3, 4, 12)
    assert len(np.unique(table)) == 12
    small = generate("paged_block_table", 3, 4, 5)
    assert states("in_range", small, 0, 5)
    assert all(len(set(row)) == 2 for row in generate("topk_ids", 50, 2, 3).tolist())


def test_predicates() -> None:
    assert states("prefix_offsets", [0, 2, 2, 5], 5)
    assert not states("prefix_offsets", [0, 3, 2, 5], 5)
    assert not states("prefix_offsets", [1, 5], 5)
    assert not states("prefix_offsets", [0, 4], 5)
    assert states("max_segment", [0, 2, 5], 3)
    assert not states("max_segment", [0, 2, 5], 2)
    assert states("in_range", [[0, 4]], 0, 5)
    assert not states("in_range", [[0, 5]], 0, 5)
    assert states("sums_to", [2, 3], 5)
    assert states("exclusive_prefix_of", [0, 2], np.array([2, 3]))
    assert not states("exclusive_prefix_of", [0, 3], np.array([2, 3]))
    assert states("chunk_offsets_of", [0, 2, 3], np.array([0, 3, 5]), 2)
    assert states("indices_within", [[0, 2], [1, 1]], np.array([0, 3, 5]))
    assert not states("indices_within", [[1, 2]], np.array([0, 3, 5]))


def test_every_member_is_documented() -> None:
    for registry in (PRIMITIVES, GENERATORS, PREDICATES):
        for name, member in registry.items():
            assert member.function.__doc__, name
