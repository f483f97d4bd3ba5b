"""Checks of type families: applied somewhere, matched over finite formals, cases that are values of them, and bodies
whose expressions have the right kinds under the guard of their case.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from tileops.manifest import adts
from tileops.manifest import kinds as k
from tileops.manifest.branch import matches
from tileops.manifest.entry import Entry
from tileops.manifest.expr import Application, Expr, ExpressionError, Scope, Segment, infer
from tileops.manifest.expr.inference import narrow
from tileops.manifest.kind_checks import Expressions, Finding, wanted
from tileops.manifest.signature import FamilyCase, Signature, TypeFamily
from tileops.manifest.suggest import suggestion


def check_families(entry: Entry) -> Iterator[Finding]:
    """Every family is applied by some shape, and well-formed; every application has arguments of its formals' kinds."""
    signature = entry.signature
    known = Expressions(entry)
    applied = _applied(signature)
    for name, family in signature.families.items():
        if name not in applied and applied <= signature.families.keys():  # else a name is misspelt
            yield f"signature.types.{name}", f"no shape applies {name}; remove it"
        yield from _family(family, signature)
    for decl in signature.tensors.values():
        if isinstance(decl.shape, Application) and all(known.readable(expr) for expr in decl.shape.arguments):
            yield from _application(decl.shape, known.scope, signature, f"{decl.where}.shape")


def _applied(signature: Signature) -> set[str]:
    """Families that some shape applies, directly or through another."""
    references = {
        name: {case.shape.family for case in family.cases if isinstance(case.shape, Application)}
        for name, family in signature.families.items()
    }
    found: set[str] = set()
    pending = [decl.shape.family for decl in signature.tensors.values() if isinstance(decl.shape, Application)]
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending.extend(references.get(name, ()))
    return found


def _family(family: TypeFamily, signature: Signature) -> Iterator[Finding]:
    field = f"signature.types.{family.name}"
    odd = sorted({free for expr in family.match for free in expr.names | expr.tested} - family.formals.keys())
    if odd:
        yield f"{field}.match", f"{', '.join(odd)} is no formal of {family.name}; match over its params"
        return
    scope = Scope(dict(family.formals))
    faults = [fault for subject in family.match for fault in _subject(subject, family, scope, f"{field}.match")]
    yield from faults
    if not faults:
        for position, case in enumerate(family.cases):
            yield from _case(family, case, scope, signature, f"{field}.cases[{position}]")


def _subject(subject: Expr, family: TypeFamily, scope: Scope, field: str) -> Iterator[Finding]:
    """A family matches over finite discriminants."""
    if _values(subject, family) is None:
        yield from wanted(subject, scope, field, lambda kind: kind == k.BOOL, "a Bool, an enum, an ADT or a presence")


def _values(subject: Expr, family: TypeFamily) -> tuple[Any, ...] | None:
    """Every value of a subject that is a formal, or None where its kind does not list them."""
    match family.formals.get(subject.text):
        case k.Bool():
            return (False, True)
        case k.Str(literals=literals):
            return literals
        case k.ADT() as adt:
            return adts.points(adt)
        case k.Maybe(inner=k.Bool()):
            return (None, False, True)
        case k.Maybe(inner=k.Str(literals=literals)) if literals is not None:
            return (None, *literals)
        case k.Maybe(inner=k.ADT() as adt):
            return (None, *adts.points(adt))
    return None


def _case(family: TypeFamily, case: FamilyCase, scope: Scope, signature: Signature, field: str) -> Iterator[Finding]:
    exprs = case.shape.arguments if isinstance(case.shape, Application) else [item.expr for item in case.shape]
    unknown = sorted({name for expr in exprs for name in expr.names | expr.tested} - family.formals.keys())
    if unknown:
        yield f"{field}.is", f"{', '.join(unknown)} is no formal of {family.name}; pass it as an argument"
        return
    for subject, value in zip(family.match, case.when, strict=True):
        values = _values(subject, family) or (False, True)
        if not any(matches((value,), (item,)) for item in values):
            listed = ", ".join(map(_literal, values))
            yield f"{field}.when", f"{_literal(value)} is no value of {subject}, which takes {listed}"
            return
        scope = _narrowed(subject, value, scope)
    if isinstance(case.shape, Application):
        yield from _application(case.shape, scope, signature, f"{field}.is")
        return
    for item in case.shape:
        if isinstance(item, Segment):
            expected: k.Kind = k.INTS
            what = "a Shape or a sequence of integers after *"
        else:
            expected, what = k.INT, "an integer"
        yield from wanted(item.expr, scope, f"{field}.is", partial(k.fits, expected=expected), what)


def _literal(value: Any) -> str:
    """A discriminant value as an entry writes it."""
    if isinstance(value, adts.ADTPoint):
        fields = ", ".join(f"{name}: {item}" for name, item in value.fields)
        return f"{{{value.kind}: {{{fields}}}}}" if fields else f"{{{value.kind}: _}}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_literal(item)}" for key, item in value.items()) + "}"
    return {True: "true", False: "false", None: "null"}.get(value, str(value)) if _is_plain(value) else repr(value)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | str)


def _narrowed(subject: Expr, value: Any, scope: Scope) -> Scope:
    """`scope` on the branch of a case."""
    name, kind = subject.text, scope.kind(subject.text)
    if kind is None or kind == k.BOOL:
        return narrow(subject, bool(value), scope)
    inner = kind.inner if isinstance(kind, k.Maybe) else kind
    if value is None:
        return scope.with_kind(name, k.NONE)
    if isinstance(inner, k.ADT):
        return scope.with_kind(name, inner.restricted(tuple(value)))
    return scope.with_kind(name, k.restrict(inner, (value,)))


def _application(shape: Application, scope: Scope, signature: Signature, field: str) -> Iterator[Finding]:
    """The family exists and takes these arguments."""
    family = signature.families.get(shape.family)
    if family is None:
        closest = suggestion(shape.family, signature.families)
        yield field, f"there is no type family {shape.family!r}{closest}; declare it in signature.types"
        return
    if len(shape.arguments) != len(family.formals):
        listed = ", ".join(family.formals)
        yield field, f"{family.name} takes {len(family.formals)} arguments ({listed}), got {len(shape.arguments)}"
        return
    for (formal, expected), argument in zip(family.formals.items(), shape.arguments, strict=True):
        try:
            kind = infer(argument, scope)
        except ExpressionError:
            continue  # a payload or a constructor's field: judged on the branches that read it
        # An axis may be any integer, and a spliced sequence any list of them: they are checked not to be negative.
        relaxed = {k.DIM: k.INT, k.SHAPE: k.INTS}.get(expected, expected)
        if not k.fits(kind, relaxed):
            yield (
                field,
                f"the argument {argument} is of kind {kind}, but {formal} of {family.name} is of kind {expected}",
            )
