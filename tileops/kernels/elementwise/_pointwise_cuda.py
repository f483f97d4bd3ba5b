"""Device bodies of the elementwise operators on CUDA: two forms for every scalar function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tileops.jit.lang import cuda as lang
from tileops.kernels.elementwise import functions

Dtypes = tuple[str | None, ...]


def dense(
    function: str,
    inputs: Dtypes,
    output: str,
    scalars: Dtypes,
    options: tuple[tuple[str, Any], ...],
    group: int,
    in_place: bool,
    numbered: bool,
) -> Callable[..., None]:
    """``kernel(count, *addresses, *scalars)``: contiguous runs of `count` elements, the output's address last."""
    compute = _function(function, output, options)
    many = lang.pointwise(compute, inputs, output, group, scalars=scalars, in_place=in_place, numbered=numbered)
    one = lang.pointwise(compute, inputs, output, 1, scalars=scalars, in_place=in_place, numbered=numbered)
    dtypes = [*(dtype for dtype in inputs if dtype is not None), output]
    along, tensors = lang.along(dtypes), len(dtypes)

    def kernel(count, *rest):
        addresses, scalars = rest[:tensors], rest[tensors:]
        first = lang.block_index() * lang.block_size() + lang.thread_index()
        stride = lang.grid_size() * lang.block_size()
        groups = count // group
        i = first
        while i < groups:
            many(i, along(addresses, i * group), addresses, scalars)
            i += stride
        # The last elements, fewer than a group.
        i = groups * group + first
        while i < count:
            one(i, along(addresses, i), addresses, scalars)
            i += stride

    return kernel


def strided(
    function: str,
    inputs: Dtypes,
    output: str,
    scalars: Dtypes,
    options: tuple[tuple[str, Any], ...],
    group: int,
    in_place: bool,
    numbered: bool,
    axes: int,
) -> Callable[..., None]:
    """``kernel(count, *addresses, *geometry, *scalars)`` for tensors that step through memory as they like.

    `count` counts groups of `group` elements along the innermost axis, and so do the steps of the geometry (see
    `lang.walk`). An operand whose innermost step is 0 is a single element that broadcasts; the elements of the others
    are neighbours, unless a group is one element.
    """
    compute = _function(function, output, options)
    step = lang.pointwise(
        compute, inputs, output, group, scalars=scalars, in_place=in_place, spreads=True, numbered=numbered
    )
    tensors = 1 + sum(dtype is not None for dtype in inputs)
    locate = lang.walk_from(axes, tensors)
    words = axes * (1 + tensors)
    innermost, end = tensors + 1, tensors + words

    def kernel(count, *rest):
        addresses, geometry, scalars = rest[:tensors], rest[tensors:end], rest[end:]
        i = lang.block_index() * lang.block_size() + lang.thread_index()
        stride = lang.grid_size() * lang.block_size()
        while i < count:
            step(i, locate(addresses, i, geometry), geometry[1:innermost], scalars)
            i += stride

    return kernel


def _function(name: str, output: str, options: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    """The scalar function with its options fixed."""
    function = functions.find(name, output)
    return functools.wraps(function)(functools.partial(function, **dict(options)))
