"""Static checks of one entry's declarations: key, names, order, effects, dtype combinations.

Every check yields `(field, message)` pairs; `tileops.manifest.validate` turns them into diagnostics.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator

from tileops.manifest import kinds as k
from tileops.manifest.entry import Entry
from tileops.manifest.expr import Expr
from tileops.manifest.kind_checks import Finding, unreadable_names
from tileops.manifest.signature import OUT

KEY = re.compile(r"[A-Z][A-Za-z0-9]*Op")
QUALIFIED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+")
#: Builtins that generated code calls, arguments that every op has, and the float inf; no declared name may hide them.
RESERVED = ("isinstance", "len", "tuple", "self", "target", "inf")


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
            if keyword.iskeyword(name) or name.startswith("_") or name in RESERVED:
                yield field, f"{name!r} cannot be used as a name; choose another"
            if name in first:
                yield field, f"{name!r} is also declared in {first[name]}; names of one entry are distinct"
            else:
                first[name] = f"signature.{section}"


def check_order(entry: Entry) -> Iterator[Finding]:
    """Optional inputs follow required ones, keyword-only inputs are optional and last, whether an output is there
    may vary, and a device parameter needs an op without inputs.
    """
    optional_seen: str | None = None
    keyword_seen: str | None = None
    for name, decl in entry.signature.inputs.items():
        if decl.kw_only:
            if decl.optional is not None:
                keyword_seen = name
            else:
                yield (
                    f"{decl.where}.kw_only",
                    "only an optional input is keyword-only; add optional or remove kw_only",
                )
        elif keyword_seen is not None:
            yield decl.where, f"keyword-only inputs come last; move {name} before {keyword_seen}"
        elif decl.optional is not None:
            optional_seen = name
        elif optional_seen is not None:
            yield decl.where, f"required inputs come first; move {name} before {optional_seen}"
    for decl in entry.signature.outputs.values():
        if decl.nullable is not None and decl.nullable.is_constant:
            yield (
                f"{decl.where}.nullable",
                f"{decl.nullable} is the same for every call; write when the output is returned, or remove the field",
            )
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
    for param in entry.signature.params.values():
        if param.tensor is not None and isinstance(param.tensor.optional, Expr):
            yield (
                f"{param.tensor.where}.optional",
                "the presence of a construction-time tensor is a discriminant of its own; write optional: true",
            )
    if "device" in entry.signature.params and entry.signature.inputs:
        yield (
            "signature.params.device",
            "only an op without call-time inputs declares a device; remove the parameter",
        )
    checked = entry.signature.params.get("validate_inputs")
    if checked is not None and (checked.kind != k.BOOL or checked.default is not False):
        yield (
            "signature.params.validate_inputs",
            "tensor contents are checked only where the caller asks; write {type: bool, default: false}",
        )


# --- effects, dtype combinations ---


def check_effects(entry: Entry) -> Iterator[Finding]:
    """The rules between mutated, write_only, buffer and alias."""
    signature = entry.signature
    for decl in signature.inputs.values():
        if decl.write_only and decl.mutated is None:
            yield f"{decl.where}.write_only", "only a mutated input is write_only; add mutated: true"
        elif decl.write_only and decl.mutated is not None and not decl.mutated.is_constant:
            yield f"{decl.where}.write_only", "a write_only input is written by every call; write mutated: true"
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
        if decl.alias in unreadable_names(entry)[0]:
            continue
        if target is None:
            yield f"{decl.where}.alias", f"{decl.alias!r} is no input; name the input that is written"
        elif target.mutated is None:
            yield (
                f"{decl.where}.alias",
                f"{decl.alias} is never written; declare it mutated or remove the alias",
            )
    if not signature.outputs and not any(decl.mutated is not None for decl in signature.inputs.values()):
        yield "signature.outputs", "the op returns nothing and writes nothing; declare an output or a mutated input"


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
                yield field, f"{name} is no dtype index or parameter; its columns are {', '.join(allowed) or 'none'}"
            elif dtype not in allowed[name]:
                yield field, f"{name} ranges over {', '.join(allowed[name])}, got {dtype}"
