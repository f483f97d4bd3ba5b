"""Static checks of one entry: names, kinds, families, effects, dtype combinations, plans and rows.

Every check yields `(field, message)` pairs; `tileops.manifest.validate` turns them into diagnostics.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Callable, Iterator
from typing import Any

from tileops.errors import ManifestError
from tileops.manifest import kinds as k
from tileops.manifest.branch import (
    discriminant_names,
    discriminants,
)
from tileops.manifest.entry import Entry
from tileops.manifest.expr import Application, Expr, ExpressionError, Scope, Segment, infer
from tileops.manifest.expr.syntax import call_name
from tileops.manifest.primitives import GENERATORS, PREDICATES, DomainError, Member
from tileops.manifest.roofline import formula_function
from tileops.manifest.signature import OUT, Signature, TensorDecl

Finding = tuple[str, str]

KEY = re.compile(r"[A-Z][A-Za-z0-9]*Op")
QUALIFIED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+")
#: Builtins that generated code calls; a declared name may not hide them.
HIDDEN_BUILTINS = ("isinstance", "len", "tuple")


# --- schema ---


def check_key(entry: Entry) -> Iterator[Finding]:
    """The key is a class name that ends in FwdOp, BwdOp or Op, with the direction last."""
    if not KEY.fullmatch(entry.name):
        yield "key", f"{entry.name!r} is no operator name; write PascalCase ending in FwdOp or BwdOp"
    for direction in ("Fwd", "Bwd"):
        stem = entry.name.removesuffix("Op")
        if direction in stem and not stem.endswith(direction):
            yield (
                "key",
                f"words of a variant stand before the direction; write {stem.replace(direction, '')}{direction}Op",
            )


def check_ref_api(entry: Entry) -> Iterator[Finding]:
    """`ref_api` is a qualified name."""
    if entry.ref_api is not None and not QUALIFIED.fullmatch(entry.ref_api):
        yield "ref_api", f"{entry.ref_api!r} is no qualified name; write for example torch.matmul"


# --- names ---


def check_names(entry: Entry) -> Iterator[Finding]:
    """Index, parameter, let and tensor names are distinct, not reserved, and usable in Python."""
    signature = entry.signature
    sections = {
        "forall": signature.indices,
        "params": signature.params,
        "inputs": signature.inputs,
        "outputs": signature.outputs,
        "let": signature.lets,
    }
    first: dict[str, str] = {}
    for section, names in sections.items():
        for name in names:
            field = f"signature.{section}.{name}"
            if name == OUT:
                yield field, "out is reserved for the output buffer; choose another name"
            if keyword.iskeyword(name) or name.startswith("_") or name in HIDDEN_BUILTINS:
                yield field, f"{name!r} cannot be used as a name; choose another"
            if name in first:
                yield field, f"{name!r} is also declared in {first[name]}; names of one entry are distinct"
            else:
                first[name] = f"signature.{section}"


def check_order(entry: Entry) -> Iterator[Finding]:
    """Optional inputs follow required ones, keyword-only inputs are optional, and a device parameter needs an
    op without inputs.
    """
    optional_seen: str | None = None
    for name, decl in entry.signature.inputs.items():
        if decl.kw_only:
            if decl.optional is None:
                yield (
                    f"{decl.where}.kw_only",
                    "only an optional input is keyword-only; add optional or remove kw_only",
                )
        elif decl.optional is not None:
            optional_seen = name
        elif optional_seen is not None:
            yield decl.where, f"required inputs come first; move {name} before {optional_seen}"
    default_seen: str | None = None
    for name, param in entry.signature.params.items():
        if param.kw_only:
            continue
        if not param.required:
            default_seen = name
        elif default_seen is not None:
            yield (
                f"signature.params.{name}",
                f"a parameter without a default cannot follow {default_seen}, which has one",
            )
    if "device" in entry.signature.params and entry.signature.inputs:
        yield (
            "signature.params.device",
            "only an op without call-time inputs declares a device; remove the parameter",
        )


# --- kinds ---


def global_scope(signature: Signature, *, allow_bytes: bool = False) -> Scope:
    """Every name of an entry with its kind, before any guard; lets by inference, unreadable ones left out."""
    names: dict[str, k.Kind] = {**signature.indices}
    names.update({name: param.kind for name, param in signature.params.items()})
    names.update(dict.fromkeys(signature.tensors, k.TENSOR))
    if signature.buffered is not None:
        names[OUT] = k.TENSOR
    scope = Scope(names, allow_bytes=allow_bytes)
    pending = dict(signature.lets)
    progress = True
    while pending and progress:
        progress = False
        for name, expr in list(pending.items()):
            if expr.names & pending.keys():
                continue
            del pending[name]
            progress = True
            try:
                scope = scope.with_kind(name, infer(expr, scope))
            except ExpressionError:
                scope = scope.with_kind(name, k.INT)  # reported by check_kinds, once
    for name in pending:
        scope = scope.with_kind(name, k.INT)  # lets in a cycle; reported where a plan is made
    return scope


def check_kinds(entry: Entry) -> Iterator[Finding]:
    """Every expression that no discriminant point is needed for has the kind that its place wants."""
    signature = entry.signature
    scope = global_scope(signature)
    for name, expr in signature.lets.items():
        yield from wanted(
            expr,
            scope,
            f"signature.let.{name}",
            lambda kind: not isinstance(kind, k.Tensor | k.NoneKind),
            "a value",
        )
    for position, rule in enumerate(signature.shape_rules):
        field = f"signature.shape_rules[{position}]"
        yield from _definitions(rule, scope, field)
        yield from wanted(rule, scope, field, lambda kind: kind == k.BOOL, "a condition")
    for decl in signature.tensors.values():
        for key in ("optional", "nullable", "mutated"):
            expr = getattr(decl, key)
            if isinstance(expr, Expr):
                yield from wanted(expr, scope, f"{decl.where}.{key}", lambda kind: kind == k.BOOL, "a condition")
                yield from _finite(expr, signature, f"{decl.where}.{key}")
        yield from _metadata_calls(decl, signature, scope)
    cost_scope = global_scope(signature, allow_bytes=True)
    for key in ("flops", "bytes"):
        formula = getattr(entry.roofline, key)
        if formula is not None:
            yield from wanted(formula, cost_scope, f"roofline.{key}", lambda kind: k.fits(kind, k.NUMBER), "a number")
    if entry.roofline.func is not None:
        try:
            formula_function(entry.roofline.func)
        except (ManifestError, ImportError) as error:
            yield "roofline.func", str(error).removeprefix("roofline.func: ")
    yield from _lists_only_generate(signature)


def wanted(expr: Expr, scope: Scope, field: str, accepts: Callable[[k.Kind], bool], what: str) -> Iterator[Finding]:
    """Finds that an expression has no kind, or not one that its place accepts."""
    try:
        kind = infer(expr, scope)
    except ExpressionError as error:
        yield field, str(error).removeprefix(f"{expr.where}: ")
        return
    if not accepts(kind):
        yield field, f"expected {what}, {expr.source!r} is of kind {kind}"


def _definitions(rule: Expr, scope: Scope, field: str) -> Iterator[Finding]:
    """An equality whose one side is an undeclared name defines it: that is a let."""
    match rule.node:
        case ast.Compare(left=ast.Name(id=name), ops=[ast.Eq()], comparators=[right]) if scope.kind(name) is None:
            yield field, f'an equality does not define a name; write let: {{{name}: "{ast.unparse(right)}"}}'


def _finite(expr: Expr, signature: Signature, field: str) -> Iterator[Finding]:
    values, _ = discriminant_names(discriminants(signature))
    odd = sorted(expr.names - values)
    if odd:
        yield (
            field,
            f"{', '.join(odd)} is no finite discriminant; use Bool and enum parameters and present(...)",
        )


def _metadata_calls(decl: TensorDecl, signature: Signature, scope: Scope) -> Iterator[Finding]:
    if decl.requires and decl.values is None:
        yield f"{decl.where}.values", "a tensor with requires has values; name the generator"
    if decl.values is not None:
        yield from _member_call(decl.values, f"{decl.where}.values", GENERATORS, "generator", signature, scope)
        member = GENERATORS.get(call_name(decl.values.node) or "") if isinstance(decl.values.node, ast.Call) else None
        if member is not None and member.rank is not None and not isinstance(decl.shape, Application):
            axes = len(decl.shape)
            if axes != member.rank or any(isinstance(item, Segment) for item in decl.shape):
                yield (
                    f"{decl.where}.shape",
                    f"{member.name} makes a tensor of rank {member.rank}, the shape has {axes} axes",
                )
    for position, predicate in enumerate(decl.requires):
        yield from _member_call(
            predicate, f"{decl.where}.requires[{position}]", PREDICATES, "predicate", signature, scope
        )


def _member_call(
    expr: Expr, field: str, registry: dict[str, Any], what: str, signature: Signature, scope: Scope
) -> Iterator[Finding]:
    name = call_name(expr.node) if isinstance(expr.node, ast.Call) else None
    if name is None or name not in registry:
        yield field, f"{expr.source!r} calls no built-in {what}; known are {', '.join(sorted(registry))}"
        return
    member: Member = registry[name]
    assert isinstance(expr.node, ast.Call)
    tensors = {formal.name for formal in member.formals if formal.tensor}
    positions = [formal.name for formal in member.formals]
    try:
        kinds: list[k.Kind] = []
        for position, argument in enumerate(expr.node.args):
            is_tensor = position < len(positions) and positions[position] in tensors
            if is_tensor and isinstance(argument, ast.Name) and argument.id in signature.inputs:
                kinds.append(k.TENSOR)
            else:
                kinds.append(infer(expr.with_node(argument), scope))
        named = {item.arg: infer(expr.with_node(item.value), scope) for item in expr.node.keywords if item.arg}
        member.bind(kinds, named)
    except ExpressionError as error:
        yield field, str(error).removeprefix(f"{expr.where}: ")
    except DomainError as error:
        yield field, f"in {expr.source!r}: {error}"


def _lists_only_generate(signature: Signature) -> Iterator[Finding]:
    lists = {name for name, kind in signature.indices.items() if kind == k.INTS}
    if not lists:
        return
    for field, expr in _all_exprs(signature):
        misused = sorted(lists & expr.names)
        if misused:
            yield field, f"{', '.join(misused)} is a value list of forall and only a generator's argument"


def _all_exprs(signature: Signature) -> Iterator[tuple[str, Expr]]:
    for decl in signature.tensors.values():
        yield f"{decl.where}.dtype", decl.dtype
        exprs = decl.shape.arguments if isinstance(decl.shape, Application) else tuple(item.expr for item in decl.shape)
        for expr in exprs:
            yield f"{decl.where}.shape", expr
    for name, expr in signature.lets.items():
        yield f"signature.let.{name}", expr
    for position, rule in enumerate(signature.shape_rules):
        yield f"signature.shape_rules[{position}]", rule


# --- families, effects, dtype combinations ---


def check_families(entry: Entry) -> Iterator[Finding]:
    """Every family is applied by some shape, and references between families do not form a cycle."""
    signature = entry.signature
    references = {
        name: {case.shape.family for case in family.cases if isinstance(case.shape, Application)}
        for name, family in signature.families.items()
    }
    applied: set[str] = set()
    pending = [decl.shape.family for decl in signature.tensors.values() if isinstance(decl.shape, Application)]
    while pending:
        name = pending.pop()
        if name not in applied:
            applied.add(name)
            pending.extend(sorted(references.get(name, ())))
    for name, family in signature.families.items():
        field = f"signature.types.{name}"
        if name not in applied:
            yield field, f"no shape applies {name}; remove it"
        odd = sorted({free for expr in family.match for free in expr.names | expr.tested} - family.formals.keys())
        if odd:
            yield f"{field}.match", f"{', '.join(odd)} is no formal of {name}; match over its params"
        for position, case in enumerate(family.cases):
            if not isinstance(case.shape, Application):
                free = {name for item in case.shape for name in item.expr.names}
                unknown = sorted(free - family.formals.keys())
                if unknown:
                    yield (
                        f"{field}.cases[{position}].is",
                        f"{', '.join(unknown)} is no formal of {name}; pass it as an argument",
                    )


def check_effects(entry: Entry) -> Iterator[Finding]:
    """The rules between mutated, write_only, buffer and alias."""
    signature = entry.signature
    for decl in signature.inputs.values():
        if decl.write_only and decl.mutated is None:
            yield f"{decl.where}.write_only", "only a mutated input is write_only; add mutated: true"
        if decl.write_only and decl.optional is not None:
            yield f"{decl.where}.write_only", "a write_only input is required; remove optional"
    buffers = [decl for decl in signature.outputs.values() if decl.buffer]
    for decl in buffers[1:]:
        yield f"{decl.where}.buffer", f"at most one output declares a buffer; {buffers[0].name} does already"
    for decl in signature.outputs.values():
        if decl.alias is None:
            continue
        if decl.buffer:
            yield f"{decl.where}.alias", "an output with an alias declares no buffer; keep one of them"
        target = signature.inputs.get(decl.alias)
        if target is None:
            yield f"{decl.where}.alias", f"{decl.alias!r} is no input; name the input that is written"
        elif target.mutated is None:
            yield (
                f"{decl.where}.alias",
                f"{decl.alias} is never written; declare it mutated or remove the alias",
            )


def check_combos(entry: Entry) -> Iterator[Finding]:
    """Rows of dtype_combos have the same keys, are distinct, and stay inside the declared sets."""
    signature = entry.signature
    combos = signature.combos
    allowed: dict[str, tuple[str, ...]] = {}
    for name, kind in (
        *signature.indices.items(),
        *((name, param.kind) for name, param in signature.scalars.items()),
    ):
        inner = kind.inner if isinstance(kind, k.Maybe) else kind
        if isinstance(inner, k.DType):
            allowed[name] = inner.names
    for position, row in enumerate(combos):
        field = f"signature.dtype_combos[{position}]"
        if row.keys() != combos[0].keys():
            yield field, f"every row has the same keys; expected {', '.join(combos[0])}, got {', '.join(row)}"
        if row in combos[:position]:
            yield field, "the row is already listed; remove it"
        for name, dtype in row.items():
            if name not in allowed:
                yield field, f"{name} is no dtype index or parameter"
            elif dtype not in allowed[name]:
                yield field, f"{name} ranges over {', '.join(allowed[name])}, got {dtype}"
