"""The errors of checks: one sentence for what was seen, one for the remedy. Shared by generated checks and
abstract unification.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tileops.errors import CheckError


def _shape(shape: Iterable[Any]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _values(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name}={_shape(value) if isinstance(value, tuple) else repr(value)}" for name, value in values.items()
    )


def declaration(where: str) -> str:
    """A declaration's path as errors show it: ``inputs.x.dtype``."""
    return where.removeprefix("signature.")


class Failures:
    """Builds the errors of one operator. Each method returns the error; the caller raises it.

    Args:
        op: name of the operator.
    """

    def __init__(self, op: str) -> None:
        self.op = op

    def _error(self, where: str, message: str) -> CheckError:
        return CheckError(self.op, declaration(where), message)

    # --- construction ---

    def missing_parameter(self, name: str) -> CheckError:
        return self._error(f"params.{name}", f"the parameter has no default; pass {name}=...")

    def unknown_parameter(self, name: str, known: Iterable[str]) -> CheckError:
        return self._error("params", f"there is no parameter {name!r}; the parameters are {', '.join(known) or 'none'}")

    def parameter(self, name: str, type_text: str, cause: str) -> CheckError:
        return self._error(f"params.{name}", f"{cause}; the type is {type_text}")

    # --- presence ---

    def missing_tensor(self, where: str, name: str, why: str | None = None) -> CheckError:
        reason = "it is required" if why is None else f"it is required where {why}"
        return self._error(where, f"{name} is None, but {reason}; pass a tensor")

    def unexpected_tensor(self, where: str, name: str, condition: str) -> CheckError:
        return self._error(
            f"{where}.optional",
            f"{name} was passed, but it belongs to calls where {condition}; leave it out or meet the condition",
        )

    def restriction(self, where: str, source: str, values: Mapping[str, Any]) -> CheckError:
        return self._error(where, f"{source!r} does not hold for {_values(values)}; change one of them")

    def count(self, expected: int, got: int) -> CheckError:
        return self._error("inputs", f"expected {expected} tensors (None where absent), got {got}")

    # --- one tensor ---

    def not_a_tensor(self, where: str, name: str, value: Any) -> CheckError:
        return self._error(where, f"{name} must be a torch.Tensor, got {type(value).__name__}; pass a tensor")

    def dtype(self, where: str, name: str, got: Any, allowed: Iterable[Any], origin: str | None = None) -> CheckError:
        names = " or ".join(_dtype(item) for item in allowed)
        source = f", the dtype of {origin}" if origin else ""
        return self._error(
            f"{where}.dtype",
            f"{name} has dtype {_dtype(got)}, expected {names}{source}; convert it with .to(...)",
        )

    def device(self, where: str, name: str, got: Any, other: str, expected: Any) -> CheckError:
        return self._error(where, f"{name} is on {got} but {other} is on {expected}; move both to one device")

    def not_on_cpu(self, where: str, name: str, got: Any) -> CheckError:
        return self._error(f"{where}.device", f"{name} is on {got}, expected cpu; pass {name}.cpu()")

    def not_contiguous(self, where: str, name: str, strides: Any) -> CheckError:
        return self._error(f"{where}.contiguous", f"{name} has strides {_shape(strides)}; pass {name}.contiguous()")

    def rank(self, where: str, name: str, shape: Any, text: str, axes: int, at_least: bool) -> CheckError:
        wanted = f"at least {axes}" if at_least else str(axes)
        plural = "axis" if axes == 1 else "axes"
        has = "1 axis" if len(shape) == 1 else f"{len(shape)} axes"
        return self._error(
            f"{where}.shape",
            f"{name} has shape {_shape(shape)} with {has}, expected {wanted} {plural} as {text}; reshape it",
        )

    def axis(
        self,
        where: str,
        name: str,
        shape: Any,
        axis: int,
        text: str,
        expr: str,
        expected: Any,
        origin: str | None,
    ) -> CheckError:
        known = f"{expr} = {expected}" if expr != str(expected) else str(expected)
        source = f" from {origin}" if origin else ""
        return self._error(
            f"{where}.shape",
            f"{name} has shape {_shape(shape)}; axis {axis} is {shape[axis]} where {text} needs "
            f"{known}{source}; pass sizes that agree",
        )

    def segment(
        self, where: str, name: str, shape: Any, text: str, expr: str, expected: Any, origin: str | None
    ) -> CheckError:
        source = f" from {origin}" if origin else ""
        return self._error(
            f"{where}.shape",
            f"{name} has shape {_shape(shape)}, which does not match {text} with {expr} = "
            f"{_shape(expected)}{source}; pass sizes that agree",
        )

    def affine(self, where: str, name: str, shape: Any, axis: int, text: str, expr: str) -> CheckError:
        return self._error(
            f"{where}.shape",
            f"{name} has shape {_shape(shape)}; axis {axis} is {shape[axis]}, which {expr} in "
            f"{text} cannot be; pass a size of that form",
        )

    # --- relations ---

    def combo(self, where: str, names: Sequence[str], got: Sequence[str], rows: Iterable[Sequence[str]]) -> CheckError:
        listed = "; ".join(", ".join(f"{name}={value}" for name, value in zip(names, row, strict=True)) for row in rows)
        seen = ", ".join(f"{name}={value}" for name, value in zip(names, got, strict=True))
        return self._error(where, f"the dtypes {seen} are not supported together; use one of: {listed}")

    def rule(self, where: str, source: str, values: Mapping[str, Any]) -> CheckError:
        return self._error(where, f"{source!r} does not hold for {_values(values)}; pass values for which it does")

    def negative(self, where: str, source: str, value: Any) -> CheckError:
        shown = _shape(value) if isinstance(value, list | tuple) else value
        return self._error(
            where,
            f"{source} is {shown}, but the size of an axis is not negative; pass values for which it is not",
        )

    def undefined(self, where: str, cause: object) -> CheckError:
        text = str(cause).removeprefix(f"{where}: ")
        return self._error(where, f"{text}; pass values for which it is defined")
