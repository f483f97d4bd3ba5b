"""Calls of the matrix multiplication kernels."""

from __future__ import annotations

from dataclasses import dataclass

from tileops.kernels.base import CallSpec, KernelInterface, TensorSpec


@dataclass(frozen=True)
class GemmCall(CallSpec):
    """``d = op(a) @ op(b)`` where ``op`` transposes the operands whose flag is set. M, N or K may be 0 only
    for d without elements (then nothing runs) or K == 0 (d is all zero).

    Attributes:
        a: ``[M, K]``, or ``[K, M]`` with `trans_a`; any strides.
        b: ``[K, N]``, or ``[N, K]`` with `trans_b`; any strides. Where `packed` is set this still describes
            the caller's tensor, but the launch receives the pack's buffer in its place.
        d: ``[M, N]``, contiguous, dtype of `a`.
        trans_a: `a` is stored transposed.
        trans_b: `b` is stored transposed (the layout of ``nn.Linear.weight``).
        packed: name of the layout in which `b` was packed by `tileops.gemm.pack`, or None for the caller's
            own tensor.
    """

    a: TensorSpec
    b: TensorSpec
    d: TensorSpec
    trans_a: bool
    trans_b: bool
    packed: str | None = None

    @property
    def mnk(self) -> tuple[int, int, int]:
        """Extents M, N, K."""
        m, k = self.a.shape[::-1] if self.trans_a else self.a.shape
        return m, self.d.shape[1], k

    @property
    def a_strides(self) -> tuple[int, int]:
        """Steps of ``op(a)`` along M and K, in elements."""
        first, second = self.a.strides
        return (second, first) if self.trans_a else (first, second)

    @property
    def b_strides(self) -> tuple[int, int]:
        """Steps of ``op(b)`` along K and N, in elements."""
        first, second = self.b.strides
        return (second, first) if self.trans_b else (first, second)


class GemmFwdInterface(KernelInterface):
    """``launch(a, b, d)``; `b` is the pack's buffer where the call is packed."""

    call_spec = GemmCall
    tensors = ("a", "b", "d")
