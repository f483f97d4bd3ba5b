"""One operator of each kind through every memory layout: broadcasting, steps, offsets, sizes around the blocks of the
kernels, writing in place, stores around the caches. What is computed is left to test_elementwise_accuracy.py.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.ops.helpers import at_threads, bits
from tileops import manifest
from tileops.errors import CheckError
from tileops.kernels.elementwise import template_cpu
from tileops.workloads import inputs, workload

pytestmark = pytest.mark.in_tree_kernels

#: name -> (parameters, dtypes of the tensors): results that torch computes to the same bits.
KINDS: dict[str, tuple[dict[str, Any], tuple[torch.dtype, ...]]] = {
    "NegFwdOp": ({}, (torch.bfloat16,)),
    "FloorFwdOp": ({}, (torch.float32,)),
    "ReciprocalFwdOp": ({}, (torch.int8,)),  # another dtype
    "MulFwdOp": ({}, (torch.float32, torch.float32)),
    "MaximumFwdOp": ({}, (torch.uint8, torch.uint8)),
    "GeFwdOp": ({}, (torch.float16, torch.float16)),
    "WhereFwdOp": ({}, (torch.bool, torch.bfloat16, torch.bfloat16)),
    "ClampTensorFwdOp": ({}, (torch.int64, torch.int64, torch.int64)),
    "MaskedFillScalarFwdOp": ({"value": -2.0}, (torch.float32, torch.bool)),
}
ALL = pytest.mark.parametrize("name", KINDS)
OF_MORE = pytest.mark.parametrize("name", [name for name, (_, dtypes) in KINDS.items() if len(dtypes) > 1])
#: Around whole vectors, groups of vectors, tiles (64 columns) and blocks of a row.
SIZES = (
    1,
    3,
    7,
    8,
    15,
    16,
    17,
    31,
    33,
    63,
    64,
    65,
    127,
    129,
    255,
    257,
    513,
    *(template_cpu.BLOCK + d for d in (-1, 0, 1)),
)


def make(name: str, **params: Any) -> Any:
    params = {**KINDS.get(name, ({},))[0], **params}
    return getattr(importlib.import_module(f"tileops.{manifest.load_entry(name).family}"), name)(**params)


def tensors(name: str, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    """An operand of each shape, the last again where there are more."""
    _, dtypes = KINDS[name]
    shapes = (*shapes, *(shapes[-1],) * (len(dtypes) - len(shapes)))
    return [
        inputs.draw(shape, dtype, inputs.generator(name, str(place)))
        for place, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=False))
    ]


def check(name: str, *operands: torch.Tensor, where: object = "") -> None:
    """The same bits as torch gives, in a new contiguous tensor."""
    result = make(name)(*operands)
    wanted = next(iter(workload(name).torch.values()))(*operands, **KINDS[name][0])
    assert result.dtype == wanted.dtype, where
    assert result.shape == wanted.shape, where
    assert result.is_contiguous(), where
    assert torch.equal(bits(result), bits(wanted)), where


@OF_MORE
def test_broadcasting(name: str) -> None:
    """Each operand is stretched by the others along axes at the front, in the middle and at the end."""
    shapes = [
        (),
        (1,),
        (7,),
        (65,),
        (5, 1),
        (1, 65),
        (5, 65),
        (3, 1, 1),
        (3, 5, 1),
        (1, 5, 65),
        (3, 1, 65),
        (2, 1, 5, 1),
    ]
    for first, second in itertools.product(shapes, repeat=2):
        try:
            torch.broadcast_shapes(first, second)
        except RuntimeError:
            continue
        check(name, *tensors(name, first, second), where=(first, second))


@pytest.mark.parametrize("name", ["WhereFwdOp", "ClampTensorFwdOp"])
def test_three_operands_broadcast(name: str) -> None:
    shapes = [(), (3, 1, 1), (5, 1), (1, 5, 40), (3, 5, 40)]
    for found in itertools.product(shapes, repeat=3):
        check(name, *tensors(name, *found), where=found)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (2,)])
def test_what_one_element_needs_does_not_serve_many(shape: tuple[int, ...]) -> None:
    """In a call with one element a number in place of an absent bound has the strides of a tensor."""
    x = torch.arange(-300, 300)
    bound = x.flip(0)
    for name in ("min", "max"):
        op = make("ClampTensorFwdOp")
        op(torch.zeros(shape, dtype=x.dtype), **{name: torch.zeros(shape, dtype=x.dtype)})
        assert torch.equal(op(x, **{name: bound}), torch.clamp(x, **{name: bound}))


def _layouts(x: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    yield from inputs.layouts(x)
    for axis in range(x.ndim):
        yield f"expanded along {axis}", inputs.expanded(x, axis)
    # Negative steps do not exist in torch; overlapping elements do.
    yield "overlapping", x.flatten().as_strided(x.shape, (2, *(1,) * (x.ndim - 1)))


@ALL
def test_layouts(name: str) -> None:
    """Each operand in each layout, beside the others as they are and all of them alike."""
    operands = tensors(name, (3, 18, 67))
    named = [list(_layouts(x)) for x in operands]
    for place, views in enumerate(named):
        for layout, view in views:
            check(name, *operands[:place], view, *operands[place + 1 :], where=(place, layout))
    for alike in zip(*named, strict=True):
        check(name, *(view for _, view in alike), where=alike[0][0])


@ALL
def test_channels_last_and_permuted_results(name: str) -> None:
    operands = tensors(name, (2, 8, 5, 6))
    check(name, *(x.contiguous(memory_format=torch.channels_last) for x in operands))
    for order in itertools.permutations(range(4)):
        check(name, *(x.permute(order) for x in operands), where=order)


@ALL
@pytest.mark.parametrize("first", [0, 8])
def test_storage_offsets(name: str, first: int) -> None:
    operands = tensors(name, (3, 50))
    for offset in range(first, first + 8):
        moved = [inputs.at_offset(x, (offset * (2 * place + 1)) % 16) for place, x in enumerate(operands)]
        check(name, *moved, where=offset)


@ALL
def test_sizes(name: str) -> None:
    for size in SIZES:
        check(name, *tensors(name, (size,)), where=size)
        check(
            name,
            *tensors(name, (2, size), (size,)) if len(KINDS[name][1]) > 1 else tensors(name, (2, size)),
            where=size,
        )
        wide = [x[:, ::2] for x in tensors(name, (3, 2 * size))]
        check(name, *wide, where=f"{size}, every other")


@ALL
def test_tiles(name: str) -> None:
    """Transposed, so that rows and columns end inside and at the edges of tiles of 16 by 64."""
    for rows, columns in itertools.product((1, 15, 16, 17, 33), (1, 63, 64, 65, 130)):
        check(name, *(x.t() for x in tensors(name, (columns, rows))), where=(rows, columns))


@ALL
def test_nothing_and_one_element(name: str) -> None:
    for shape in ((), (1,), (1, 1, 1), (0,), (3, 0), (0, 4), (2, 0, 3)):
        check(name, *tensors(name, shape), where=shape)
    if len(KINDS[name][1]) > 1:
        check(name, *tensors(name, (0, 4), (1, 4)))
        check(name, *tensors(name, (), (3, 0)))


@ALL
def test_many_axes(name: str) -> None:
    """None of which can be merged with the next."""
    operands = tensors(name, (4, 4, 4, 4, 4, 4))
    check(name, *(x[::2, :3, ::2, :3, ::2, :3] for x in operands))
    if len(operands) > 1:
        check(name, operands[0], *(x[:1, :, :1, :, :1, :] for x in operands[1:]))


@pytest.mark.parametrize("name", ["FloorFwdOp", "GeFwdOp", "WhereFwdOp"])
def test_results_do_not_depend_on_the_number_of_threads(name: str) -> None:
    operands = tensors(name, (300, 1700))
    for views in (operands, [x.t() for x in operands], [x[:, ::3] for x in operands]):
        one, two = (at_threads(count, lambda: make(name)(*views)) for count in (1, 2))  # noqa: B023
        assert torch.equal(bits(one), bits(two))


@pytest.mark.parametrize("name", ["NegFwdOp", "MulFwdOp", "GeFwdOp"])
def test_large_results_go_around_the_caches(name: str) -> None:
    """Rows of odd length begin at every alignment, and end inside a vector."""
    itemsize = make(name)(*tensors(name, (1,))).itemsize
    rows = template_cpu.STREAMING_BYTES // (4111 * itemsize) + 1
    operands = tensors(name, (rows, 4111), (4111,)) if len(KINDS[name][1]) > 1 else tensors(name, (rows, 4111))
    for threads in (1, 2):
        at_threads(threads, lambda: check(name, *operands))  # type: ignore[arg-type,return-value]
    check(name, *(x.flatten()[5:] for x in tensors(name, (rows, 4111))))


WRITERS = [("ReluFwdOp", {}), ("LeakyReluFwdOp", {"negative_slope": 0.5}), ("HardtanhFwdOp", {"min_val": -0.5})]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "params"), WRITERS, ids=str)
def test_in_place(name: str, params: dict[str, Any], dtype: torch.dtype) -> None:
    """Whatever the strides, the tensor itself is written, once, and nothing beside it."""
    op, plain = make(name, **params, inplace=True), next(iter(workload(name).torch.values()))
    for shape in ((5, 18, 67), (65,), (), (0, 3)):
        x = inputs.draw(shape, dtype, inputs.generator(name, "x"))
        for layout, view in list(inputs.layouts(x)):  # all made before the first is written
            base = view._base if view._base is not None else view
            before, wanted = base.clone(), plain(view.clone(), **params)
            beside = torch.zeros_like(base, dtype=torch.bool)
            beside.as_strided(view.shape, view.stride(), view.storage_offset()).fill_(True)
            result = op(view)
            assert result.data_ptr() == view.data_ptr()
            assert torch.equal(bits(view), bits(wanted)), layout
            assert torch.equal(bits(base[~beside]), bits(before[~beside])), layout


def test_elements_that_share_memory_are_not_written() -> None:
    x = torch.full((1, 40), -1.0)
    with pytest.raises(CheckError, match=r"ReluFwdOp.*\.clone\(\)"):
        make("ReluFwdOp", inplace=True)(x.expand(3, 40))
    assert (x == -1.0).all()


def test_in_place_under_a_compiler() -> None:
    torch._dynamo.reset()
    op = make("ReluFwdOp", inplace=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.clone().t()
        op(y)
        return y * 2

    x = torch.randn(7, 9)
    assert torch.equal(torch.compile(function, fullgraph=True, backend="aot_eager")(x), x.relu().t() * 2)


@pytest.mark.parametrize("shape", [(1,), (70,), (3, 65), (5, 200), (2, 3075)])
def test_dropout_follows_the_number_of_the_element(shape: tuple[int, ...]) -> None:
    """Rows whose first number is no multiple of four, and rows apart in memory, drop what the reference drops."""
    op = make("DropoutFwdOp", p=0.4, training=True, seed=2**40 + 3)
    x = torch.ones(shape, dtype=torch.bfloat16)
    apart = torch.ones(*shape[:-1], shape[-1] + 5, dtype=torch.bfloat16)[..., 1:-4]
    wanted = workload("DropoutFwdOp").reference(x, p=0.4, training=True, seed=2**40 + 3).to(torch.bfloat16)
    assert torch.equal(op(x), wanted)
    assert torch.equal(op(apart), wanted)


def _views(dtype: torch.dtype) -> list[torch.Tensor]:
    base = torch.ones(6, 6, 6, 6).to(dtype)
    stepping = [base.transpose(0, 3), base.expand(6, 6, 6, 6)[..., ::2].repeat(1, 1, 1, 2)[:, ::2], base[..., 1:]]
    stretched = [base[..., :1], base[:1], base[:, :1], base[0, 0], base[0, 0, 0, 0], base[:1].expand(6, 6, 6, 6)]
    return [base, *stepping, *stretched]


@ALL
def test_few_kernels_serve_any_mix_of_shapes(name: str) -> None:
    """Whatever is broadcast or steps through memory: at most eight programs for an operator and dtype."""
    op, programs = make(name), set()
    operands: list[list[Any]] = [list(_views(dtype)) for dtype in KINDS[name][1]]
    if name == "ClampTensorFwdOp":  # either bound may be absent
        operands[1:] = [[*views, None] for views in operands[1:]]
    for views in itertools.product(*operands):
        present = [view for view in views if view is not None]
        try:
            torch.broadcast_shapes(*(view.shape for view in present))
        except RuntimeError:
            continue
        if len(present) == 1 < len(views):
            continue
        op(*views)
        programs |= {entry.program for kernel in op.iter_kernels() for entry in kernel.entries.values()}
    assert len(programs) <= 8
