"""Matrix multiplication."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from tileops.kernels.gemm.call_spec import GemmCall, GemmFwdInterface
from tileops.kernels.gemm.gemm_cpu import GemmCpuKernel
from tileops.ops.base import Op
from tileops.ops.dtypes import tensor_core_key
from tileops.ops.facts import CallFacts
from tileops.ops.gemm.gradient import gemm_gradient
from tileops.ops.gemm.pack import find_pack
from tileops.ops.gradients import Gradient


class GemmFwdOp(Op):
    """Matrix multiplication: ``d = op(a) @ op(b)``, where ``op`` transposes the operand whose flag is set.

    Follows ``torch.matmul`` on two matrices; sums are float32, rounded once. The defaults multiply by a
    weight as ``torch.nn.Linear`` stores it. While a `PackedWeight` of `b` lives (``tileops.gemm.pack(b)``),
    calls with that very tensor use the pack.

    Args:
        trans_a: `a` is passed as ``[K, M]`` instead of ``[M, K]``.
        trans_b: `b` is passed as ``[N, K]`` instead of ``[K, N]``.
        target: which set of kernels serves the op; None decides by the device of each call.

    Call:
        ``op(a, b)``

        - a: ``[M, K]`` (or ``[K, M]``), float16, bfloat16 or float32, any strides.
        - b: ``[N, K]`` (or ``[K, N]``), dtype of `a`, any strides.

        Returns `d`: ``[M, N]``, dtype of `a`, contiguous; zeros where K is 0.

    Raises:
        CheckError: the operands' K differ, or another declaration of the manifest entry is violated; the
            message names it.

    Example:
        >>> linear = GemmFwdOp()
        >>> y = linear(x, weight)
    """

    kernel_types: ClassVar = {"cpu": GemmCpuKernel}
    interfaces: ClassVar = {"gemm": GemmFwdInterface}
    gradient = Gradient(gemm_gradient, saves=("a", "b"))
    _packed_input = "b"

    def __init__(self, trans_a: bool = False, trans_b: bool = True, *, target: str | None = None) -> None:
        self.trans_a = trans_a
        self.trans_b = trans_b
        super().__init__(target=target)

    def _call_token(self, a: torch.Tensor, b: torch.Tensor) -> Any:
        """What the living pack of `b` that this op can use holds, or None."""
        found = find_pack(b, self.trans_b)
        return None if found is None else found.packing

    def roof_key(self) -> str:
        """Tensor cores for the dtypes that they multiply, by the last call; CUDA cores for float32."""
        return tensor_core_key(self.dtype)

    def _call_spec(self, facts: CallFacts) -> GemmCall:
        return GemmCall(
            a=facts["a"],
            b=facts["b"],
            d=facts["d"],
            trans_a=self.trans_a,
            trans_b=self.trans_b,
            packed=facts.packed,
            device=facts.device,
        )
