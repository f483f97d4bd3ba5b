"""The dtypes that a manifest entry may name: their sizes, categories and value ranges. No torch here: a dtype
is its name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class DType:
    """Facts of one dtype.

    Attributes:
        name: the name of the torch dtype, for example "bfloat16".
        bits: size of one element.
        category: "bool", "int", "float" or "complex".
        low: smallest finite value (of a real or imaginary part).
        high: largest finite value.
        has_inf: infinities exist.
    """

    name: str
    bits: int
    category: str
    low: float
    high: float
    has_inf: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.bits // 8


def _integer(name: str, bits: int, *, signed: bool) -> DType:
    if signed:
        return DType(name, bits, "int", -(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    return DType(name, bits, "int", 0, (1 << bits) - 1)


def _floating(name: str, bits: int, high: float, *, has_inf: bool = True, category: str = "float") -> DType:
    return DType(name, bits, category, -high, high, has_inf)


_FLOAT32_MAX = (2 - 2.0**-23) * 2.0**127
_FLOAT64_MAX = (2 - 2.0**-52) * 2.0**1023

#: Every dtype by name, in the order in which documentation lists them.
DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        DType("bool", 8, "bool", 0, 1),
        _integer("uint8", 8, signed=False),
        _integer("int8", 8, signed=True),
        _integer("int16", 16, signed=True),
        _integer("int32", 32, signed=True),
        _integer("int64", 64, signed=True),
        _floating("float8_e4m3fn", 8, 448.0, has_inf=False),
        _floating("float8_e5m2", 8, 57344.0),
        _floating("float16", 16, 65504.0),
        _floating("bfloat16", 16, (2 - 2.0**-7) * 2.0**127),
        _floating("float32", 32, _FLOAT32_MAX),
        _floating("float64", 64, _FLOAT64_MAX),
        _floating("complex64", 64, _FLOAT32_MAX, category="complex"),
        _floating("complex128", 128, _FLOAT64_MAX, category="complex"),
    )
}


def represents(dtype: DType, value: bool | int | float) -> bool:
    """Whether torch converts the Python scalar `value` to `dtype` without reporting an overflow.

    As in torch, a negative int may wrap to an unsigned dtype as long as its magnitude fits, a float may be
    truncated to an int, an infinity fits where the dtype has one, and every number has a truth value.
    """
    if isinstance(value, bool) or dtype.category == "bool":
        return True
    if isinstance(value, int):
        if dtype.low == 0 and value < 0:
            return -value <= dtype.high
        return dtype.low <= value <= dtype.high
    if math.isnan(value):
        return dtype.category in ("float", "complex")
    if math.isinf(value):
        return dtype.has_inf
    return dtype.low <= value <= dtype.high
