"""One manifest entry: its signature, workload rows, cost formula, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tileops.manifest import adts
from tileops.manifest.expr import Expr, parse
from tileops.manifest.kinds import Resolve
from tileops.manifest.loading import RawEntry
from tileops.manifest.signature import (
    COMPOSITION_KEYS,
    ENTRY_KEYS,
    ROOFLINE_KEYS,
    STAGE_KEYS,
    Problem,
    Reader,
    Signature,
    read_signature,
)

STATUSES = ("implemented", "spec-only")


@dataclass(frozen=True)
class Roofline:
    """The cost of a call: inline formulas, or the path of a function.

    Attributes:
        flops: formula of the arithmetic, None with `func`.
        bytes: formula of the traffic, None where it follows from the signature.
        func: dotted path of ``f(call) -> (flops, bytes)``.
    """

    flops: Expr | None = None
    bytes: Expr | None = None
    func: str | None = None


@dataclass(frozen=True)
class Stage:
    """A place of a composite op: a manifest entry (`op`) or one of its own kernels (`kernel`)."""

    name: str
    op: str | None = None
    kernel: str | None = None
    optional: bool = False


@dataclass(frozen=True, eq=False)
class Entry:
    """One operator of the manifest.

    Attributes:
        name: class name of the operator.
        family: its public module.
        file: the spec file.
        status: "implemented" or "spec-only".
        ref_api: qualified name of the API that it follows.
        signature: its type.
        workloads: rows as written; `tileops.manifest.workload` instantiates them.
        roofline: its cost.
        composition: stages of a composite op, else ().
        problems: unreadable fields; empty for an entry that the validator accepts.
        raw: the mapping of the file.
    """

    name: str
    family: str
    file: str
    status: str
    ref_api: str | None
    signature: Signature
    workloads: tuple[Any, ...]
    roofline: Roofline
    composition: tuple[Stage, ...] = ()
    problems: tuple[Problem, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def implemented(self) -> bool:
        return self.status == "implemented"

    @property
    def has_boundary(self) -> bool:
        """Whether calls are torch.library operators: call-time tensors, and no composition."""
        return bool(self.signature.inputs) and not self.composition

    def __repr__(self) -> str:
        return f"<Entry {self.family}.{self.name} ({self.status})>"


def parse_entry(raw: RawEntry, resolve: Resolve = adts.lookup) -> Entry:
    """Parses every field of an entry; what cannot be read becomes a problem, never an exception.

    Args:
        raw: the entry as YAML gives it.
        resolve: the algebraic data type of a name, by default of the installed `types.yaml`.
    """
    problems: list[Problem] = []
    reader = Reader(problems)
    fields = reader.mapping(raw.fields, "entry", keys=ENTRY_KEYS)
    for required in ("status", "workloads", "roofline"):
        if required not in fields:
            reader.report(required, "the field is missing; every entry has it")
    status = fields.get("status", "spec-only")
    if status not in STATUSES:
        reader.report("status", f"expected {' or '.join(STATUSES)}, got {status!r}")
        status = "spec-only"
    ref_api = fields.get("ref_api")
    if ref_api is not None and not isinstance(ref_api, str):
        reader.report("ref_api", f"expected a qualified name, got {ref_api!r}")
        ref_api = None
    rows = reader.sequence(fields.get("workloads"), "workloads")
    if "workloads" in fields and not rows:
        reader.report("workloads", "there is no row; give at least one")
    if "composition" in fields and fields["composition"] is None:
        reader.report("composition", "the field is empty; write kind and stages, or remove it")
    signature = read_signature(fields.get("signature"), problems, resolve)
    return Entry(
        raw.name,
        raw.family,
        raw.file,
        status,
        ref_api,
        signature,
        tuple(rows),
        _read_roofline(reader, fields.get("roofline")),
        _read_composition(reader, fields.get("composition")),
        tuple(problems),
        raw.fields,
    )


def _read_roofline(reader: Reader, raw: Any) -> Roofline:
    fields = reader.mapping(raw, "roofline", keys=ROOFLINE_KEYS)
    func = fields.get("func")
    if func is not None and not (isinstance(func, str) and func.startswith("tileops.perf.formulas.")):
        reader.report("roofline.func", f"expected a function of tileops.perf.formulas, got {func!r}")
        func = None
    if raw is not None and ("func" in fields) == ("flops" in fields):
        reader.report("roofline", "give either flops (with bytes where the signature does not imply it) or func")
    if "func" in fields and "bytes" in fields:
        reader.report("roofline.bytes", "func gives the bytes; remove the field")

    def formula(key: str) -> Expr | None:
        if key not in fields:
            return None
        return reader.attempt(f"roofline.{key}", lambda: parse(fields[key], f"roofline.{key}"))

    return Roofline(formula("flops"), formula("bytes"), func)


def _read_composition(reader: Reader, raw: Any) -> tuple[Stage, ...]:
    fields = reader.mapping(raw, "composition", keys=COMPOSITION_KEYS)
    if raw is None:
        return ()
    if fields.get("kind") != "composite":
        reader.report("composition.kind", f"expected composite, got {fields.get('kind')!r}")
    stages: list[Stage] = []
    for position, item in enumerate(reader.sequence(fields.get("stages"), "composition.stages")):
        where = f"composition.stages[{position}]"
        stage = reader.mapping(item, where, keys=STAGE_KEYS)
        name, op, kernel = stage.get("name"), stage.get("op"), stage.get("kernel")
        if not isinstance(name, str) or not name:
            reader.report(where, "a stage has a name")
        elif (op is None) == (kernel is None):
            reader.report(where, "a stage names either an op or a kernel")
        elif not isinstance(op or kernel, str):
            reader.report(where, f"expected the name of an op or a kernel, got {op or kernel!r}")
        elif name in {known.name for known in stages}:
            reader.report(where, f"the stage name {name!r} occurs twice")
        else:
            stages.append(Stage(name, op, kernel, reader.flag(stage.get("optional"), f"{where}.optional")))
    if not stages:
        reader.report("composition.stages", "there is no stage; give at least one")
    return tuple(stages)
