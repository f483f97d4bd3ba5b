"""Algebraic data types: parameters with fields, defined once in `spec/types.yaml` and shared by entries.

    adts:
      MGroupedLayout:
        sum:
          masked: {python: tileops.ops.moe.contracts.MaskedLayoutSpec, fields: {max_m: Dim}}

Here a value is an `ADTValue` of plain data, so that a reader without the operators' code can hold one. An operator
takes an object of the constructor's Python class: its ``kind`` is the constructor's name, each field an attribute
of the same name, and an enum field's value that attribute's ``.value``.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from tileops.errors import ManifestError
from tileops.manifest import kinds as k
from tileops.manifest import loading
from tileops.manifest.expr import Expr, Scope, evaluate, infer, parse

TYPES_KEYS = ("adts",)
ADT_KEYS = ("sum",)
CONSTRUCTOR_KEYS = ("python", "fields", "invariant")
ENUM_KEYS = ("type", "python")
#: Names that mean something else on a value.
RESERVED_FIELDS = ("kind", "value", "adt", "fields")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PATH = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+")


@dataclass(frozen=True)
class ADTValue:
    """A value of an algebraic data type, as expressions read it.

    Attributes:
        adt: the type.
        kind: the constructor.
        fields: ``(name, value)`` of its fields, in order; enum fields by their literal.
    """

    adt: str
    kind: str
    fields: tuple[tuple[str, Any], ...] = ()

    def __getattr__(self, name: str) -> Any:
        for field, value in object.__getattribute__(self, "fields"):
            if field == name:
                return value
        raise AttributeError(f"a {self.kind} of {self.adt} has no field {name!r}")

    def __reduce__(self) -> Any:
        return ADTValue, (self.adt, self.kind, self.fields)

    def literal(self) -> dict[str, dict[str, Any]]:
        """As a workload row writes it."""
        return {self.kind: dict(self.fields)}

    def __repr__(self) -> str:
        return f"{self.kind}({', '.join(f'{name}={value!r}' for name, value in self.fields)})"


@dataclass(frozen=True)
class ADTPoint:
    """What discriminants fix of a value: the constructor and its finite fields."""

    kind: str
    fields: tuple[tuple[str, Any], ...] = ()

    def __repr__(self) -> str:
        return f"{self.kind}({', '.join(f'{name}={value!r}' for name, value in self.fields)})"


def points(adt: k.ADT) -> tuple[ADTPoint, ...]:
    """Every constructor with every combination of its finite fields, in order of declaration."""
    found: list[ADTPoint] = []
    for constructor in adt.constructors:
        rows: list[tuple[tuple[str, Any], ...]] = [()]
        for field in constructor.fields:
            if field.finite is not None:
                rows = [(*row, (field.name, value)) for row in rows for value in field.finite]
        found += [ADTPoint(constructor.name, row) for row in rows]
    return tuple(found)


def point_of(value: ADTValue, adt: k.ADT) -> ADTPoint:
    """The point that a value lies at."""
    constructor = adt.constructor(value.kind)
    assert constructor is not None
    finite = {field.name for field in constructor.fields if field.finite is not None}
    return ADTPoint(value.kind, tuple(item for item in value.fields if item[0] in finite))


# --- reading types.yaml ---


def parse_types(raw: Any, report: Callable[[str, str], None]) -> dict[str, k.ADT]:
    """The types of a parsed `types.yaml`; what cannot be read is reported as `(field, message)` and left out."""
    found: dict[str, k.ADT] = {}
    fields = _mapping(raw, "types", TYPES_KEYS, report)
    for name, definition in _mapping(fields.get("adts"), "adts", None, report).items():
        where = f"adts.{name}"
        if not _NAME.fullmatch(name) or not name[0].isupper():
            report(where, f"{name!r} is no type name; write it in PascalCase")
            continue
        alternatives = _mapping(_mapping(definition, where, ADT_KEYS, report).get("sum"), f"{where}.sum", None, report)
        if not alternatives:
            report(f"{where}.sum", "there is no constructor; give at least one")
            continue
        read = partial(_read_constructor, report=report)
        constructors = [read(item, value, f"{where}.sum.{item}") for item, value in alternatives.items()]
        if all(item is not None for item in constructors):
            found[name] = k.ADT(name, tuple(item for item in constructors if item is not None))
    return found


def _mapping(
    value: Any, where: str, keys: tuple[str, ...] | None, report: Callable[[str, str], None]
) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        report(where, f"expected a mapping, got {value!r}")
        return {}
    kept = {}
    for key, item in value.items():
        if not isinstance(key, str) or (keys is not None and key not in keys):
            known = f"; known are {', '.join(keys)}" if keys is not None else "; names are strings"
            report(where, f"unknown key {key!r}{known}")
        else:
            kept[key] = item
    return kept


def _read_constructor(name: str, raw: Any, where: str, report: Callable[[str, str], None]) -> k.Constructor | None:
    found = _mapping(raw, where, CONSTRUCTOR_KEYS, report)
    python = found.get("python")
    if not _NAME.fullmatch(name):
        report(where, f"{name!r} is no name; use letters, digits and underscores")
        return None
    if not isinstance(python, str) or not _PATH.fullmatch(python):
        report(f"{where}.python", f"expected the path of the Python class, got {python!r}")
        return None
    fields = []
    for field, text in _mapping(found.get("fields"), f"{where}.fields", None, report).items():
        read = _read_field(field, text, f"{where}.fields.{field}", report)
        if read is None:
            return None
        fields.append(read)
    invariant = None
    if "invariant" in found:
        invariant = _read_invariant(found["invariant"], fields, f"{where}.invariant", report)
    return k.Constructor(name, python, tuple(fields), invariant)


def _read_field(name: str, raw: Any, where: str, report: Callable[[str, str], None]) -> k.Field | None:
    simple: dict[str, k.Kind] = {"Dim": k.DIM, "Int": k.INT, "Bool": k.BOOL}
    if not _NAME.fullmatch(name) or name in RESERVED_FIELDS:
        report(where, f"{name!r} cannot be the name of a field; choose another")
        return None
    if isinstance(raw, str) and raw in simple:
        return k.Field(name, simple[raw])
    if isinstance(raw, dict):
        found = _mapping(raw, where, ENUM_KEYS, report)
        python = found.get("python")
        try:
            kind = k.parse_type(found.get("type"))
        except ManifestError as error:
            report(f"{where}.type", str(error))
            return None
        if not isinstance(kind, k.Str) or kind.literals is None:
            report(f"{where}.type", f"an enum field is a union of string literals, got {found.get('type')!r}")
        elif not isinstance(python, str) or not _PATH.fullmatch(python):
            report(f"{where}.python", f"expected the path of the enum class, got {python!r}")
        else:
            return k.Field(name, kind, python)
        return None
    report(where, f"expected Dim, Int, Bool or {{type, python}} of an enum, got {raw!r}")
    return None


def _read_invariant(text: Any, fields: list[k.Field], where: str, report: Callable[[str, str], None]) -> Expr | None:
    try:
        expr = parse(text, where)
        kind = infer(expr, Scope({field.name: field.kind for field in fields}))
    except ManifestError as error:
        report(where, str(error).removeprefix(f"{where}: "))
        return None
    if kind != k.BOOL:
        report(where, f"expected a condition, {expr.source!r} is of kind {kind}")
        return None
    return expr


@cache
def installed(directory: Path = loading.SPEC_DIR) -> tuple[dict[str, k.ADT], tuple[tuple[str, str], ...]]:
    """The types of a spec directory, and what is wrong with the file as `(field, message)`."""
    path = directory / loading.TYPES_FILE
    if not path.exists():
        return {}, ()
    problems: list[tuple[str, str]] = []
    try:
        raw = loading.read_yaml(path)
    except ManifestError as error:
        return {}, (("", str(error).removeprefix(f"{path.name}: ")),)
    found = parse_types(raw, lambda field, message: problems.append((field, message)))
    return found, tuple(problems)


def lookup(name: str) -> k.ADT | None:
    """The type of that name in the installed manifest, or None."""
    return installed()[0].get(name)


# --- values ---


def make(adt: k.ADT, constructor: k.Constructor, given: Mapping[str, Any], convert: Callable[..., Any]) -> ADTValue:
    """A value from its fields.

    Args:
        adt: the type.
        constructor: one of its constructors.
        given: value of each field.
        convert: `tileops.manifest.values.convert`.

    Raises:
        ValueError: a field is missing, unknown or of another kind, or the invariant fails.
    """
    known = [field.name for field in constructor.fields]
    odd = sorted((name for name in given if name not in known), key=repr)
    if odd:
        raise ValueError(f"{constructor.name} has no field {odd[0]!r}; it has {', '.join(known) or 'none'}")
    missing = [name for name in known if name not in given]
    if missing:
        raise ValueError(f"{constructor.name} misses the field {missing[0]}")
    values = {}
    for field in constructor.fields:
        try:
            values[field.name] = convert(given[field.name], field.kind)
        except ValueError as error:
            raise ValueError(f"field {field.name} of {constructor.name}: {error}") from None
    invariant = constructor.invariant
    if invariant is not None and not evaluate(invariant, values):
        shown = ", ".join(f"{name}={values[name]!r}" for name in known if name in invariant.names)
        raise ValueError(f"{invariant.source!r}, which every {constructor.name} of {adt.name} obeys, fails for {shown}")
    return ADTValue(adt.name, constructor.name, tuple(values.items()))


def from_object(value: Any, adt: k.ADT, convert: Callable[..., Any]) -> ADTValue | None:
    """The value that a Python object stands for; None where it is an object of none of the classes.

    Raises:
        ValueError: a field does not fit, or the invariant fails.
    """
    classes = {f"{cls.__module__}.{cls.__qualname__}" for cls in type(value).__mro__}
    for constructor in adt.constructors:
        if constructor.python in classes:
            given = {}
            for field in constructor.fields:
                item = getattr(value, field.name)
                given[field.name] = item if field.python is None else getattr(item, "value", item)
            return make(adt, constructor, given, convert)
    return None


def to_object(value: ADTValue, adt: k.ADT | None = None) -> Any:
    """The Python object that a value stands for; imports its class.

    Args:
        value: the value.
        adt: its type; None for that of the installed manifest.

    Raises:
        ManifestError: the class cannot be imported.
    """
    adt = lookup(value.adt) if adt is None else adt
    constructor = None if adt is None else adt.constructor(value.kind)
    if constructor is None:
        raise ManifestError(f"types.yaml has no {value.kind} of {value.adt}")
    arguments = {}
    for field in constructor.fields:
        item = getattr(value, field.name)
        arguments[field.name] = item if field.python is None else import_path(field.python)(item)
    return import_path(constructor.python)(**arguments)


def import_path(path: str) -> Any:
    """The object at a dotted path.

    Raises:
        ManifestError: there is none.
    """
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ManifestError(f"types.yaml: {path} cannot be imported ({error})") from None
