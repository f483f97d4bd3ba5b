"""YAML and caller values, converted to what a kind declares: a tuple for Shape and tuple[...], a list for
Seq, a name for a dtype.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from tileops.errors import ManifestError
from tileops.manifest import adts
from tileops.manifest import kinds as k

_WORDS = {k.INT: "an integer", k.REAL: "a float", k.BOOL: "True or False", k.STRING: "a string"}


class ValueMismatch(ValueError):
    """A value is not of its kind; the text says what was expected."""


def convert(value: Any, kind: k.Kind, dtype_name: Callable[[Any], str | None] | None = None) -> Any:
    """`value` as the Python value of `kind`.

    Ints are accepted from any type with ``__index__`` except bool, sequences from lists and tuples, and
    floats also from ints.

    Args:
        value: what YAML, or a caller, gave.
        kind: what it has to be.
        dtype_name: name of a dtype object, None where the value is no dtype. Without it, dtypes are given by
            name.

    Raises:
        ValueMismatch: the value is not of the kind.
    """
    match kind:
        case k.Bool():
            if isinstance(value, bool):
                return value
            raise ValueMismatch(f"expected True or False, got {value!r}")
        case k.Int():
            return _integer(value)
        case k.Dim():
            number = _integer(value)
            if number < 0:
                raise ValueMismatch(f"expected a non-negative integer, got {value!r}")
            return number
        case k.Real():
            return _real(value)
        case k.NoneKind():
            if value is None:
                return None
            raise ValueMismatch(f"expected None, got {value!r}")
        case k.Str(literals=literals):
            if isinstance(value, str) and (literals is None or value in literals):
                return str.__str__(value)  # plain, where it is a member of an enum or a NumPy string
            wanted = "a string" if literals is None else "one of " + ", ".join(map(repr, literals))
            raise ValueMismatch(f"expected {wanted}, got {value!r}")
        case k.DType(names=names):
            name = dtype_name(value) if dtype_name is not None else value if isinstance(value, str) else None
            if name in names:
                return name
            raise ValueMismatch(f"expected one of the dtypes {', '.join(names)}, got {value!r}")
        case k.Shape():
            return tuple(_elements(value, k.DIM, None, dtype_name))
        case k.Seq(element=element, length=length, container=container):
            items = _elements(value, element, length, dtype_name)
            return tuple(items) if container == "tuple" else items
        case k.Maybe(inner=inner):
            if value is None:
                return None
            try:
                return convert(value, inner, dtype_name)
            except ValueMismatch as error:
                raise ValueMismatch(f"{error} (None is accepted too)") from None
        case k.Union(members=members):
            return _first_member(value, members, dtype_name)
        case k.ADT():
            return _adt_value(value, kind, dtype_name is None)
        case k.Opaque(name="Number"):
            return value if isinstance(value, bool) else _first_member(value, (k.INT, k.REAL), dtype_name)
    return value


def _integer(value: Any) -> int:
    if isinstance(value, bool):
        raise ValueMismatch(f"expected an integer, got {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueMismatch(f"expected an integer, got {value!r}") from None
    if not -(1 << 63) <= number < 1 << 63:  # a kernel takes 64 bits
        raise ValueMismatch(f"expected an integer of 64 bits, got {value!r}")
    return number


def _real(value: Any) -> float:
    if isinstance(value, bool | str):
        raise ValueMismatch(f"expected a float, got {value!r}")
    if isinstance(value, float):
        return float(value)
    try:
        return float(operator.index(value))
    except TypeError:
        pass
    except OverflowError:
        raise ValueMismatch(f"expected a float, got the integer {value!r}, which is too large") from None
    if hasattr(value, "dtype") and getattr(value, "shape", None) == () and hasattr(value, "__float__"):
        number = float(value)  # a NumPy scalar such as np.float32(1e-5)
        if not math.isnan(number) or value != value:
            return number
    raise ValueMismatch(f"expected a float, got {value!r}")


def _adt_value(value: Any, kind: k.ADT, literals: bool) -> adts.ADTValue:
    """A value of `kind` from an object, from an `ADTValue` or, with `literals`, from a manifest literal."""
    wanted = " or ".join(item.python.rpartition(".")[2] for item in kind.constructors)
    try:
        if isinstance(value, adts.ADTValue) and value.adt == kind.name:
            constructor = kind.constructor(value.kind)
            if constructor is not None:
                return adts.make(kind, constructor, dict(value.fields), convert)
        elif literals and isinstance(value, dict) and len(value) == 1:
            name, fields = next(iter(value.items()))
            constructor = kind.constructor(name) if isinstance(name, str) else None
            if constructor is None:
                known = ", ".join(item.name for item in kind.constructors)
                raise ValueMismatch(f"{kind} has no constructor {name!r}; it has {known}")
            if fields is not None and not isinstance(fields, dict):
                raise ValueMismatch(f"the fields of {name} are a mapping, got {fields!r}")
            return adts.make(kind, constructor, fields or {}, convert)
        else:
            found = adts.from_object(value, kind, convert)
            if found is not None:
                return found
    except ValueMismatch:
        raise
    except (ValueError, AttributeError, ManifestError) as error:
        raise ValueMismatch(str(error)) from None
    if literals:
        wanted = "{constructor: {field: value}} with one of " + ", ".join(item.name for item in kind.constructors)
    raise ValueMismatch(f"expected {wanted}, got {value!r}")


def _elements(
    value: Any, element: k.Kind, length: int | None, dtype_name: Callable[[Any], str | None] | None
) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ValueMismatch(f"expected a list or tuple, got {value!r}")
    if length is not None and len(value) != length:
        raise ValueMismatch(f"expected {length} elements, got {value!r}")
    try:
        return [convert(item, element, dtype_name) for item in value]
    except ValueMismatch as error:
        raise ValueMismatch(f"{error} in {value!r}") from None


def _first_member(value: Any, members: tuple[k.Kind, ...], dtype_name: Callable[[Any], str | None] | None) -> Any:
    for member in members:
        if (
            isinstance(member, k.Real)
            and k.INT in members
            and not isinstance(value, float)
            and hasattr(value, "__index__")
        ):
            continue  # an int stays an int where both are accepted
        try:
            return convert(value, member, dtype_name)
        except ValueMismatch:
            continue
    if k.INT in members and isinstance(value, int) and not isinstance(value, bool):
        _integer(value)  # says what is wrong with an int: it is too large
    raise ValueMismatch(f"expected {' or '.join(_WORDS.get(member, str(member)) for member in members)}, got {value!r}")
