"""The gradients of SwiGLU's activation at one element, on every device."""

from __future__ import annotations

from typing import Any

from tileops.jit import lang


def gradients(grad: Any, gate: Any, up: Any) -> tuple[Any, Any]:
    """The gradients of ``silu(gate) * up`` with respect to `gate` and `up`, times `grad`."""
    s = lang.sigmoid(gate)
    return grad * up * (s * lang.fma(gate, 1.0 - s, 1.0)), grad * (gate * s)


def gate_gradient(grad: Any, gate: Any, up: Any) -> Any:
    """The first of `gradients`."""
    return gradients(grad, gate, up)[0]


def up_gradient(grad: Any, gate: Any) -> Any:
    """The second of `gradients`."""
    return gradients(grad, gate, 1.0)[1]
