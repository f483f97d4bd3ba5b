"""What the operator tests share: one call that checks a result, and a way to run a kernel class directly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tileops import jit
from tileops.kernels.base import CallSpec, Kernel, TensorSpec
from tileops.workloads import numerics
from tileops.workloads.device import run_device

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def _below_the_host() -> list[Any]:
    kept = {("generic", torch.float32), ("x86-64-v3", torch.bfloat16), ("x86-64-v3", torch.float16)}
    return [
        pytest.param(level, dtype, marks=[] if (level, dtype) in kept else [pytest.mark.nightly])
        for level in ("x86-64-v3", "generic")
        for dtype in FLOATS
    ]


#: Instruction sets below the host's, with a dtype. Every kernel is compiled anew for each of them: the ordinary suite
#: tries each dtype on one, the nightly tests on the other too.
INSTRUCTION_SETS = pytest.mark.parametrize(("instruction_set", "dtype"), _below_the_host())


def check(actual: torch.Tensor, expected: torch.Tensor, *, controls: bool = False, context: str = "") -> None:
    """Fails with the worst element unless `actual` is within its dtype's tolerance of the float64 `expected`.

    With `controls`, also proves that the comparison would have rejected a zeroed, a shifted and a truncated
    result.
    """
    mismatch = numerics.compare(actual, expected)
    assert mismatch is None, f"{context}: {mismatch}" if context else str(mismatch)
    if controls:
        for name, wrong in numerics.negative_controls(actual):
            assert numerics.compare(wrong, expected) is not None, f"a {name} result passes as right"


def on_device(x: torch.Tensor) -> torch.Tensor:
    """`x` on the device under test, with its strides where that is the CPU."""
    return x.to(run_device())


def bits(x: torch.Tensor) -> torch.Tensor:
    """The bit pattern of a float tensor, for exact comparisons that tell -0 from 0 and NaN from NaN."""
    same_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    return x.contiguous().view(same_size)


def spec_of(x: torch.Tensor) -> TensorSpec:
    """The call spec's description of a tensor."""
    name = str(x.dtype).removeprefix("torch.")
    return TensorSpec(str(x.device), name, tuple(x.shape), tuple(x.stride()), x.element_size())


def build(kernel: type[Kernel], call: CallSpec, **config: Any) -> Callable[..., None]:
    """Compiles `kernel` for `call`, with tile parameters overridden by `config`, and binds it."""
    chosen = {**kernel.default_config(call), **config}
    refusal = kernel.refusal(call)
    assert refusal is None, refusal
    entries = {name: jit.get_entry(program) for name, program in kernel.programs(call, chosen).items()}
    return kernel(chosen, entries).bind(call)


def at_threads(count: int, run: Callable[[], torch.Tensor]) -> torch.Tensor:
    """The result of `run` with torch limited to `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        return run()
    finally:
        torch.set_num_threads(before)
