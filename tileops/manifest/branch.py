"""Discriminants and branches: an entry at one point of its finite choices, with everything folded there.

A discriminant is a Bool or enum parameter, the constructor and finite fields of an ADT parameter, the presence
of a parameter or tensor that may be absent, or of ``out``. A `Point` fixes all of them; the `Branch` there has
plain shapes (type families chosen), folded rules, and the names that still matter.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from tileops.errors import ManifestError
from tileops.manifest import adts
from tileops.manifest import kinds as k
from tileops.manifest.expr import Application, Expr, Facts, ShapeItems, fold, substitute
from tileops.manifest.signature import OUT, FamilyCase, Signature, TensorDecl, TypeFamily


class BranchError(ManifestError):
    """An entry has no well-formed branch at a point.

    Attributes:
        field: declaration at fault.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


@dataclass(frozen=True)
class Discriminant:
    """One finite choice.

    Attributes:
        name: parameter or tensor.
        presence: the choice is whether `name` is present; its values are booleans.
        values: every value. Of a ``Maybe`` enum or bool parameter None means absent.
        at_construction: decided by construction parameters.
    """

    name: str
    presence: bool
    values: tuple[Any, ...]
    at_construction: bool

    @property
    def key(self) -> str:
        """As written in an expression."""
        return f"present({self.name})" if self.presence else self.name


def discriminants(signature: Signature) -> tuple[Discriminant, ...]:
    """Every discriminant of a signature, parameters first."""
    found = []
    for name, param in signature.params.items():
        if param.tensor is not None:
            if param.tensor.optional is True:
                found.append(Discriminant(name, True, (False, True), True))
            continue
        match param.kind:
            case k.Bool():
                found.append(Discriminant(name, False, (False, True), True))
            case k.Str(literals=literals) if literals is not None:
                found.append(Discriminant(name, False, literals, True))
            case k.Maybe(inner=k.Bool()):
                found.append(Discriminant(name, False, (None, False, True), True))
            case k.Maybe(inner=k.Str(literals=literals)) if literals is not None:
                found.append(Discriminant(name, False, (None, *literals), True))
            case k.ADT():
                found.append(Discriminant(name, False, adts.points(param.kind), True))
            case k.Maybe(inner=k.ADT() as inner):
                found.append(Discriminant(name, False, (None, *adts.points(inner)), True))
            case k.Maybe():
                found.append(Discriminant(name, True, (False, True), True))
    for name, decl in signature.inputs.items():
        if decl.optional is True:
            found.append(Discriminant(name, True, (False, True), False))
    buffered = signature.buffered
    if buffered is not None:
        found.append(Discriminant(OUT, True, (False, True), False))
    return tuple(found)


Point = tuple[tuple[str, Any], ...]


def point_facts(choices: Iterable[Discriminant], values: Mapping[str, Any]) -> Facts:
    """What `values` (by discriminant name) say about names and presence. Choices without one stay open."""
    constants: dict[str, Any] = {}
    present: dict[str, bool] = {}
    for choice in choices:
        if choice.name not in values:
            continue
        value = values[choice.name]
        if choice.presence:
            present[choice.name] = value
            if not value:
                constants[choice.name] = None
        else:
            if isinstance(value, adts.ADTPoint):
                constants[f"{choice.name}.kind"] = value.kind
                constants.update({f"{choice.name}.{field}": item for field, item in value.fields})
            else:
                constants[choice.name] = value
            if None in choice.values:
                present[choice.name] = value is not None
    return Facts(constants, present)


def construction_values(choices: Iterable[Discriminant], params: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the construction discriminants for these parameter values."""
    found = {}
    for choice in choices:
        if choice.at_construction:
            value = params[choice.name]
            if isinstance(value, adts.ADTValue):
                value = next(point for point in choice.values if _lies_at(value, point))
            found[choice.name] = value is not None if choice.presence else value
    return found


def _lies_at(value: adts.ADTValue, point: adts.ADTPoint | None) -> bool:
    return point is not None and value.kind == point.kind and set(point.fields) <= set(value.fields)


def settle_presence(signature: Signature, facts: Facts) -> Facts:
    """`facts` with the presence of tensors that share a discriminant worked out, by fixpoint over their
    expressions.
    """
    present = {
        name: True for name, decl in signature.tensors.items() if decl.role != "output" and decl.optional is None
    }
    present.update(facts.present)
    constants = dict(facts.constants)
    pending = {name: decl.optional for name, decl in signature.tensors.items() if isinstance(decl.optional, Expr)}
    while True:
        decided = {}
        for name, expr in pending.items():
            folded = fold(expr, Facts(constants, present))
            if folded.is_constant:
                decided[name] = bool(folded.constant)
        if not decided:
            break
        present.update(decided)
        for name in decided:
            del pending[name]
    for name, decl in signature.outputs.items():
        verdict = True if decl.nullable is None else None
        if decl.nullable is not None:
            folded = fold(decl.nullable, Facts(constants, present))
            verdict = bool(folded.constant) if folded.is_constant else None
        if verdict is not None:
            present[name] = verdict
    return Facts(constants, present)


def fold_lets(signature: Signature, facts: Facts) -> tuple[dict[str, Expr], Facts]:
    """Every let, folded; and `facts` with the value of those that discriminants decide, so that what reads them folds
    too.
    """
    lets = dict(signature.lets)
    constants = dict(facts.constants)
    progress = bool(lets)
    while progress:
        progress = False
        for name, expr in lets.items():
            if name not in constants:
                lets[name] = folded = fold(expr, Facts(constants, facts.present))
                if folded.is_constant:
                    constants[name] = folded.constant
                    progress = True
    return lets, Facts(constants, facts.present)


@dataclass(frozen=True, eq=False)
class BranchTensor:
    """A tensor that is present on a branch, with its family chosen and its expressions folded."""

    decl: TensorDecl
    dtype: Expr
    items: ShapeItems

    @property
    def name(self) -> str:
        return self.decl.name

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return (self.dtype, *(item.expr for item in self.items))

    @property
    def shape_text(self) -> str:
        """The shape on this branch, in the language's spelling."""
        return shape_text(self.items)


def shape_text(items: ShapeItems) -> str:
    """Shape items as a manifest writes them."""
    return f"[{', '.join(map(str, items))}]"


@dataclass(frozen=True, eq=False)
class Branch:
    """A signature at one point.

    Attributes:
        signature: the whole.
        point: values of the discriminants, sorted by name.
        facts: the same for folding, with every presence decided.
        held: construction-time tensors that are there.
        inputs: call-time inputs that are there, in order.
        outputs: outputs that are there, in order.
        lets: every let, folded.
        rules: refinements that are still open here; constant true ones are gone.
        restrictions: domain restrictions that reject the point.
        written: names of inputs that the call writes.
    """

    signature: Signature
    point: Point
    facts: Facts
    held: Mapping[str, BranchTensor]
    inputs: Mapping[str, BranchTensor]
    outputs: Mapping[str, BranchTensor]
    lets: Mapping[str, Expr]
    rules: tuple[Expr, ...]
    restrictions: tuple[Expr, ...]
    written: tuple[str, ...]

    @property
    def tensors(self) -> dict[str, BranchTensor]:
        return {**self.held, **self.inputs, **self.outputs}

    def present(self, name: str) -> bool:
        """Whether a tensor, output, ``out`` or parameter is there on this branch."""
        return self.facts.present.get(name, name in self.signature.params or name in self.tensors)

    def reads(self, exprs: Iterable[Expr]) -> frozenset[str]:
        """Names that `exprs` read, lets replaced by what they read in turn."""
        names: set[str] = set()
        pending = [name for expr in exprs for name in expr.names]
        seen: set[str] = set()
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in self.lets:
                pending.extend(self.lets[name].names)
            else:
                names.add(name)
        return frozenset(names)

    @cached_property
    def metadata_exprs(self) -> tuple[Expr, ...]:
        """Arguments of generators and predicates of the tensors that are there, folded."""
        found: list[Expr] = []
        for tensor in self.inputs.values():
            for call in (tensor.decl.values, *tensor.decl.requires):
                if call is not None:
                    found.append(self.folded(call))
        return tuple(found)

    @cached_property
    def _folded(self) -> dict[Expr, Expr]:
        return {}

    def folded(self, expr: Expr) -> Expr:
        """An expression of the entry with everything decided that this branch decides; folded once."""
        found = self._folded.get(expr)
        if found is None:
            found = self._folded[expr] = fold(expr, self.facts)
        return found

    @cached_property
    def _relevance(self) -> dict[tuple[Expr, ...], frozenset[str]]:
        return {}

    def relevant(self, *formulas: Expr) -> frozenset[str]:
        """Indices (`forall` names) that matter here: in shapes, dtypes, rules, metadata and the given
        roofline formulas.
        """
        found = self._relevance.get(formulas)
        if found is None:
            exprs = [expr for tensor in self.tensors.values() for expr in tensor.exprs]
            exprs += [*self.rules, *self.metadata_exprs, *map(self.folded, formulas)]
            found = self._relevance[formulas] = self.reads(exprs) & self.signature.indices.keys()
        return found


def branch_at(signature: Signature, choices: tuple[Discriminant, ...], values: Mapping[str, Any]) -> Branch:
    """The branch where the discriminants have `values`.

    Raises:
        BranchError: a family has no, or two, cases here, or a presence cannot be decided.
    """
    facts = settle_presence(signature, point_facts(choices, values))
    for name, decl in signature.tensors.items():
        if name not in facts.present:
            expr = decl.nullable if decl.role == "output" else decl.optional
            key = "nullable" if decl.role == "output" else "optional"
            raise BranchError(
                f"{decl.where}.{key}",
                f"{expr} is not decided by finite discriminants; use Bool and enum parameters and present(...)",
            )
    finite = discriminant_names(choices)
    lets, facts = fold_lets(signature, facts)
    rules, restrictions = [], []
    for rule in signature.shape_rules:
        folded = fold(rule, facts)
        if not folded.is_constant:
            rules.append(folded)
        elif not folded.constant and is_domain_restriction(rule, signature, finite):
            restrictions.append(rule)
        elif not folded.constant:
            rules.append(folded)
    if restrictions:
        return Branch(signature, _point(values), facts, {}, {}, {}, {}, (), tuple(restrictions), ())
    held = {}
    for name, param in signature.params.items():
        if param.tensor is not None and facts.present[name]:
            held[name] = _tensor(signature, param.tensor, facts)
    inputs = {name: _tensor(signature, decl, facts) for name, decl in signature.inputs.items() if facts.present[name]}
    outputs = {name: _tensor(signature, decl, facts) for name, decl in signature.outputs.items() if facts.present[name]}
    written = []
    for name, tensor in inputs.items():
        if tensor.decl.mutated is not None:
            folded = fold(tensor.decl.mutated, facts)
            if not folded.is_constant:
                raise BranchError(
                    f"{tensor.decl.where}.mutated",
                    f"{tensor.decl.mutated} is not decided by finite discriminants",
                )
            if folded.constant:
                written.append(name)
    return Branch(signature, _point(values), facts, held, inputs, outputs, lets, tuple(rules), (), tuple(written))


def construction_branch(signature: Signature, choices: tuple[Discriminant, ...], values: Mapping[str, Any]) -> Branch:
    """The construction-time part of a branch: its held tensors, lets, and the rules that no presence of a call's
    tensors guards.
    """
    lets, facts = fold_lets(signature, settle_presence(signature, point_facts(choices, values)))
    folded = [fold(rule, facts) for rule in signature.shape_rules]
    rules = tuple(rule for rule in folded if not rule.is_constant and not rule.tested)
    held = {
        name: _tensor(signature, param.tensor, facts)
        for name, param in signature.params.items()
        if param.tensor is not None and facts.present.get(name)
    }
    return Branch(signature, _point(values), facts, held, {}, {}, lets, rules, (), ())


def _point(values: Mapping[str, Any]) -> Point:
    return tuple(sorted(values.items()))


def discriminant_names(choices: Iterable[Discriminant]) -> tuple[frozenset[str], frozenset[str]]:
    """`(names whose value, names whose presence)` discriminants decide."""
    choices = tuple(choices)
    values: set[str] = set()
    for choice in choices:
        if any(isinstance(value, adts.ADTPoint) for value in choice.values):
            values.add(f"{choice.name}.kind")
            for value in choice.values:
                values |= {f"{choice.name}.{field}" for field, _ in getattr(value, "fields", ())}
        elif not choice.presence:
            values.add(choice.name)
    return frozenset(values), frozenset(choice.name for choice in choices)


def is_domain_restriction(rule: Expr, signature: Signature, finite: tuple[frozenset[str], frozenset[str]]) -> bool:
    """Whether a refinement reads only discriminants, lets inlined and every operand counted."""
    values, presences = finite
    derived = frozenset(
        name
        for name, decl in signature.tensors.items()
        if decl.role != "output" and (decl.optional is None or isinstance(decl.optional, Expr))
    )
    pending, seen = [rule], set()
    while pending:
        expr = pending.pop()
        if not expr.tested <= presences | derived:
            return False
        for name in expr.atoms:
            if name in signature.lets:
                if name not in seen:
                    seen.add(name)
                    pending.append(signature.lets[name])
            elif name not in values:
                return False
    return True


def invariants(signature: Signature) -> Iterator[tuple[str, k.Constructor, Expr]]:
    """``(parameter, constructor, invariant)`` of the ADT parameters, fields written ``parameter.field``."""
    for name, param in signature.scalars.items():
        kind = param.kind.inner if isinstance(param.kind, k.Maybe) else param.kind
        if not isinstance(kind, k.ADT):
            continue
        for constructor in kind.constructors:
            if constructor.invariant is not None:
                yield name, constructor, _of_parameter(constructor, name)


@lru_cache(maxsize=256)
def _of_parameter(constructor: k.Constructor, name: str) -> Expr:
    """The invariant of a constructor over the fields of parameter `name`."""
    fields: dict[str, ast.expr] = {
        field.name: ast.Attribute(ast.Name(name, ast.Load()), field.name, ast.Load()) for field in constructor.fields
    }
    return substitute(constructor.invariant, fields)


def obeys_invariants(signature: Signature, facts: Facts) -> bool:
    """Whether a point exists: no invariant of an ADT fails by its finite fields alone."""
    for name, constructor, invariant in invariants(signature):
        if facts.constants.get(f"{name}.kind") == constructor.name:
            folded = fold(invariant, facts)
            if folded.is_constant and not folded.constant:
                return False
    return True


def _tensor(signature: Signature, decl: TensorDecl, facts: Facts) -> BranchTensor:
    return BranchTensor(
        decl, fold(decl.dtype, facts), resolve_shape(signature, decl.shape, facts, f"{decl.where}.shape")
    )


def resolve_shape(
    signature: Signature,
    shape: ShapeItems | Application,
    facts: Facts,
    where: str,
    path: tuple[str, ...] = (),
) -> ShapeItems:
    """Shape items with type families chosen and everything folded.

    Raises:
        BranchError: no case, or more than one, matches; families refer to each other in a cycle.
    """
    if not isinstance(shape, Application):
        return tuple(type(item)(fold(item.expr, facts)) for item in shape)
    family = signature.families.get(shape.family)
    if family is None:
        raise BranchError(where, f"there is no type family {shape.family!r}; declare it in signature.types")
    if shape.family in path:
        raise BranchError(
            f"signature.types.{family.name}",
            f"type families refer to each other in a cycle: {' -> '.join((*path, family.name))}",
        )
    if len(shape.arguments) != len(family.formals):
        raise BranchError(
            where,
            f"{family.name} takes {len(family.formals)} arguments ({', '.join(family.formals)}), "
            f"got {len(shape.arguments)}",
        )
    case = _matching_case(family, shape, facts, where)
    formals = tuple(family.formals)
    if isinstance(case.shape, Application):
        arguments = tuple(_applied(argument, formals, shape.arguments, where) for argument in case.shape.arguments)
        inner = Application(case.shape.family, arguments, case.shape.expr)
        return resolve_shape(signature, inner, facts, where, (*path, family.name))
    return tuple(type(item)(fold(_applied(item.expr, formals, shape.arguments, where), facts)) for item in case.shape)


@lru_cache(maxsize=4096)
def _applied(expr: Expr, formals: tuple[str, ...], arguments: tuple[Expr, ...], where: str) -> Expr:
    """An expression of a family's body with the arguments of an application in place of its formals."""
    values = {formal: argument.node for formal, argument in zip(formals, arguments, strict=True)}
    found = substitute(expr, values)
    return Expr(found.text, found.node, where)


def _matching_case(family: TypeFamily, application: Application, facts: Facts, where: str) -> FamilyCase:
    subjects: list[Any] = []
    for expr in family.match:
        folded = fold(_applied(expr, tuple(family.formals), application.arguments, where), facts)
        point = _adt_point(folded, facts)
        if point is not None:
            subjects.append(point)
            continue
        if not folded.is_constant:
            raise BranchError(
                f"signature.types.{family.name}.match", f"{folded} is not decided by finite discriminants"
            )
        subjects.append(folded.constant)
    matching = [case for case in family.cases if matches(case.when, subjects)]
    if len(matching) != 1:
        what = "no case" if not matching else f"{len(matching)} cases"
        shown = ", ".join(map(repr, subjects))
        raise BranchError(
            f"signature.types.{family.name}.cases",
            f"{what} for {shown}, which {where} needs; give exactly one",
        )
    return matching[0]


def _adt_point(subject: Expr, facts: Facts) -> adts.ADTPoint | None:
    """What is known of an ADT that a family matches over."""
    match subject.node:
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(id=name), attr="value"):
            constructor = facts.constants.get(f"{name}.kind")
            if constructor is not None:
                prefix = f"{name}."
                fields = {
                    key.removeprefix(prefix): value
                    for key, value in facts.constants.items()
                    if key.startswith(prefix) and key != f"{name}.kind"
                }
                return adts.ADTPoint(constructor, tuple(fields.items()))
    return None


def matches(when: tuple[Any, ...], subjects: Iterable[Any]) -> bool:
    """Whether a case covers these values of the subjects. ``{masked: _}`` is any value of a constructor, ``{masked:
    {packed: true}}`` also constrains a field.
    """
    return all(_matches(want, got) for want, got in zip(when, subjects, strict=True))


def _matches(want: Any, got: Any) -> bool:
    if isinstance(got, adts.ADTPoint):
        if not isinstance(want, dict) or list(want) != [got.kind]:
            return False
        fields = want[got.kind]
        return fields in (None, "_") or (isinstance(fields, dict) and fields.items() <= dict(got.fields).items())
    return type(want) is type(got) and want == got


def group_discriminants(signature: Signature, choices: tuple[Discriminant, ...]) -> list[tuple[Discriminant, ...]]:
    """Discriminants that some tensor, rule or let reads together; combinations matter inside a group only."""
    by_name = {choice.name: choice for choice in choices}
    parent = {name: name for name in by_name}

    def root(name: str) -> str:
        while parent[name] != name:
            name = parent[name]
        return name

    for names in _co_occurrences(signature):
        together = sorted(_discriminants_behind(signature, names) & by_name.keys())
        for other in together[1:]:
            parent[root(other)] = root(together[0])
    groups: dict[str, list[Discriminant]] = {}
    for name in by_name:
        groups.setdefault(root(name), []).append(by_name[name])
    return [tuple(group) for group in groups.values()]


def _co_occurrences(signature: Signature) -> Iterator[frozenset[str]]:
    for decl in signature.tensors.values():
        exprs = [decl.dtype, *shape_exprs(decl.shape)]
        exprs += [part for part in (decl.optional, decl.nullable, decl.mutated) if isinstance(part, Expr)]
        exprs += [call for call in (decl.values, *decl.requires) if call is not None]
        names = frozenset(name for expr in exprs for name in expr.names | expr.tested)
        yield names | {decl.name} | ({OUT} if decl.buffer else set())
    for expr in (*signature.shape_rules, *signature.lets.values()):
        yield expr.names | expr.tested


def shape_exprs(shape: ShapeItems | Application) -> tuple[Expr, ...]:
    """Expressions of a shape term, family arguments included."""
    return shape.arguments if isinstance(shape, Application) else tuple(item.expr for item in shape)


def _discriminants_behind(signature: Signature, names: frozenset[str]) -> set[str]:
    """`names`, with lets and shared presences replaced by what they read."""
    found: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name in found:
            continue
        found.add(name)
        if name in signature.lets:
            pending.extend(signature.lets[name].names | signature.lets[name].tested)
        decl = signature.tensors.get(name)
        if decl is not None and isinstance(decl.optional, Expr):
            pending.extend(decl.optional.names | decl.optional.tested)
    return found


def combinations(group: tuple[Discriminant, ...]) -> Iterator[dict[str, Any]]:
    """Every assignment of a group."""
    for values in itertools.product(*(choice.values for choice in group)):
        yield {choice.name: value for choice, value in zip(group, values, strict=True)}
