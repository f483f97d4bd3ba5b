"""Operators that stand for others whose code differs in one function."""

from __future__ import annotations

from tileops.ops.elementwise.family import PointwiseOp
from tileops.testing import calls

#: Of the pointwise operators, which differ in nothing but a scalar function: one with every combination of arity,
#: numbers and choices, results of another dtype, optional operands and writing in place.
REPRESENTATIVES = {
    *("AddFwdOp", "ClampTensorFwdOp", "EqFwdOp", "GeluFwdOp", "LeakyReluFwdOp", "MaskedFillScalarFwdOp"),
    *("PreluFwdOp", "ReciprocalFwdOp", "RoundFwdOp", "WhereFwdOp"),
}


def repeats(name: str) -> bool:
    """Whether an operator repeats a representative."""
    return name not in REPRESENTATIVES and issubclass(calls.op_class(name), PointwiseOp)
