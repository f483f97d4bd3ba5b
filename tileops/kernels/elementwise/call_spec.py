"""Calls of the elementwise kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tileops.kernels.base import CallSpec, KernelInterface, TensorSpec

Scalar = float | int | bool | None


@dataclass(frozen=True, kw_only=True)
class PointwiseCall(CallSpec):
    """``output[i] = function(*operands[i], *scalars, **options)`` at every index of the output.

    Attributes:
        function: name of the scalar function, see `tileops.kernels.elementwise.functions`.
        output: any dtype, any strides; the same memory as the first operand in a call that works in place.
        scalars: numeric parameters, in the order of the function's arguments; None for an absent one. Run-time
            arguments, never compiled in.
        options: names and values of the parameters that are compiled in.
    """

    operand_names: ClassVar[tuple[str, ...]] = ()

    function: str
    output: TensorSpec
    scalars: tuple[Scalar, ...] = ()
    options: tuple[tuple[str, Scalar | str], ...] = ()

    @property
    def operands(self) -> tuple[TensorSpec | None, ...]:
        """The tensor operands, each of a shape that broadcasts to the output's; None where one is absent."""
        return tuple([getattr(self, name) for name in self.operand_names])


@dataclass(frozen=True, kw_only=True)
class UnaryCall(PointwiseCall):
    """A function of one tensor."""

    operand_names = ("a",)

    a: TensorSpec


@dataclass(frozen=True, kw_only=True)
class BinaryCall(PointwiseCall):
    """A function of two tensors."""

    operand_names = ("a", "b")

    a: TensorSpec
    b: TensorSpec


@dataclass(frozen=True, kw_only=True)
class TernaryCall(PointwiseCall):
    """A function of three tensors, of which `b` or `c` may be absent."""

    operand_names = ("a", "b", "c")

    a: TensorSpec
    b: TensorSpec | None
    c: TensorSpec | None


class UnaryFwdInterface(KernelInterface):
    """``launch(a, output)``."""

    call_spec = UnaryCall
    tensors = ("a", "output")


class BinaryFwdInterface(KernelInterface):
    """``launch(a, b, output)``."""

    call_spec = BinaryCall
    tensors = ("a", "b", "output")


class TernaryFwdInterface(KernelInterface):
    """``launch(a, b, c, output)``."""

    call_spec = TernaryCall
    tensors = ("a", "b", "c", "output")


@dataclass(frozen=True, kw_only=True)
class GatedCall(CallSpec):
    """``output = activation(x[:, :N]) * x[:, N:]``.

    Attributes:
        function: name of the scalar function of gate and value.
        x: ``[M, 2 N]``, any strides.
        output: ``[M, N]``, dtype of `x`, contiguous.
    """

    function: str
    x: TensorSpec
    output: TensorSpec


class GatedFwdInterface(KernelInterface):
    """``launch(x, output)``."""

    call_spec = GatedCall
    tensors = ("x", "output")


@dataclass(frozen=True, kw_only=True)
class AlibiCall(CallSpec):
    """``output[h, i, j] = -slope_h * |i - j|``.

    Attributes:
        output: ``[H, S, S]``, contiguous.
    """

    output: TensorSpec

    @property
    def regular_heads(self) -> int:
        """How many heads have slopes in one geometric sequence: the largest power of two that there are heads for."""
        return 1 << (self.output.shape[0].bit_length() - 1)


class AlibiFwdInterface(KernelInterface):
    """``launch(output)``."""

    call_spec = AlibiCall
    tensors = ("output",)


#: Base of the frequencies of sinusoidal positions (Vaswani et al., "Attention Is All You Need", 2017).
SINUSOIDAL_BASE = 10000.0


@dataclass(frozen=True, kw_only=True)
class SinusoidalCall(CallSpec):
    """Sines and cosines of the position, alternating along a row: pair i turns by
    ``position * SINUSOIDAL_BASE ** (-2 i / D)``.

    Attributes:
        output: ``[S, D]``, D even, contiguous.
    """

    output: TensorSpec


class SinusoidalFwdInterface(KernelInterface):
    """``launch(output)``."""

    call_spec = SinusoidalCall
    tensors = ("output",)
