"""The planner of the elementwise template: every output element is computed once, from the right elements."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tileops.kernels.base import TensorSpec
from tileops.kernels.elementwise import template_cpu as template
from tileops.kernels.layout import broadcast_strides

OperandLayout = tuple[tuple[int, ...], tuple[int, ...]]


def operand(layout: OperandLayout, shape: tuple[int, ...], argument: int = 0) -> template.Operand:
    sizes, strides = layout
    return template.Operand("f32", broadcast_strides(sizes, strides, shape), argument)


def output_of(shape: tuple[int, ...]) -> TensorSpec:
    return TensorSpec.contiguous("float32", shape)


def walk(plan: template.Plan, operands: int) -> list[tuple[int, ...]]:
    """The byte offsets (operands, output) that a kernel visits, read from the geometry alone, as the kernel
    does.
    """
    geometry = plan.geometry(streaming=False)
    at = template.HEADER_WORDS

    def axes(count: int, start: int) -> list[tuple[int, tuple[int, ...]]]:
        found = []
        for axis in range(count):
            words = geometry[start + axis * template.AXIS_WORDS : start + (axis + 1) * template.AXIS_WORDS]
            found.append((words[0], (*words[1 : 1 + operands], words[-1])))
        return found

    def offsets(outer: list[tuple[int, tuple[int, ...]]], row: int) -> list[int]:
        total = [0] * (operands + 1)
        for size, steps in outer:
            row, index = divmod(row, size)
            total = [base + index * step for base, step in zip(total, steps, strict=True)]
        assert row == 0
        return total

    visited = []
    if plan.form == "rows":
        size, width, blocks, outer_axes, _ = geometry[: template.HEADER_WORDS]
        itemsize = 4
        inner = [0 if kind == "splat" else itemsize for kind in plan.kinds] + [itemsize]
        for unit in range(plan.units):
            row, block = divmod(unit, blocks)
            base = offsets(axes(outer_axes, at), row)
            for i in range(block * width, min((block + 1) * width, size)):
                visited.append(tuple(start + i * step for start, step in zip(base, inner, strict=True)))
        return visited
    column_tiles, row_tiles, _, outer_axes, _ = geometry[: template.HEADER_WORDS]
    (columns, column_steps), (rows, row_steps) = axes(2, at)
    outer = axes(outer_axes, at + 2 * template.AXIS_WORDS)
    for unit in range(plan.units):
        rest, column_tile = divmod(unit, column_tiles)
        index, row_tile = divmod(rest, row_tiles)
        base = offsets(outer, index)
        for r in range(row_tile * template.TILE_ROWS, min((row_tile + 1) * template.TILE_ROWS, rows)):
            for c in range(
                column_tile * template.TILE_COLUMNS, min((column_tile + 1) * template.TILE_COLUMNS, columns)
            ):
                visited.append(
                    tuple(
                        start + r * row_step + c * column_step
                        for start, row_step, column_step in zip(base, row_steps, column_steps, strict=True)
                    )
                )
    return visited


def expected(shape: tuple[int, ...], layouts: list[OperandLayout]) -> list[tuple[int, ...]]:
    strides = [broadcast_strides(sizes, steps, shape) for sizes, steps in layouts]
    found = []
    for position, index in enumerate(itertools.product(*(range(size) for size in shape))):
        inputs = (4 * sum(i * step for i, step in zip(index, axis_steps, strict=True)) for axis_steps in strides)
        found.append((*inputs, 4 * position))
    return found


def check_plan(shape: tuple[int, ...], layouts: list[OperandLayout]) -> template.Plan:
    plan = template.Plan.of(output_of(shape), [operand(layout, shape) for layout in layouts])
    assert sorted(walk(plan, len(layouts)), key=lambda visit: visit[-1]) == expected(shape, layouts)
    return plan


@st.composite
def calls(draw: st.DrawFn) -> tuple[tuple[int, ...], list[OperandLayout]]:
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=0, max_size=5)))
    layouts = []
    for _ in range(draw(st.integers(1, 3))):
        keep = draw(st.integers(0, len(shape)))
        sizes = tuple(1 if draw(st.booleans()) else size for size in shape[len(shape) - keep :])
        order = draw(st.permutations(range(len(sizes))))
        strides = [0] * len(sizes)
        step = draw(st.sampled_from([1, 1, 1, 2, 3]))
        for axis in order:
            strides[axis] = draw(st.sampled_from([step, step, step, 0]))
            step *= sizes[axis] * draw(st.sampled_from([1, 1, 2]))
        layouts.append((sizes, tuple(strides)))
    return shape, layouts


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(calls())
def test_every_element_is_visited_once_at_its_place(
    call: tuple[tuple[int, ...], list[OperandLayout]],
) -> None:
    check_plan(*call)


@pytest.mark.parametrize(
    ("shape", "layouts", "form", "kinds"),
    [
        ((4, 6), [((4, 6), (6, 1)), ((4, 6), (6, 1))], "rows", ("unit", "unit")),
        ((4, 6), [((4, 6), (6, 1)), ((6,), (1,))], "rows", ("unit", "unit")),
        ((4, 6), [((4, 6), (6, 1)), ((4, 1), (1, 1))], "rows", ("unit", "splat")),
        ((4, 6), [((1,), (1,)), ((4, 6), (6, 1))], "rows", ("splat", "unit")),
        ((4, 6), [((4, 1), (1, 1)), ((1, 6), (6, 1))], "rows", ("splat", "unit")),
        ((4, 6), [((4, 6), (1, 4)), ((4, 6), (6, 1))], "tiles", ("dense",)),
        ((4, 6), [((4, 6), (0, 0)), ((4, 6), (6, 0))], "tiles", ("dense",)),
        ((), [((), ()), ((), ())], "rows", ("unit", "unit")),
    ],
)
def test_layouts_fall_into_the_forms(
    shape: tuple[int, ...], layouts: list[OperandLayout], form: str, kinds: tuple[str, ...]
) -> None:
    plan = check_plan(shape, layouts)
    assert (plan.form, plan.kinds) == (form, kinds)


def test_contiguous_axes_merge_into_one() -> None:
    plan = template.Plan.of(output_of((2, 3, 5, 7)), [operand(((2, 3, 5, 7), (105, 35, 7, 1)), (2, 3, 5, 7))])
    assert plan.sizes == (210,)


@pytest.mark.parametrize("extent", [template.BLOCK - 1, template.BLOCK, template.BLOCK + 1, 3 * template.BLOCK + 5])
def test_long_rows_are_cut_into_blocks(extent: int) -> None:
    plan = check_plan((2, extent), [((2, extent), (extent + 1, 1))])
    assert plan.units == 2 * math.ceil(extent / template.BLOCK)


@pytest.mark.parametrize("shape", [(17, 65), (16, 64), (1, 200), (33, 3)])
def test_tiles_cover_ragged_edges(shape: tuple[int, int]) -> None:
    rows, columns = shape
    check_plan(shape, [(shape, (1, rows)), (shape, (columns, 1))])


@pytest.mark.parametrize("elements", [2**31 - 1, 2**31, 2**32, 2**40])
def test_sizes_beyond_32_bits_are_planned(elements: int) -> None:
    flat = template.Plan.of(output_of((elements,)), [operand(((elements,), (1,)), (elements,))])
    assert flat.units == math.ceil(elements / template.BLOCK)
    assert flat.geometry(streaming=True)[0] == elements
    shape = (elements // 256, 256)
    wide = template.Plan.of(output_of(shape), [operand((shape, (512, 1)), shape)])
    assert wide.units == shape[0]
    assert wide.steps[0][1] == 2048


def test_an_output_written_in_place_is_walked_in_the_order_of_its_memory() -> None:
    shape, strides = (5, 4, 6), (6, 60, 1)
    output = TensorSpec("cpu", "float32", shape, strides, 4)
    plan = template.Plan.of(output, [template.Operand("f32", strides, 0)])
    assert (plan.form, plan.sizes) == ("rows", (30, 4))
    output = TensorSpec("cpu", "float32", (5, 4), (8, 2), 4)
    plan = template.Plan.of(output, [template.Operand("f32", (8, 2), 0)])
    assert (plan.form, plan.kinds) == ("tiles", ("strided",))
