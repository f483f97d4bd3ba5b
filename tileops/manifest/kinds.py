"""Kinds: what a name or an expression of a signature can stand for.

A parameter's kind follows from its `type` (`parse_type`), an index's from its `forall` entry
(`parse_index_kind`), and that of an expression from inference (`tileops.manifest.expr`). `fits` is the only
subtyping rule, `join` the kind of a two-armed conditional.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from tileops.errors import ManifestError
from tileops.manifest.dtypes import DTYPES


@dataclass(frozen=True)
class Kind:
    """Base of all kinds."""

    def __str__(self) -> str:
        return type(self).__name__


@dataclass(frozen=True)
class Int(Kind):
    """A signed integer."""


@dataclass(frozen=True)
class Dim(Kind):
    """A non-negative integer: the length of an axis."""


@dataclass(frozen=True)
class Bool(Kind):
    """A truth value."""


@dataclass(frozen=True)
class Real(Kind):
    """A float. Takes no part in types, but refinements and roofline formulas may read it."""


@dataclass(frozen=True)
class NoneKind(Kind):
    """The absent value."""

    def __str__(self) -> str:
        return "None"


@dataclass(frozen=True)
class Str(Kind):
    """A string; an enum where its `literals` are known."""

    literals: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return "Str" if self.literals is None else " | ".join(map(repr, self.literals))


@dataclass(frozen=True)
class DType(Kind):
    """One dtype of a set."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"DType[{' | '.join(self.names)}]"


@dataclass(frozen=True)
class Shape(Kind):
    """The axis lengths of some adjoining axes."""


@dataclass(frozen=True)
class Seq(Kind):
    """A sequence. `length` is None where it may vary; `container` is the Python type that holds it."""

    element: Kind
    length: int | None = None
    container: str = "list"

    def __str__(self) -> str:
        return f"Seq[{self.element}]"


@dataclass(frozen=True)
class Maybe(Kind):
    """A value that may be absent: ``present(x)`` tells, ``x.value`` is the payload."""

    inner: Kind

    def __str__(self) -> str:
        return f"Maybe[{self.inner}]"


@dataclass(frozen=True)
class Union(Kind):
    """One of several kinds that no other kind describes, for example ``int | float``."""

    members: tuple[Kind, ...]

    def __str__(self) -> str:
        return " | ".join(map(str, self.members))


@dataclass(frozen=True)
class Field:
    """A field of a constructor.

    Attributes:
        name: attribute of the Python object.
        kind: Dim, Int, Bool or an enum.
        python: path of the enum class of an enum field, whose members' ``.value`` are the literals.
    """

    name: str
    kind: Kind
    python: str | None = None

    @property
    def finite(self) -> tuple[Any, ...] | None:
        """Every value that the field takes; None where there is no end of them."""
        match self.kind:
            case Bool():
                return (False, True)
            case Str(literals=literals):
                return literals
        return None


@dataclass(frozen=True)
class Constructor:
    """One alternative of an algebraic data type.

    Attributes:
        name: as a literal writes it; the ``kind`` of the Python object.
        python: path of the class.
        fields: its fields, in order.
        invariant: a refinement over the fields (an `expr.Expr`), or None.
    """

    name: str
    python: str
    fields: tuple[Field, ...] = ()
    invariant: Any = None

    def field(self, name: str) -> Field | None:
        """The field of that name, or None."""
        return next((field for field in self.fields if field.name == name), None)


@dataclass(frozen=True)
class ADT(Kind):
    """An algebraic data type of `spec/types.yaml`, or, after a guard, some of its constructors."""

    name: str
    constructors: tuple[Constructor, ...] = ()

    def __str__(self) -> str:
        return self.name

    def constructor(self, name: str) -> Constructor | None:
        """The constructor of that name, or None."""
        return next((item for item in self.constructors if item.name == name), None)

    def restricted(self, names: Collection[str]) -> ADT | None:
        """The type with only these constructors; None where none is left."""
        kept = tuple(item for item in self.constructors if item.name in names)
        return ADT(self.name, kept) if kept else None


@dataclass(frozen=True)
class Opaque(Kind):
    """A Python type outside the language (``Number``, ``dict``, ...): `type` and `default` only."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Tensor(Kind):
    """A tensor of the entry; only ``present(x)`` and ``bytes(x)`` read it."""


INT, DIM, BOOL, REAL, NONE, SHAPE = Int(), Dim(), Bool(), Real(), NoneKind(), Shape()
STRING = Str()
TENSOR = Tensor()
INTS = Seq(INT)
NUMBER = Union((INT, REAL))
#: A scalar of any numeric type, a bool included; expressions may read it as a number.
ANY_NUMBER = Opaque("Number")

_ATOMS: dict[str, Kind] = {"int": INT, "bool": BOOL, "float": REAL, "str": STRING}
_OPAQUE = ("Number", "dict", "torch.Tensor", "object")


def fits(actual: Kind, expected: Kind) -> bool:
    """Whether a value of kind `actual` may stand where `expected` is wanted."""
    if actual == expected:
        return True
    if actual == ANY_NUMBER:
        actual = NUMBER
    if isinstance(actual, Union) and not isinstance(expected, Union):
        return all(fits(member, expected) for member in actual.members)
    match expected:
        case Int():
            return isinstance(actual, Dim)
        case Real():
            return isinstance(actual, Int | Dim)
        case Str(literals=literals):
            if not isinstance(actual, Str):
                return False
            return literals is None or (actual.literals is not None and set(actual.literals) <= set(literals))
        case DType(names=names):
            if isinstance(actual, Str) and actual.literals is not None:
                return set(actual.literals) <= set(names)  # a string that names a member of the set
            return isinstance(actual, DType) and set(actual.names) <= set(names)
        case ADT(name=name):
            return isinstance(actual, ADT) and actual.name == name
        case Shape():
            return isinstance(actual, Seq) and fits(actual.element, DIM)
        case Seq(element=element, length=length):
            if isinstance(actual, Shape):
                return length is None and fits(DIM, element)
            return isinstance(actual, Seq) and length in (None, actual.length) and fits(actual.element, element)
        case Maybe(inner=inner):
            if isinstance(actual, Maybe):
                return fits(actual.inner, inner)
            return isinstance(actual, NoneKind) or fits(actual, inner)
        case Union(members=members):
            parts = actual.members if isinstance(actual, Union) else (actual,)
            return all(any(fits(part, member) for member in members) for part in parts)
    return False


def join(left: Kind, right: Kind) -> Kind | None:
    """The common kind of two alternatives, or None where they have none."""
    if isinstance(left, Str) and isinstance(right, Str):
        if left.literals is None or right.literals is None:
            return STRING
        return Str(_merged(left.literals, right.literals))
    left, right = _as_dtype(left, right), _as_dtype(right, left)
    if isinstance(left, DType) and isinstance(right, DType):
        return DType(_merged(left.names, right.names))
    if isinstance(left, NoneKind) and isinstance(right, NoneKind):
        return NONE
    if isinstance(left, NoneKind | Maybe) or isinstance(right, NoneKind | Maybe):
        inner = [
            kind.inner if isinstance(kind, Maybe) else kind for kind in (left, right) if not isinstance(kind, NoneKind)
        ]
        common = inner[0] if len(inner) == 1 else join(*inner)
        return None if common is None else Maybe(common)
    if fits(left, right):
        return right
    if fits(right, left):
        return left
    return None


def disjoint(left: Kind, right: Kind) -> bool:
    """Whether two enums, or two sets of dtypes, have no value in common."""
    match left, right:
        case Str(literals=one), Str(literals=other) if one is not None and other is not None:
            return set(one).isdisjoint(other)
        case DType(names=one), DType(names=other):
            return set(one).isdisjoint(other)
    return False


def _as_dtype(kind: Kind, other: Kind) -> Kind:
    """A literal that names a dtype is one where it meets dtypes."""
    if not isinstance(kind, Str) or not isinstance(other, DType) or kind.literals is None:
        return kind
    return DType(kind.literals) if set(kind.literals) <= DTYPES.keys() else kind


def _merged(left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
    return left + tuple(item for item in right if item not in left)


def restrict(kind: Kind, literals: Collection[Any]) -> Kind | None:
    """`kind` where the value is known to be one of `literals`; None where no value of the kind is."""
    match kind:
        case Str(literals=known) if known is not None:
            kept = tuple(item for item in known if item in literals)
            return Str(kept) if kept else None
        case DType(names=names):
            kept = tuple(item for item in names if item in literals)
            return DType(kept) if kept else None
        case Maybe(inner=inner):
            if None in literals:
                return kind
            return restrict(inner, literals)
        case Union(members=members):
            return _united([restrict(member, literals) for member in members if _may_be(member, literals)])
    return kind


def _may_be(kind: Kind, literals: Collection[Any]) -> bool:
    """Whether a literal can be a value of `kind`, by its Python type."""
    wanted: dict[type[Kind], tuple[type, ...]] = {
        Str: (str,),
        DType: (str,),
        Bool: (bool,),
        Int: (int,),
        Dim: (int,),
        Real: (int, float),
    }
    return any(isinstance(item, wanted.get(type(kind), ())) for item in literals)


def _united(members: list[Kind | None]) -> Kind | None:
    """The union of the members that are left."""
    kept = tuple(member for member in members if member is not None)
    return None if not kept else kept[0] if len(kept) == 1 else Union(kept)


def exclude(kind: Kind, literals: Collection[Any]) -> Kind | None:
    """`kind` where the value is known to be none of `literals`; None where nothing is left."""
    match kind:
        case Str(literals=known) if known is not None:
            kept = tuple(item for item in known if item not in literals)
            return Str(kept) if kept else None
        case DType(names=names):
            kept = tuple(item for item in names if item not in literals)
            return DType(kept) if kept else None
        case Maybe(inner=inner):
            left = exclude(inner, literals)
            return NONE if left is None else Maybe(left)
        case Union(members=members):
            return _united([exclude(member, literals) for member in members])
    return kind


def parse_index_kind(text: object) -> Kind:
    """The kind of a `forall` entry: ``Dim``, ``Shape``, ``Seq[Int]`` or ``DType[a | b]``.

    Raises:
        ManifestError: `text` is none of these; the message says what is wrong with it.
    """
    simple = {"Dim": DIM, "Shape": SHAPE, "Seq[Int]": INTS}
    if not isinstance(text, str):
        raise ManifestError(f"{text!r} is no kind; write Dim, Shape, Seq[Int] or DType[a | b]")
    compact = text.replace(" ", "")
    if compact in simple:
        return simple[compact]
    if compact.startswith("DType[") and compact.endswith("]"):
        return DType(_dtype_names(compact[len("DType[") : -1].split("|")))
    raise ManifestError(f"{text!r} is no kind; write Dim, Shape, Seq[Int] or DType[a | b]")


def _dtype_names(names: list[str]) -> tuple[str, ...]:
    unknown = sorted(name for name in names if name not in DTYPES)
    if unknown:
        raise ManifestError(f"unknown dtype {', '.join(map(repr, unknown))}; known are {', '.join(DTYPES)}")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ManifestError(f"dtype {', '.join(map(repr, repeated))} is listed twice; list each once")
    return tuple(names)


Resolve = Callable[[str], Kind | None]


def _no_types(name: str) -> Kind | None:
    return None


def parse_type(text: object, resolve: Resolve = _no_types) -> Kind:
    """The kind of a construction parameter's `type` (table 3 of the language).

    Args:
        text: the type as the manifest writes it.
        resolve: the algebraic data type of a name, or None.

    Raises:
        ManifestError: `text` is not a type of the language.
    """
    if text is None:
        raise ManifestError('the field is missing; write the type as a string, for example "int | None"')
    if not isinstance(text, str):
        raise ManifestError(f'{text!r} is no type; write it as a string, for example "int | None"')
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ManifestError(f"{text!r} is no type; write for example int, tuple[int, ...] or 'a' | 'b'") from None
    try:
        return _alternation(node, text, resolve)
    except RecursionError:
        raise ManifestError(f"the type {text[:60]!r}... is nested too deeply") from None


def _alternatives(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _alternatives(node.left) + _alternatives(node.right)
    return [node]


def _alternation(node: ast.expr, text: str, resolve: Resolve) -> Kind:
    return _union([_member(part, text, resolve) for part in _alternatives(node)], text)


def _member(node: ast.expr, text: str, resolve: Resolve) -> Kind:
    match node:
        case ast.Constant(value=None):
            return NONE
        case ast.Constant(value=str() as literal):
            return Str((literal,))
        case ast.Name(id=name) if name in _ATOMS:
            return _ATOMS[name]
        case ast.Name(id=name) if name in DTYPES:
            return DType((name,))
        case ast.Name(id=name) if name in _OPAQUE:
            return Opaque(name)
        case ast.Attribute(value=ast.Name(id="torch"), attr="dtype"):
            return DType(tuple(DTYPES))
        case ast.Attribute(value=ast.Name(id="torch"), attr="Tensor" | "device" as attr):
            return Opaque(f"torch.{attr}")
        case ast.Subscript(value=ast.Name(id="list"), slice=element):
            return Seq(_element(element, text, resolve))
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=elements)) if elements:
            if len(elements) == 2 and isinstance(elements[1], ast.Constant) and elements[1].value is Ellipsis:
                return Seq(_element(elements[0], text, resolve), container="tuple")
            kinds = [_alternation(item, text, resolve) for item in elements]
            if any(kind != kinds[0] for kind in kinds):
                raise ManifestError(
                    f"{text!r}: the elements of a tuple are of one kind; write tuple[int, int] or two parameters"
                )
            return Seq(_element(elements[0], text, resolve), len(kinds), "tuple")
        case ast.Name(id=name):
            found = resolve(name)
            if found is not None:
                return found
    raise ManifestError(
        f"{text!r}: {ast.unparse(node)!r} is no type; write int, bool, float, str, a quoted "
        "literal, a dtype name, list[...], tuple[...], a type of types.yaml or a union of these"
    )


def _element(node: ast.expr, text: str, resolve: Resolve) -> Kind:
    """The kind of a sequence's elements: sequences form axes, so they hold integers, of which some may be absent."""
    kind = _alternation(node, text, resolve)
    if kind not in (INT, Maybe(INT)):
        raise ManifestError(
            f"{text!r}: the elements of a sequence are integers, {ast.unparse(node)!r} is of kind {kind}; "
            "write list[int], tuple[int, ...], or int | None for the elements"
        )
    return kind


def _union(members: list[Kind], text: str) -> Kind:
    optional = NONE in members
    rest = [member for member in members if member != NONE]
    if not rest:
        raise ManifestError(f'{text!r}: None alone is no type; add what it may be instead, for example "int | None"')
    if len(rest) == 1:
        kind = rest[0]
    else:
        kind = _united(_gathered(rest))  # type: ignore[assignment]
    return Maybe(kind) if optional else kind


def _gathered(members: list[Kind]) -> list[Kind | None]:
    """`members` with all literals as one enum and all dtype names as one set, each where the first stood."""
    literals = [literal for member in members if isinstance(member, Str) for literal in member.literals or ()]
    names = _dtype_names([name for member in members if isinstance(member, DType) for name in member.names])
    gathered: list[Kind | None] = []
    for member in members:
        whole: Kind = member
        if isinstance(member, Str) and member.literals is not None:
            whole = Str(tuple(dict.fromkeys(literals)))
        elif isinstance(member, DType):
            whole = DType(names)
        if whole not in gathered:
            gathered.append(whole)
    return gathered
