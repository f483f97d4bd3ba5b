"""Elementwise operators on CUDA, run in the PTX interpreter against float64: each once, and all layouts of a few."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from tests.ptx.harness import ARCHS, DTYPES
from tests.ptx.pointwise import Example, draw, examples, forms, inputs_of, run

#: One of each kind: two floats, a comparison, integers, a selection by mask, integers to floats, an absent operand.
KINDS = (
    Example("MulFwdOp", "bfloat16"),
    Example("GtFwdOp", "float16"),
    Example("BitwiseXorFwdOp", "uint8"),
    Example("WhereFwdOp", "int64"),
    Example("ReciprocalFwdOp", "int16"),
    Example("ClampTensorFwdOp", "float32", {}, ("min",)),
)
SHAPES = {
    "MaskedFillFwdOp": ((3, 640), (3, 640), ()),
    "PreluFwdOp": ((3, 5, 640), (5,)),
    "SiluAndMulFwdOp": ((3, 1040),),
    "GeluAndMulFwdOp": ((3, 1040),),
    "GeluTanhAndMulFwdOp": ((3, 1040),),
}


@pytest.mark.parametrize("example", list(examples(every_dtype=False)), ids=str)
def test_every_operator(example: Example) -> None:
    arch = ARCHS[len(str(example)) % 2]
    group = 16 // torch.empty(0, dtype=getattr(torch, example.dtype)).element_size()
    # A whole block, a part of another, and a tail.
    shapes = SHAPES.get(example.op, ((256 * group + group + group // 2,),))
    program, device = run(example, inputs_of(example, shapes), arch)
    if example.op not in SHAPES:
        assert dict(program.config)["group"] == group
        assert device.machines[0].grid == 2
    reads = forms(program, arch) & {"ld.global.v4.b32", "ld.global.nc.v4.b32"}
    # Whether an integer is NaN is known without reading it.
    assert reads or (example.op in ("IsnanFwdOp", "IsinfFwdOp", "IsfiniteFwdOp") and "float" not in example.dtype)


@pytest.mark.nightly
@pytest.mark.parametrize("example", list(examples(every_dtype=True)), ids=str)
def test_every_operator_dtype_and_layout(example: Example) -> None:
    arch = ARCHS[len(str(example)) % 2]
    if example.op in SHAPES:
        run(example, inputs_of(example, SHAPES[example.op]), arch)
        return
    programs = set()
    for shapes, offsets in layouts(len(inputs_of(example, ((1,),)))):
        programs.add(run(example, inputs_of(example, shapes), arch, offsets=offsets)[0])
    assert len(programs) <= 8


def unary_halves() -> list[Example]:
    """The operators of one tensor, in the dtypes of which every value can be tried."""
    found = [example for example in examples(every_dtype=True) if example.dtype in ("bfloat16", "float16")]
    return [example for example in found if list(inputs_of(example, ((1,),))) == ["input"]]


@pytest.mark.nightly
@pytest.mark.parametrize("example", unary_halves(), ids=str)
def test_every_value_of_16_bits(example: Example) -> None:
    values = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(getattr(torch, example.dtype))
    run(example, {"input": values}, "sm_90a")


def layouts(tensors: int) -> list[tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]]:
    """Shapes of so many operands, and how many elements past an aligned address they and the output lie."""
    flat = [((size,),) for size in (1, 7, 640, 2083)]
    wide, tall, odd, deep = (6, 64), (6, 1), (7, 33), (2, 3, 4, 48)
    broadcast = [
        (wide, (64,), tall),
        (tall, wide, ()),
        (odd, (33,), (7, 1)),
        (deep, (4, 1), (3, 1, 48)),
        ((2, 1, 3, 1, 2, 1), (1, 2, 1, 2, 1, 3), (2, 2, 3, 2, 2, 3)),
    ]
    shaped = flat + ([tuple(shapes[:tensors]) for shapes in broadcast] if tensors > 1 else [])
    return [(shapes, (0, 0, 0, 0)) for shapes in shaped] + [(((96,),), (1, 2, 3, 0)), (((96,),), (0, 0, 0, 5))]


@pytest.mark.parametrize("example", KINDS, ids=str)
def test_every_layout(example: Example) -> None:
    programs = set()
    for arch, (shapes, offsets) in zip(itertools.cycle(ARCHS), layouts(len(inputs_of(example, ((1,),))))):
        programs.add(run(example, inputs_of(example, shapes), arch, offsets=offsets)[0])
    assert len(programs) <= 8


@pytest.mark.parametrize("example", KINDS, ids=str)
def test_every_storage_offset(example: Example) -> None:
    tensors = inputs_of(example, ((70,),))
    for offset in range(16):
        run(example, tensors, "sm_80", offsets=(offset, 0, 0, 0))
        run(example, tensors, "sm_80", offsets=(3, offset, offset, offset))


@pytest.mark.parametrize("example", KINDS, ids=str)
def test_strided_operands(example: Example) -> None:
    wide = inputs_of(example, ((24, 48),))

    def views(*changes: Any) -> dict[str, torch.Tensor | None]:
        chosen = itertools.cycle(changes)
        return {name: None if x is None else next(chosen)(x) for name, x in wide.items()}

    run(example, views(lambda x: x.T), "sm_80")
    run(example, views(lambda x: x[::2], lambda x: x[1::2]), "sm_90a")
    run(example, views(lambda x: x[:, ::2], lambda x: x[:, 1::2]), "sm_80")
    run(example, views(lambda x: x[:24, :24].T, lambda x: x[:24, :24]), "sm_90a")
    run(example, views(lambda x: x.reshape(2, 3, 4, 48).permute(3, 1, 0, 2)), "sm_80")
    run(example, views(lambda x: x[:1].expand(24, 48), lambda x: x), "sm_80")


@pytest.mark.parametrize("dtype", DTYPES)
def test_gated_operands_of_any_layout(dtype: str) -> None:
    example = Example("SiluAndMulFwdOp", dtype)
    x = draw((24, 96), dtype)
    group = 16 // x.element_size()
    for offset in range(16):
        program, _ = run(example, {"x": x[:3]}, "sm_80", offsets=(offset, 0))
        assert dict(program.config)["group"] == (group if offset % group == 0 else 1)
    for view in (x[::2], x.T, x[:, ::3], x[:1].expand(5, 96), x[:, :1].expand(24, 32), x[:5, :14], x[:2, :2]):
        run(example, {"x": view}, "sm_90a")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_in_place(dtype: str) -> None:
    example = Example("ReluFwdOp", dtype)
    x = draw((12, 40), dtype)
    programs = set()
    for view in (x, x.T, x[:, ::2], x[::3], x.reshape(3, 4, 40).transpose(0, 2), x[1:, 3:]):
        program, _ = run(example, {"input": view}, "sm_80", in_place=True)
        assert not any(".nc." in form for form in forms(program, "sm_80"))
        programs.add(program)
    # What is contiguous in some order of its axes runs like a contiguous tensor.
    assert len(programs) == 3


def test_a_small_grid_loops() -> None:
    example = Example("AddFwdOp", "float16", {"alpha": 2})
    _, device = run(example, inputs_of(example, ((9, 1000),)), "sm_80", max_grid=3)
    assert device.machines[0].grid == 3
    _, device = run(example, inputs_of(example, ((200, 48), (48,))), "sm_90a", max_grid=2)
    assert device.machines[0].grid == 2


def test_empty_calls_launch_nothing() -> None:
    for example, shapes in ((KINDS[0], ((0, 8), (8,))), (Example("SiluAndMulFwdOp", "float32"), ((0, 8),))):
        _, device = run(example, inputs_of(example, shapes), "sm_80")
        assert not device.machines


def test_a_call_with_too_many_axes_is_refused_with_the_reason() -> None:
    example = Example("MulFwdOp", "float32")
    with pytest.raises(AssertionError, match="more than 8 axes"):
        run(example, inputs_of(example, ((2, 1) * 9, (1, 2) * 9)), "sm_80")
