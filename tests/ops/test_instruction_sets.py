"""Every CPU kernel on instruction sets below the host's: the same results, whatever the vector width."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.ops.helpers import INSTRUCTION_SETS, build, check, spec_of
from tileops import settings
from tileops.errors import SettingsError
from tileops.jit import cpu_target
from tileops.kernels.elementwise.call_spec import BinaryCall, GatedCall
from tileops.kernels.elementwise.gated_cpu import GatedCpuKernel
from tileops.kernels.elementwise.pointwise_cpu import BinaryCpuKernel
from tileops.kernels.norm.call_spec import RMSNormCall
from tileops.kernels.norm.rms_norm_cpu import RMSNormCpuKernel
from tileops.kernels.rope.call_spec import RoPECall, RoPEPositionIdsCall
from tileops.kernels.rope.rope_cpu import RoPECpuKernel, RoPEPositionIdsCpuKernel
from tileops.workloads import elementwise, inputs, norm, rope

pytestmark = pytest.mark.in_tree_kernels


WITH_INTEGERS = pytest.mark.parametrize(
    INSTRUCTION_SETS.args[0],
    [*INSTRUCTION_SETS.args[1], ("x86-64-v3", torch.int8), ("generic", torch.int8), ("generic", torch.int64)],
)


@pytest.fixture(autouse=True)
def chosen(instruction_set: str) -> Iterator[None]:
    with settings.scope(cpu=instruction_set):
        try:
            cpu_target()
        except SettingsError as error:
            pytest.skip(str(error))
        yield


def values(shape: tuple[int, ...], dtype: torch.dtype, name: str = "x") -> torch.Tensor:
    return inputs.draw(shape, dtype, inputs.generator("instruction sets", name))


def strided(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


@pytest.mark.parametrize("size", [1, 5, 37, 300])
@INSTRUCTION_SETS
def test_rms_norm(instruction_set: str, dtype: torch.dtype, size: int) -> None:
    x, weight, output = (
        values((3, size), dtype),
        values((size,), dtype, "w"),
        torch.empty(3, size, dtype=dtype),
    )
    for view in (x, strided(x)):
        call = RMSNormCall(spec_of(view), spec_of(weight), spec_of(output), 1, 1e-5)
        build(RMSNormCpuKernel, call)(view, weight, output.fill_(torch.nan))
        check(output, norm.rms_norm(x, weight, normalized_shape=(size,), eps=1e-5))


@pytest.mark.parametrize("size", [1, 5, 37, 300])
@INSTRUCTION_SETS
def test_silu_and_mul(instruction_set: str, dtype: torch.dtype, size: int) -> None:
    x, output = values((3, 2 * size), dtype), torch.empty(3, size, dtype=dtype)
    for view in (x, strided(x)):
        call = GatedCall(function="silu_and_mul", x=spec_of(view), output=spec_of(output))
        build(GatedCpuKernel, call)(view, output.fill_(torch.nan))
        check(output, elementwise.silu_and_mul(x))


@WITH_INTEGERS
def test_add(instruction_set: str, dtype: torch.dtype) -> None:
    alpha = 3
    a, output = values((20, 37), dtype, "a"), torch.empty(20, 37, dtype=dtype)
    for b in (
        values((20, 37), dtype),
        values((37,), dtype),
        values((20, 1), dtype),
        strided(values((20, 37), dtype)),
    ):
        call = BinaryCall(function="add", a=spec_of(a), b=spec_of(b), output=spec_of(output), scalars=(alpha,))
        build(BinaryCpuKernel, call)(a, b, output.fill_(0))
        check(output, elementwise.add(a, b, alpha=alpha))


@pytest.mark.parametrize("dim", [2, 10, 100])
@INSTRUCTION_SETS
def test_rope(instruction_set: str, dtype: torch.dtype, dim: int) -> None:
    x = values((2, 3, 4, dim), dtype)
    output = torch.empty_like(x)
    for layout in ("neox", "interleaved"):
        for view in (x, strided(x)):
            call = RoPECall(spec_of(view), spec_of(output), layout, "2d", 10000.0)
            build(RoPECpuKernel, call)(view, output.fill_(torch.nan))
            check(output, rope.rope(x, rope_layout=layout, input_layout="2d"))
    tokens, ids = x.flatten(0, 1), torch.tensor([5, 0, 9, 9, 2, 31], dtype=torch.int32)
    rotated = output.flatten(0, 1)
    call = RoPEPositionIdsCall(spec_of(tokens), spec_of(ids), spec_of(rotated), dim - 2, 10000.0, 32)
    build(RoPEPositionIdsCpuKernel, call)(tokens, ids, rotated.fill_(torch.nan))
    check(rotated, rope.rope_neox_position_ids(tokens, ids, rotary_dim=dim - 2))
