"""What the elementwise templates of both devices share: how an operator states its scalar function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tileops.kernels.base import DTYPES, Kernel
from tileops.kernels.elementwise.call_spec import PointwiseCall, Scalar

#: Short names of the dtypes that are computed with in float32.
FLOATS = frozenset({"f32", "bf16", "f16"})
#: Bytes of an element, by short name.
SIZES = {short: size for size, short in DTYPES.values()}


def _value_dtype(operands: Sequence[str], output: str) -> str:
    """The dtype of the values, not of a mask that selects among them."""
    return output if output in operands or not operands else operands[0]


def whole(value: float | int | bool, dtype: str) -> int:
    """A scalar parameter in a dtype of integers or booleans, as PyTorch converts it: negative ones wrap in uint8."""
    if dtype == "b1":
        return int(bool(value))
    return int(value) & 0xFF if dtype == "u8" else int(value)


class ElementwiseKernel(Kernel):
    """Base of the elementwise kernels. A subclass adds its interface and states the operator.

    Attributes:
        numbered: the scalar function gets the element's place in the contiguous output first, int64.
    """

    numbered: ClassVar[bool] = False

    @classmethod
    def function(cls, call: Any) -> str:
        """Name of the scalar function: tensor operands first, then scalar parameters."""
        raise NotImplementedError(f"{cls.__name__} does not name its scalar function: define function(call)")

    @classmethod
    def operands(cls, call: Any) -> tuple[Any, ...]:
        """The tensor operands in the order of the function's arguments, None where one is absent."""
        raise NotImplementedError(f"{cls.__name__} does not state its operands: define operands(call)")

    @classmethod
    def scalars(cls, call: Any) -> tuple[Scalar, ...]:
        """Run-time scalar parameters, after the operands; never compiled in."""
        return ()

    @classmethod
    def scalar_dtypes(cls, call: Any) -> tuple[str, ...]:
        """Dtypes in whose kinds the scalars arrive."""
        present = [operand.dtype for operand in cls.known_operands(call) if operand is not None]
        return (_value_dtype(present, call.output.short),) * len(cls.scalars(call))

    @classmethod
    def options(cls, call: Any) -> tuple[tuple[str, Any], ...]:
        """Keyword arguments of the scalar function, compiled in."""
        return ()

    @classmethod
    def known_operands(cls, call: Any) -> tuple[Any, ...]:
        """`operands`, from where they may have been kept."""
        return cls.operands(call)


class Pointwise:
    """The scalar function that the call names, at every index of the output.

    Attributes:
        operand: how the template of the device describes a tensor.
    """

    operand: ClassVar[Any]

    @classmethod
    def function(cls, call: PointwiseCall) -> str:
        return call.function

    @classmethod
    def operands(cls, call: PointwiseCall) -> tuple[Any, ...]:
        of, output = cls.operand.of, call.output
        return tuple(None if spec is None else of(spec, output, place) for place, spec in enumerate(call.operands))

    @classmethod
    def scalars(cls, call: PointwiseCall) -> tuple[Scalar, ...]:
        return call.scalars

    @classmethod
    def scalar_dtypes(cls, call: PointwiseCall) -> tuple[str, ...]:
        present = [spec.short for spec in call.operands if spec is not None]
        return (_value_dtype(present, call.output.short),) * len(call.scalars)

    @classmethod
    def options(cls, call: PointwiseCall) -> tuple[tuple[str, Any], ...]:
        return call.options


class Dropout(Pointwise):
    """Random bits by the number of the element: the same on every device, in every layout, on any number of threads."""

    numbered = True

    @classmethod
    def scalar_dtypes(cls, call: PointwiseCall) -> tuple[str, ...]:
        return ("i32", "f32", "i32", "i32")[: len(call.scalars)]
