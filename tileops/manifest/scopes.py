"""Names and kinds of an entry: before any guard, and on one branch, where presence and constructors are decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from tileops.manifest import kinds as k
from tileops.manifest.branch import Branch
from tileops.manifest.expr import Expr, ExpressionError, Scope, infer
from tileops.manifest.signature import OUT, Signature


def global_scope(signature: Signature, *, allow_bytes: bool = False) -> Scope:
    """Every name of an entry with its kind, before any guard. Lets that have no kind are left out."""
    return _with_lets(_declared(signature, allow_bytes), signature.lets)


def _declared(signature: Signature, allow_bytes: bool) -> Scope:
    names: dict[str, k.Kind] = {**signature.indices}
    names.update({name: param.kind for name, param in signature.params.items()})
    names.update(dict.fromkeys(signature.tensors, k.TENSOR))
    if signature.buffered is not None:
        names[OUT] = k.TENSOR
    return Scope(names, allow_bytes=allow_bytes)


def _with_lets(scope: Scope, lets: Mapping[str, Expr]) -> Scope:
    pending = dict(lets)
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
                continue  # reported where the let is checked
    return scope


@lru_cache(maxsize=64)
def branch_scope(branch: Branch) -> Scope:
    """Names and kinds on one branch."""
    scope = _declared(branch.signature, False)
    names = dict(scope.names)
    for name, there in branch.facts.present.items():
        kind = names.get(name)
        if isinstance(kind, k.Maybe):
            names[name] = kind.inner if there else k.NONE
    for name, kind in list(names.items()):
        constructor = branch.facts.constants.get(f"{name}.kind")
        if isinstance(kind, k.ADT) and constructor is not None:
            names[name] = kind.restricted((constructor,)) or kind
    present = frozenset(name for name, there in branch.facts.present.items() if there)
    absent = frozenset(branch.facts.present) - present
    return _with_lets(replace(scope, names=names, present=present, absent=absent), branch.lets)
