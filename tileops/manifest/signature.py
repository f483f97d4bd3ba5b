"""An entry's signature as records: every string parsed, every field either well-formed or a `Problem`.

Parsing is per field: an unreadable one is reported and left out, so that a reader of the others still works.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from tileops.errors import ManifestError
from tileops.manifest import adts
from tileops.manifest import kinds as k
from tileops.manifest.dtypes import DTYPES
from tileops.manifest.expr import Application, Expr, ShapeItems, parse, parse_shape
from tileops.manifest.suggest import suggestion
from tileops.manifest.values import ValueMismatch, convert

T = TypeVar("T")

#: Legal keys of each fixed section of an entry.
ENTRY_KEYS = ("family", "status", "ref_api", "signature", "workloads", "roofline", "composition")
SIGNATURE_KEYS = ("forall", "params", "inputs", "outputs", "types", "let", "shape_rules", "dtype_combos")
PARAM_KEYS = ("type", "default", "kw_only")
CONSTRUCTION_TENSOR_KEYS = ("dtype", "shape", "optional", "contiguous", "device", "kw_only")
INPUT_KEYS = (
    "dtype",
    "shape",
    "optional",
    "kw_only",
    "mutated",
    "write_only",
    "contiguous",
    "device",
    "values",
    "requires",
)
OUTPUT_KEYS = ("dtype", "shape", "nullable", "buffer", "alias", "contiguous", "device")
FAMILY_KEYS = ("params", "match", "cases")
CASE_KEYS = ("when", "is")
ROOFLINE_KEYS = ("flops", "bytes", "func")
COMPOSITION_KEYS = ("kind", "stages")
STAGE_KEYS = ("name", "op", "kernel", "optional")
OUT = "out"


class _Required:
    """Marks a parameter without a default."""

    def __repr__(self) -> str:
        return "<required>"


REQUIRED = _Required()


@dataclass(frozen=True)
class Problem:
    """Something wrong with one field.

    Attributes:
        field: path of the field inside the entry, for example ``signature.inputs.x.dtype``.
        message: what is wrong and what to write instead.
        unreadable: the field has no value; checks that read it are skipped. False for a key that nothing reads.
    """

    field: str
    message: str
    unreadable: bool = True


@dataclass(frozen=True)
class TensorDecl:
    """A tensor of the signature.

    Attributes:
        name: its name.
        role: "input", "output" or "param" (a construction-time tensor).
        dtype: a dtype expression; constants are string literals.
        shape: items, or the application of a type family.
        optional: None for a required tensor, True for one with its own presence, else the shared
            discriminant.
        kw_only: passed by keyword only.
        nullable: None, or the discriminant that says whether an output is there.
        mutated: None, or the discriminant under which an input is written (a constant True for always).
        write_only: the prior contents are not read.
        buffer: ``out`` may be passed for this output.
        alias: input that this output is, where that input is written.
        contiguous: any other layout is refused.
        cpu: the tensor lives on the CPU, whatever the call device.
        values: generator call of a metadata tensor.
        requires: predicates on its contents.
    """

    name: str
    role: str
    dtype: Expr
    shape: ShapeItems | Application
    optional: Expr | bool | None = None
    kw_only: bool = False
    nullable: Expr | None = None
    mutated: Expr | None = None
    write_only: bool = False
    buffer: bool = False
    alias: str | None = None
    contiguous: bool = False
    cpu: bool = False
    values: Expr | None = None
    requires: tuple[Expr, ...] = ()

    @property
    def where(self) -> str:
        """Path of the declaration."""
        section = {"input": "inputs", "output": "outputs", "param": "params"}[self.role]
        return f"signature.{section}.{self.name}"

    @property
    def shape_text(self) -> str:
        """The shape as the manifest writes it."""
        if isinstance(self.shape, Application):
            return self.shape.expr.source
        return f"[{', '.join(map(str, self.shape))}]"

    def __str__(self) -> str:
        notes = []
        if self.optional is not None:
            notes.append("optional" if self.optional is True else f"present where {self.optional}")
        if self.nullable is not None:
            notes.append(f"None unless {self.nullable}")
        if self.mutated is not None:
            always = self.mutated.is_constant
            notes.append("written" if always else f"written where {self.mutated}")
        notes += [
            text
            for flag, text in (
                (self.kw_only, "keyword-only"),
                (self.contiguous, "contiguous"),
                (self.cpu, "on the CPU"),
                (self.buffer, "out"),
            )
            if flag
        ]
        if self.alias is not None:
            notes.append(f"is {self.alias}")
        return ", ".join([f"{self.dtype.source} {self.shape_text}", *notes])


@dataclass(frozen=True)
class ParamDecl:
    """A construction parameter.

    Attributes:
        name: its name.
        type: as written.
        kind: what the type denotes.
        default: converted value, or `REQUIRED`.
        kw_only: keyword-only in ``__init__``.
        tensor: the declaration of a construction-time tensor.
    """

    name: str
    type: str
    kind: k.Kind
    default: Any = REQUIRED
    kw_only: bool = False
    tensor: TensorDecl | None = None

    @property
    def required(self) -> bool:
        return self.default is REQUIRED

    def __str__(self) -> str:
        text = self.type if self.tensor is None else str(self.tensor)
        default = "" if self.required else f" = {self.default!r}"
        return f"{text}{default}{', keyword-only' if self.kw_only else ''}"


@dataclass(frozen=True)
class FamilyCase:
    """One case of a type family: values of its subjects, and the shape."""

    when: tuple[Any, ...]
    shape: ShapeItems | Application


@dataclass(frozen=True)
class TypeFamily:
    """A shape chosen by finite discriminants."""

    name: str
    formals: Mapping[str, k.Kind]
    match: tuple[Expr, ...]
    cases: tuple[FamilyCase, ...]


@dataclass(frozen=True, eq=False)
class Signature:
    """All of `signature`, parsed.

    Attributes:
        indices: `forall`, name -> kind.
        params: construction parameters in order.
        inputs: call-time inputs in declaration order.
        outputs: outputs in order.
        families: type families.
        lets: derived indices.
        shape_rules: refinements, in order.
        combos: allowed dtype assignments; empty where each index ranges freely.
    """

    indices: Mapping[str, k.Kind] = field(default_factory=dict)
    params: Mapping[str, ParamDecl] = field(default_factory=dict)
    inputs: Mapping[str, TensorDecl] = field(default_factory=dict)
    outputs: Mapping[str, TensorDecl] = field(default_factory=dict)
    families: Mapping[str, TypeFamily] = field(default_factory=dict)
    lets: Mapping[str, Expr] = field(default_factory=dict)
    shape_rules: tuple[Expr, ...] = ()
    combos: tuple[Mapping[str, str], ...] = ()

    @property
    def tensors(self) -> dict[str, TensorDecl]:
        """Construction-time tensors, inputs and outputs by name."""
        held = {name: param.tensor for name, param in self.params.items() if param.tensor is not None}
        return {**held, **self.inputs, **self.outputs}

    @property
    def scalars(self) -> dict[str, ParamDecl]:
        """Construction parameters that are no tensors."""
        return {name: param for name, param in self.params.items() if param.tensor is None}

    @property
    def buffered(self) -> TensorDecl | None:
        """The output that ``out`` stands for."""
        return next((output for output in self.outputs.values() if output.buffer), None)

    @property
    def forward_order(self) -> tuple[str, ...]:
        """Parameters of ``forward``: inputs, then ``out``, then keyword-only inputs."""
        first = [name for name, decl in self.inputs.items() if not decl.kw_only]
        buffer = [OUT] if self.buffered is not None else []
        return (*first, *buffer, *(name for name, decl in self.inputs.items() if decl.kw_only))


class Reader:
    """Reads the fields of one section and collects what is wrong with them."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems

    def report(self, where: str, message: str, *, unreadable: bool = True) -> None:
        self.problems.append(Problem(where, message, unreadable))

    def mapping(self, value: Any, where: str, *, keys: tuple[str, ...] | None = None) -> dict[str, Any]:
        """`value` as a mapping with string keys, without unknown keys; {} where it is none."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.report(where, f"expected a mapping, got {value!r}")
            return {}
        odd = sorted(
            (key for key in value if not isinstance(key, str) or (keys is not None and key not in keys)),
            key=repr,
        )
        for key in odd:
            known = (
                f"{suggestion(key, keys)}; known are {', '.join(keys)}" if keys is not None else "; names are strings"
            )
            self.report(where, f"unknown key {key!r}{known}", unreadable=False)
        return {key: item for key, item in value.items() if key not in odd}

    def sequence(self, value: Any, where: str) -> list[Any]:
        if value is None:
            return []
        if not isinstance(value, list):
            self.report(where, f"expected a list, got {value!r}")
            return []
        return value

    def flag(self, value: Any, where: str) -> bool:
        if value is None:
            return False
        if not isinstance(value, bool):
            self.report(where, f"expected true or false, got {value!r}")
            return False
        return value

    def attempt(self, where: str, read: Callable[[], T]) -> T | None:
        """`read()`, or None and a problem."""
        try:
            return read()
        except (ManifestError, ValueMismatch) as error:
            self.report(where, str(error).removeprefix(f"{where}: "))
        return None


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_signature(raw: Any, problems: list[Problem], resolve: k.Resolve = adts.lookup) -> Signature:
    """Parses `signature`, reporting what cannot be read to `problems`.

    Args:
        raw: the field.
        problems: gets what is wrong.
        resolve: the algebraic data type of a name, or None.
    """
    reader = Reader(problems)
    where = "signature"
    fields = reader.mapping(raw, where, keys=SIGNATURE_KEYS)
    if raw is None:
        reader.report(where, "the field is missing; every entry has a signature")
    indices: dict[str, k.Kind] = {}
    for name, text in _named(reader, fields.get("forall"), f"{where}.forall"):
        kind = reader.attempt(f"{where}.forall.{name}", partial(k.parse_index_kind, text))
        if kind is not None:
            indices[name] = kind
    params = {}
    for name, value in _named(reader, fields.get("params"), f"{where}.params"):
        param = _read_param(reader, name, value, resolve)
        if param is not None:
            params[name] = param
    inputs = {}
    for name, value in _named(reader, fields.get("inputs"), f"{where}.inputs"):
        tensor = _read_tensor(reader, name, value, "input", INPUT_KEYS)
        if tensor is not None:
            inputs[name] = tensor
    outputs = {}
    for name, value in _named(reader, fields.get("outputs"), f"{where}.outputs"):
        tensor = _read_tensor(reader, name, value, "output", OUTPUT_KEYS)
        if tensor is not None:
            outputs[name] = tensor
    families = {}
    for name, value in _named(reader, fields.get("types"), f"{where}.types"):
        family = _read_family(reader, name, value, resolve)
        if family is not None:
            families[name] = family
    lets = {}
    for name, value in _named(reader, fields.get("let"), f"{where}.let"):
        place = f"{where}.let.{name}"
        expr = reader.attempt(place, partial(parse, value, place))
        if expr is not None:
            lets[name] = expr
    rules = []
    for position, value in enumerate(reader.sequence(fields.get("shape_rules"), f"{where}.shape_rules")):
        place = f"{where}.shape_rules[{position}]"
        expr = reader.attempt(place, partial(parse, value, place))
        if expr is not None:
            rules.append(expr)
    combos = _read_combos(reader, fields.get("dtype_combos"), f"{where}.dtype_combos")
    return Signature(indices, params, inputs, outputs, families, lets, tuple(rules), combos)


def _named(reader: Reader, raw: Any, where: str) -> list[tuple[str, Any]]:
    found = []
    for name, value in reader.mapping(raw, where).items():
        if _NAME.fullmatch(name):
            found.append((name, value))
        else:
            reader.report(where, f"{name!r} is no name; use letters, digits and underscores")
    return found


def _read_param(reader: Reader, name: str, raw: Any, resolve: k.Resolve) -> ParamDecl | None:
    where = f"signature.params.{name}"
    if isinstance(raw, dict) and "dtype" in raw:
        tensor = _read_tensor(reader, name, raw, "param", CONSTRUCTION_TENSOR_KEYS)
        if tensor is None:
            return None
        absent = None if tensor.optional is not None else REQUIRED
        return ParamDecl(name, "torch.Tensor", k.TENSOR, absent, tensor.kw_only, tensor)
    fields = reader.mapping(raw, where, keys=PARAM_KEYS)
    kind = reader.attempt(f"{where}.type", lambda: k.parse_type(fields.get("type"), resolve))
    if kind is None:
        return None
    default: Any = REQUIRED
    if "default" in fields:
        try:
            default = convert(fields["default"], kind)
        except ValueMismatch as error:
            reader.report(f"{where}.default", f"{error}; the type is {fields['type']}")
    return ParamDecl(name, str(fields["type"]), kind, default, reader.flag(fields.get("kw_only"), f"{where}.kw_only"))


def _read_tensor(reader: Reader, name: str, raw: Any, role: str, keys: tuple[str, ...]) -> TensorDecl | None:
    section = {"input": "inputs", "output": "outputs", "param": "params"}[role]
    where = f"signature.{section}.{name}"
    fields = reader.mapping(raw, where, keys=keys)
    dtype = reader.attempt(f"{where}.dtype", lambda: _dtype(fields.get("dtype"), f"{where}.dtype"))
    shape = reader.attempt(f"{where}.shape", lambda: parse_shape(fields.get("shape"), f"{where}.shape"))

    def expression(key: str) -> Expr | None:
        value = fields.get(key)
        if value is None or value is False:
            return None
        text = "True" if value is True else value
        return reader.attempt(f"{where}.{key}", lambda: parse(text, f"{where}.{key}"))

    optional: Expr | bool | None = True if fields.get("optional") is True else expression("optional")
    requires = []
    for position, value in enumerate(reader.sequence(fields.get("requires"), f"{where}.requires")):
        place = f"{where}.requires[{position}]"
        predicate = reader.attempt(place, partial(parse, value, place))
        if predicate is not None:
            requires.append(predicate)
    buffer = fields.get("buffer")
    if buffer not in (None, OUT):
        reader.report(f"{where}.buffer", f"expected out, got {buffer!r}")
    device = fields.get("device")
    if device not in (None, "cpu"):
        reader.report(f"{where}.device", f"expected cpu, got {device!r}; other tensors follow the call device")
    alias = fields.get("alias")
    if alias is not None and not isinstance(alias, str):
        reader.report(f"{where}.alias", f"expected the name of an input, got {alias!r}")
        alias = None
    if dtype is None or shape is None:
        return None
    return TensorDecl(
        name,
        role,
        dtype,
        shape,
        optional=optional,
        kw_only=reader.flag(fields.get("kw_only"), f"{where}.kw_only"),
        nullable=expression("nullable"),
        mutated=expression("mutated"),
        write_only=reader.flag(fields.get("write_only"), f"{where}.write_only"),
        buffer=buffer == OUT,
        alias=alias,
        contiguous=reader.flag(fields.get("contiguous"), f"{where}.contiguous"),
        cpu=device == "cpu",
        values=expression("values"),
        requires=tuple(requires),
    )


def _dtype(text: Any, where: str) -> Expr:
    """A dtype expression; a dtype's own name is a constant."""
    if isinstance(text, str) and text.strip() in DTYPES:
        constant = parse(repr(text.strip()), where)
        return Expr(text.strip(), constant.node, where)
    return parse(text, where)


def _read_family(reader: Reader, name: str, raw: Any, resolve: k.Resolve) -> TypeFamily | None:
    where = f"signature.types.{name}"
    fields = reader.mapping(raw, where, keys=FAMILY_KEYS)
    formals = {}
    for formal, text in _named(reader, fields.get("params"), f"{where}.params"):
        kind = reader.attempt(f"{where}.params.{formal}", partial(_formal_kind, text, resolve))
        if kind is not None:
            formals[formal] = kind
    subjects = fields.get("match")
    match = []
    for position, subject in enumerate(subjects if isinstance(subjects, list) else [subjects]):
        place = f"{where}.match[{position}]" if isinstance(subjects, list) else f"{where}.match"
        expr = reader.attempt(place, partial(parse, subject, place))
        if expr is None:
            return None
        match.append(expr)
    cases = []
    for position, raw_case in enumerate(reader.sequence(fields.get("cases"), f"{where}.cases")):
        place = f"{where}.cases[{position}]"
        case = reader.mapping(raw_case, place, keys=CASE_KEYS)
        shape = reader.attempt(f"{place}.is", partial(parse_shape, case.get("is"), f"{place}.is"))
        if "when" not in case:
            reader.report(place, "the case has no when; give the value that it matches")
        elif shape is not None:
            when = case["when"]
            values = tuple(when) if isinstance(when, list) and len(match) > 1 else (when,)
            if len(values) == len(match):
                cases.append(FamilyCase(values, shape))
            else:
                reader.report(
                    f"{place}.when",
                    f"expected a list of {len(match)} values, one per subject of match, got {when!r}",
                )
    return TypeFamily(name, formals, tuple(match), tuple(cases))


def _formal_kind(text: Any, resolve: k.Resolve) -> k.Kind:
    simple = {"Bool": k.BOOL, "Int": k.INT, "Dim": k.DIM, "Shape": k.SHAPE, "Seq[Int]": k.INTS}
    if isinstance(text, str) and text in simple:
        return simple[text]
    if isinstance(text, str) and text.startswith("DType"):
        return k.parse_index_kind(text)
    return k.parse_type(text, resolve)


def _read_combos(reader: Reader, raw: Any, where: str) -> tuple[Mapping[str, str], ...]:
    rows = []
    if raw == []:
        reader.report(where, "there is no row; give the dtypes that are allowed together, or remove the field")
    for position, row in enumerate(reader.sequence(raw, where)):
        place = f"{where}[{position}]"
        fields = reader.mapping(row, place)
        bad = sorted(repr(value) for value in fields.values() if not isinstance(value, str) or value not in DTYPES)
        if bad:
            reader.report(place, f"unknown dtype {', '.join(bad)}; known are {', '.join(DTYPES)}")
        elif fields:
            rows.append(fields)
    return tuple(rows)
