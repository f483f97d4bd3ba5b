"""Checks of an entry's expressions that no discriminant point is needed for: every one has the kind that its
place wants, and reads only what it may.

An expression that reads a name whose own declaration is at fault is not judged: one fault gives one diagnostic.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping

from tileops.errors import ManifestError
from tileops.manifest import kinds as k
from tileops.manifest.branch import discriminant_names, discriminants, shape_exprs
from tileops.manifest.entry import Entry
from tileops.manifest.expr import Expr, ExpressionError, Scope, infer
from tileops.manifest.expr.syntax import call_name
from tileops.manifest.primitives import GENERATORS, PREDICATES, Member
from tileops.manifest.roofline import formula_function
from tileops.manifest.scopes import global_scope
from tileops.manifest.signature import Signature, TensorDecl
from tileops.manifest.suggest import suggestion

Finding = tuple[str, str]

#: Sections of a signature that declare names.
DECLARING = ("forall", "params", "inputs", "outputs", "let")


def wanted(expr: Expr, scope: Scope, field: str, accepts: Callable[[k.Kind], bool], what: str) -> Iterator[Finding]:
    """Finds that an expression has no kind, or not one that its place accepts."""
    try:
        kind = infer(expr, scope)
    except ExpressionError as error:
        yield field, str(error).removeprefix(f"{expr.where}: ")
        return
    if not accepts(kind):
        yield field, f"expected {what}, {expr.source!r} is of kind {kind}"


def unreadable_names(entry: Entry) -> tuple[frozenset[str], bool]:
    """The names whose declarations could not be read, and whether those are all: they are not where a whole
    section could not be read.
    """
    names: set[str] = set()
    complete = True
    for problem in entry.problems:
        section, _, rest = problem.field.removeprefix("signature.").partition(".")
        if not problem.field.startswith("signature") or not problem.unreadable:
            continue
        if section == "signature" or (section in DECLARING and not rest):
            complete = False
        elif section in DECLARING:
            names.add(rest.partition(".")[0])
    return frozenset(names), complete


class Expressions:
    """Judges the expressions of one entry."""

    def __init__(self, entry: Entry, *, allow_bytes: bool = False) -> None:
        signature = entry.signature
        self.signature = signature
        self.scope = global_scope(signature, allow_bytes=allow_bytes)
        unreadable, self.complete = unreadable_names(entry)
        self.faulty = unreadable | (signature.lets.keys() - self.scope.names.keys())

    def readable(self, expr: Expr) -> bool:
        """Whether everything that `expr` reads has a well-formed declaration, as far as one can know."""
        reads = expr.names | expr.tested
        return not reads & self.faulty and (self.complete or reads <= self.scope.names.keys())

    def check(self, expr: Expr, field: str, accepts: Callable[[k.Kind], bool], what: str) -> Iterator[Finding]:
        if self.readable(expr):
            yield from wanted(expr, self.scope, field, accepts, what)

    def check_let(self, name: str) -> Iterator[Finding]:
        """A let has a kind, and is never computed from itself."""
        expr, field = self.signature.lets[name], f"signature.let.{name}"
        cycle = _cycle(name, self.signature)
        if cycle:
            if name == min(cycle):
                shown = " -> ".join((*cycle, name))
                yield field, f"lets depend on each other in a cycle: {shown}; derive one of them from indices"
        elif not (expr.names | expr.tested) & self.faulty and self.complete:
            accepts, what = (lambda kind: not isinstance(kind, k.Tensor | k.NoneKind)), "a value"
            yield from wanted(expr, self.scope, field, accepts, what)

    def check_condition(self, expr: Expr, field: str) -> Iterator[Finding]:
        """A presence or effect is decided by finite discriminants."""
        faults = list(self.check(expr, field, lambda kind: kind == k.BOOL, "a condition"))
        yield from faults
        if not faults and self.readable(expr):
            values, _ = discriminant_names(discriminants(self.signature))
            odd = sorted(expr.atoms - values)
            if odd:
                yield (
                    field,
                    f"{', '.join(odd)} is no finite discriminant; use Bool and enum parameters and present(...)",
                )


def check_kinds(entry: Entry) -> Iterator[Finding]:
    """Lets, refinements, presences, effects and metadata have the kinds that their places want."""
    signature = entry.signature
    known = Expressions(entry)
    for name in signature.lets:
        yield from known.check_let(name)
    for rule in signature.shape_rules:
        defined = list(_definition(rule, known.scope, rule.where)) if known.readable(rule) else []
        yield from defined or known.check(rule, rule.where, lambda kind: kind == k.BOOL, "a condition")
    for decl in signature.tensors.values():
        for key in ("optional", "nullable", "mutated"):
            expr = getattr(decl, key)
            if isinstance(expr, Expr):
                yield from known.check_condition(expr, f"{decl.where}.{key}")
        for expr in (decl.dtype, *shape_exprs(decl.shape)):
            if not (expr.names | expr.tested) <= known.scope.names.keys():
                yield from known.check(expr, expr.where, lambda kind: True, "declared names")
        yield from _metadata_calls(decl)
    yield from _lists_only_generate(entry)


def check_costs(entry: Entry) -> Iterator[Finding]:
    """Cost formulas are numbers, and a cost function exists."""
    if any(problem.field == "roofline" and problem.unreadable for problem in entry.problems):
        return
    costs = Expressions(entry, allow_bytes=True)
    for key in ("flops", "bytes"):
        formula = getattr(entry.roofline, key)
        if formula is not None:
            yield from costs.check(formula, f"roofline.{key}", lambda kind: k.fits(kind, k.NUMBER), "a number")
    if entry.roofline.func is not None:
        try:
            formula_function(entry.roofline.func)
        except (ManifestError, ImportError) as error:
            yield "roofline.func", str(error).removeprefix("roofline.func: ")


def _definition(rule: Expr, scope: Scope, field: str) -> Iterator[Finding]:
    """An equality whose one side is an undeclared name defines it: that is a let."""
    match rule.node:
        case ast.Compare(left=ast.Name(id=name), ops=[ast.Eq()], comparators=[right]) if scope.kind(name) is None:
            yield field, f'an equality does not define a name; write let: {{{name}: "{ast.unparse(right)}"}}'


def _cycle(start: str, signature: Signature) -> tuple[str, ...]:
    """The shortest way from a let back to itself, or ()."""
    paths: list[tuple[str, ...]] = [(start,)]
    seen: set[str] = set()
    for path in paths:
        for name in sorted(signature.lets[path[-1]].names & signature.lets.keys()):
            if name == start:
                return path
            if name not in seen:
                seen.add(name)
                paths.append((*path, name))
    return ()


def _metadata_calls(decl: TensorDecl) -> Iterator[Finding]:
    """`values` calls a generator, `requires` predicates; their arguments are checked on every branch."""
    if decl.requires and decl.values is None:
        yield f"{decl.where}.values", "a tensor with requires has values; name the generator"
    if decl.values is not None:
        yield from _calls_built_in(decl.values, GENERATORS, "generator")
    for predicate in decl.requires:
        yield from _calls_built_in(predicate, PREDICATES, "predicate")


def _calls_built_in(expr: Expr, registry: Mapping[str, Member], what: str) -> Iterator[Finding]:
    name = call_name(expr.node) if isinstance(expr.node, ast.Call) else None
    if name is None or name not in registry:
        known = suggestion(name, registry) or f"; known are {', '.join(sorted(registry))}"
        yield expr.where, f"{expr.source!r} calls no built-in {what}{known}"


# --- where names may stand ---


def all_exprs(entry: Entry) -> Iterator[tuple[str, Expr]]:
    """Every expression of an entry with its field, except the bodies of type families."""
    signature = entry.signature
    for decl in signature.tensors.values():
        yield f"{decl.where}.dtype", decl.dtype
        for expr in shape_exprs(decl.shape):
            yield f"{decl.where}.shape", expr
        for key in ("optional", "nullable", "mutated", "values"):
            expr = getattr(decl, key)
            if isinstance(expr, Expr):
                yield f"{decl.where}.{key}", expr
        for expr in decl.requires:
            yield expr.where, expr
    for name, expr in signature.lets.items():
        yield f"signature.let.{name}", expr
    for rule in signature.shape_rules:
        yield rule.where, rule
    for key in ("flops", "bytes"):
        formula = getattr(entry.roofline, key)
        if formula is not None:
            yield f"roofline.{key}", formula


def _lists_only_generate(entry: Entry) -> Iterator[Finding]:
    """Value lists of `forall` are read by generators only."""
    lists = {name for name, kind in entry.signature.indices.items() if kind == k.INTS}
    for field, expr in all_exprs(entry):
        misused = [] if field.endswith(".values") else sorted(lists & expr.names)
        if misused:
            yield field, f"{', '.join(misused)} is a value list of forall and only a generator's argument"


def check_uses(entry: Entry) -> Iterator[Finding]:
    """Every index and let is read by something."""
    signature = entry.signature
    used: set[str] = set().union(*signature.combos)
    for field, expr in all_exprs(entry):
        used |= expr.names - {field.removeprefix("signature.let.")}
    for section, names in (("forall", signature.indices), ("let", signature.lets)):
        for name in names:
            if name not in used:
                yield f"signature.{section}.{name}", f"nothing reads {name}; remove it"
