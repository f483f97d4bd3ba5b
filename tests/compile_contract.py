"""Cold ``torch.compile(fullgraph=True)``: one registration for each op that computes by kernels of its own.

A registration gives the construction parameters and the tensors of one small call. The tests take every
registered op through a compile whose first call is also the op's first call, eager never having run, and
compare with the op's reference. The pointwise operators, which are made from their entries, are registered by
being there: `pointwise_calls` has one of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tileops.manifest.workload import Call
from tileops.ops.elementwise.family import PointwiseOp
from tileops.testing import calls


@dataclass(frozen=True)
class ColdCompile:
    """One op's call under ``torch.compile``.

    Attributes:
        op: name of the op.
        tensors: makes the tensors in forward order, None where absent, on the device given.
        params: construction parameters.
        dynamic: the axis of the first tensor that may vary without compiling again, or None.
    """

    op: str
    tensors: Callable[[torch.device], tuple[torch.Tensor | None, ...]]
    params: dict[str, Any] = field(default_factory=dict)
    dynamic: int | None = 0


def _randn(*shape: int) -> Callable[[torch.device], torch.Tensor]:
    return lambda device: torch.randn(*shape, device=device)


def _tensors(*makers: Callable[[torch.device], torch.Tensor | None]) -> Callable[[torch.device], tuple]:
    return lambda device: tuple(make(device) for make in makers)


COLD_COMPILES = (
    ColdCompile("RMSNormFwdOp", _tensors(_randn(6, 64), _randn(64)), {"normalized_shape": (64,), "eps": 1e-6}),
    ColdCompile(
        "RMSNormBwdOp",
        _tensors(_randn(6, 64), _randn(6, 64), _randn(64)),
        {"normalized_shape": (64,), "eps": 1e-6},
        dynamic=None,
    ),
    ColdCompile("GemmFwdOp", _tensors(_randn(6, 48), _randn(40, 48))),
    ColdCompile("RoPEFwdOp", _tensors(_randn(2, 6, 3, 32)), {"rope_layout": "interleaved"}, dynamic=1),
    ColdCompile("RoPELlama31FwdOp", _tensors(_randn(2, 6, 3, 32)), dynamic=1),
    ColdCompile("YaRNFwdOp", _tensors(_randn(2, 6, 3, 32)), {"scale": 4.0}, dynamic=1),
    ColdCompile(
        "LongRoPEFwdOp",
        _tensors(_randn(2, 6, 3, 32)),
        {"scale": 32.0, "rescale_factors": torch.linspace(1.0, 9.0, 16)},
        dynamic=1,
    ),
    ColdCompile(
        "RoPENeoxPositionIdsFwdOp",
        _tensors(_randn(6, 3, 32), lambda device: torch.arange(6, device=device) * 3),
        {"max_position": 64},
        dynamic=None,
    ),
    ColdCompile("GQADenseFwdOp", _tensors(_randn(1, 6, 4, 32), _randn(1, 9, 2, 32), _randn(1, 9, 2, 32)), dynamic=None),
    ColdCompile("SiluAndMulFwdOp", _tensors(_randn(6, 64))),
    ColdCompile("GeluAndMulFwdOp", _tensors(_randn(6, 64)), dynamic=None),
    ColdCompile("GeluTanhAndMulFwdOp", _tensors(_randn(6, 64)), dynamic=None),
    ColdCompile("SiluAndMulBwdOp", _tensors(_randn(6, 32), _randn(6, 64)), dynamic=None),
    ColdCompile("AlibiFwdOp", _tensors(), {"seq_len": 5, "num_heads": 6}, dynamic=None),
    ColdCompile("SinusoidalFwdOp", _tensors(), {"seq_len": 5, "d_model": 6}, dynamic=None),
    ColdCompile("AddFwdOp", _tensors(_randn(6, 64), _randn(1, 64)), {"alpha": 2}),
    ColdCompile("LeakyReluFwdOp", _tensors(_randn(6, 64)), {"negative_slope": 0.5}),
    ColdCompile("LerpTensorFwdOp", _tensors(_randn(6, 64), _randn(1, 64), _randn(6, 1)), dynamic=None),
)


def pointwise_calls() -> list[Call]:
    """A small call of each pointwise operator."""
    return [calls.one_of_each(name)[0] for name in calls.operators() if issubclass(calls.op_class(name), PointwiseOp)]
