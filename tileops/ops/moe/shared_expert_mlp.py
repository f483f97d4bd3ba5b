"""The gated MLP that every token passes through, beside its routed experts."""

from __future__ import annotations

from typing import ClassVar

import torch

from tileops.ops.base import Op
from tileops.ops.dtypes import tensor_core_key
from tileops.ops.elementwise.gated import SiluAndMulFwdOp
from tileops.ops.gemm.gemm import GemmFwdOp


class SharedExpertMLPFwdOp(Op):
    """The MLP of a shared expert, a SwiGLU block: ``output = (silu(g) * u) @ w_down^T``, where ``g`` and ``u`` are the
    halves of ``hidden_states @ w_gate_up^T``.

    Follows ``DeepseekV2MLP`` of vLLM on one device. A composite of two matrix multiplications and the activation: what
    these can do, gradients and packed weights among it, it can do as well. The intermediate results are rounded to the
    dtype of the inputs.

    Args:
        target: which set of kernels serves the stages; None decides by the device of each call.

    Call:
        ``op(hidden_states, w_gate_up, w_down)``

        - hidden_states: ``[T, H]``, float16, bfloat16 or float32, contiguous.
        - w_gate_up: ``[2 S, H]``, dtype of `hidden_states`, contiguous: the rows of the gate, then those of the value.
        - w_down: ``[H, S]``, dtype of `hidden_states`, contiguous.

        Returns `output`: ``[T, H]``, dtype of `hidden_states`, contiguous.

    Raises:
        CheckError: a tensor violates the manifest entry; the message names the declaration.

    Example:
        >>> mlp = SharedExpertMLPFwdOp()
        >>> y = mlp(x, w_gate_up, w_down)
    """

    delegate_types: ClassVar = {"gate_up": GemmFwdOp, "activation": SiluAndMulFwdOp, "down": GemmFwdOp}

    def __init__(self, *, target: str | None = None) -> None:
        super().__init__(target=target)
        self._gate_up = self.delegate_for("gate_up")
        self._activation = self.delegate_for("activation")
        self._down = self.delegate_for("down")

    def forward(  # type: ignore[override]
        self, hidden_states: torch.Tensor, w_gate_up: torch.Tensor, w_down: torch.Tensor
    ) -> torch.Tensor:
        """The same as calling the op."""
        return self._down(self._activation(self._gate_up(hidden_states, w_gate_up)), w_down)

    def roof_key(self) -> str:
        """Tensor cores for the dtypes that they multiply, by the last call; CUDA cores for float32."""
        return tensor_core_key(self.dtype)
