"""Algebraic data types: types.yaml, values and their Python objects, guards, type families, invariants."""

from __future__ import annotations

import pickle
from enum import Enum
from typing import Any

import pytest
import torch
import yaml

from tests.manifest.calls import empty
from tests.manifest.helpers import findings, simple
from tileops.errors import CheckError, ManifestError
from tileops.manifest import adts
from tileops.manifest import kinds as k
from tileops.manifest.branch import discriminant_names as finite_names
from tileops.manifest.branch import discriminants, is_domain_restriction
from tileops.manifest.entry import Entry, parse_entry
from tileops.manifest.expr import ExpressionError, Scope, infer, parse
from tileops.manifest.loading import RawEntry
from tileops.manifest.values import ValueMismatch, convert
from tileops.manifest.workload import RowError, cases
from tileops.ops.moe.contracts import (
    ContiguousLayoutSpec,
    ContiguousMetadata,
    ContiguousPacking,
    MaskedLayoutSpec,
)
from tileops.ops.signature_codegen import signature_for

LAYOUT = adts.lookup("MGroupedLayout") or k.ADT("missing")
TIGHT = {"contiguous": {"packing": "tight", "metadata_kind": "per_row", "alignment": 1}}
ALIGNED = {"contiguous": {"packing": "aligned", "metadata_kind": "physical_psum", "alignment": 8}}
MASKED = {"masked": {"max_m": 16}}

SIGNATURE = """
forall: {E: Dim, P: Dim, K: Dim}
params:
  layout: {type: MGroupedLayout}
types:
  Rows:
    params: {form: MGroupedLayout, E: Dim, P: Dim, K: Dim}
    match: form
    cases:
    - {when: {masked: _}, is: "[E, form.max_m, K]"}
    - {when: {contiguous: {metadata_kind: per_row}}, is: "[P, K]"}
    - {when: {contiguous: {metadata_kind: physical_psum}}, is: "[P, 1, K]"}
inputs:
  x: {dtype: float32, shape: "Rows[layout, E, P, K]"}
  counts: {dtype: int32, shape: "[E]"}
outputs:
  y: {dtype: float32, shape: "Rows[layout, E, P, K]"}
shape_rules:
- "layout.kind == 'masked' or layout.packing == 'tight' or layout.alignment % 8 == 0"
"""
ROWS = """
- {layout: {masked: {max_m: 16}}, E: 4, K: 8, label: masked}
- {layout: {contiguous: {packing: tight, metadata_kind: per_row, alignment: 1}}, E: 4, P: 20, K: 8, label: tight}
- {layout: {contiguous: {packing: aligned, metadata_kind: physical_psum, alignment: 8}}, E: 4, P: 24, K: 8, label: psum}
"""


def toy(signature: str = SIGNATURE, rows: str = ROWS, name: str = "LayoutToyFwdOp") -> Entry:
    return parse_entry(RawEntry(name, "toy", "toy.yaml", simple(signature, rows, '{flops: "E * K"}')))


def objects() -> list[Any]:
    aligned = ContiguousLayoutSpec(ContiguousPacking.ALIGNED, ContiguousMetadata.PHYSICAL_PSUM, 8)
    return [ContiguousLayoutSpec(ContiguousPacking.TIGHT, ContiguousMetadata.PER_ROW), aligned, MaskedLayoutSpec(16)]


# --- values ---


# rule: 001 "A test round-trips a real object per ADT"; 001 Table 5; 000 section 3
@pytest.mark.parametrize("value", objects(), ids=lambda value: value.kind)
def test_an_object_is_its_value_and_back(value: Any) -> None:
    converted = convert(value, LAYOUT, lambda item: None)
    assert isinstance(converted, adts.ADTValue)
    assert converted.kind == value.kind
    for name, item in converted.fields:
        attribute = getattr(value, name)
        assert item == (attribute.value if isinstance(attribute, Enum) else attribute)
    assert adts.to_object(converted) == value
    assert convert(converted.literal(), LAYOUT) == converted == pickle.loads(pickle.dumps(converted))


# rule: 001 "Each constructor maps to a Python class"
def test_every_constructor_of_the_manifest_has_a_class() -> None:
    types, problems = adts.installed()
    assert types
    assert not problems
    for adt in types.values():
        for constructor in adt.constructors:
            assert adts.import_path(constructor.python).kind == constructor.name
            for field in constructor.fields:
                if field.python is not None:
                    members = adts.import_path(field.python)
                    assert tuple(member.value for member in members) == field.finite


# rule: 001 "An ADT value is written as a literal {constructor: {field: value}}"
@pytest.mark.parametrize(
    ("literal", "message"),
    [
        ({"sparse": {}}, "MGroupedLayout has no constructor 'sparse'; it has contiguous, masked"),
        ({"masked": {}}, "masked misses the field max_m"),
        ({"masked": {"max_m": 1, "rows": 2}}, "masked has no field 'rows'; it has max_m"),
        ({"masked": {"max_m": -1}}, "field max_m of masked: expected a non-negative integer, got -1"),
        ({"masked": 3}, "the fields of masked are a mapping, got 3"),
        ("masked", "expected {constructor: {field: value}} with one of contiguous, masked, got 'masked'"),
        (
            {"contiguous": {"packing": "loose", "metadata_kind": "per_row", "alignment": 1}},
            "field packing of contiguous: expected one of 'tight', 'aligned', got 'loose'",
        ),
    ],
)
def test_literals_that_are_no_value(literal: Any, message: str) -> None:
    with pytest.raises(ValueMismatch) as caught:
        convert(literal, LAYOUT)
    assert message in str(caught.value)


# rule: 001 "invariant is an optional refinement on a constructor, checked at instantiation and at construction"
def test_invariants_hold_of_rows_and_of_objects() -> None:
    broken = {"contiguous": {"packing": "tight", "metadata_kind": "per_row", "alignment": 8}}
    message = r"which every contiguous of MGroupedLayout obeys, fails for packing='tight', alignment=8"
    with pytest.raises(ValueMismatch, match=message):
        convert(broken, LAYOUT)
    with pytest.raises(RowError, match=message):
        cases(toy(rows=yaml.safe_dump([{"layout": broken, "E": 1, "P": 1, "K": 1, "label": "broken"}])))

    class Unchecked(MaskedLayoutSpec):
        def __post_init__(self) -> None:
            pass

    with pytest.raises(CheckError, match=r"params\.layout: field max_m of masked: expected a non-negative integer"):
        signature_for(toy()).construct(layout=Unchecked(-1))


# rule: 001 Table 5 no. 1 "the class named by `python`; an instance of it"
def test_construction_takes_objects_only() -> None:
    signature = signature_for(toy())
    construction = signature.construct(layout=(given := MaskedLayoutSpec(16)))
    assert construction.params["layout"] is given
    assert construction.values["layout"] == convert(MASKED, LAYOUT)
    for value in ("masked", MASKED, None):
        with pytest.raises(CheckError, match=r"params\.layout: expected ContiguousLayoutSpec or MaskedLayoutSpec"):
            signature.construct(layout=value)


# --- types.yaml ---


# rule: 001 "types.yaml declares each ADT under adts as a sum of constructors"
@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        ("{types: {}}", "types", "unknown key 'types'; known are adts"),
        ("{adts: {Layout: {sum: {}}}}", "adts.Layout.sum", "there is no constructor"),
        ("{adts: {layout: {sum: {a: {python: x.A}}}}}", "adts.layout", "is no type name"),
        ("{adts: {L: {sum: {a: {}}}}}", "adts.L.sum.a.python", "expected the path of the Python class"),
        (
            "{adts: {L: {sum: {a: {python: x.A, fields: {n: Shape}}}}}}",
            "adts.L.sum.a.fields.n",
            "expected Dim, Int, Bool",
        ),
        (
            "{adts: {L: {sum: {a: {python: x.A, fields: {kind: Int}}}}}}",
            "adts.L.sum.a.fields.kind",
            "cannot be the name",
        ),
        (
            "{adts: {L: {sum: {a: {python: x.A, fields: {n: {type: int, python: x.E}}}}}}}",
            "adts.L.sum.a.fields.n.type",
            "an enum field is a union of string literals",
        ),
        (
            "{adts: {L: {sum: {a: {python: x.A, fields: {n: Dim}, invariant: 'n + 1'}}}}}",
            "adts.L.sum.a.invariant",
            "expected a condition, 'n + 1' is of kind Dim",
        ),
        (
            "{adts: {L: {sum: {a: {python: x.A, fields: {n: Dim}, invariant: 'm > 1'}}}}}",
            "adts.L.sum.a.invariant",
            "'m' is not declared",
        ),
    ],
)
def test_faults_of_types_yaml(text: str, field: str, message: str) -> None:
    found: list[tuple[str, str]] = []
    adts.parse_types(yaml.safe_load(text), lambda where, what: found.append((where, what)))
    assert [where for where, _ in found] == [field]
    assert message in found[0][1]


def test_a_missing_class_is_named() -> None:
    adt = k.ADT("L", (k.Constructor("a", "tileops.nowhere.A"),))
    with pytest.raises(ManifestError, match=r"tileops\.nowhere\.A cannot be imported"):
        adts.to_object(adts.ADTValue("L", "a"), adt)


# --- expressions ---


SCOPE = Scope({"layout": LAYOUT, "maybe": k.Maybe(LAYOUT), "N": k.DIM})


# rule: 001 Table 10 no. 5 "an ADT field only on its constructor's branch, plus kind"
@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("layout.kind", k.Str(("contiguous", "masked"))),
        ("layout.max_m if layout.kind == 'masked' else N", k.DIM),
        ("N if layout.kind != 'masked' else layout.max_m", k.DIM),
        ("layout.kind == 'contiguous' and layout.alignment > 1", k.BOOL),
        ("layout.kind != 'contiguous' or layout.packing == 'tight'", k.BOOL),
        ("not (layout.kind == 'masked' and layout.max_m > 3)", k.BOOL),
        ("layout.kind in ('masked',) and layout.max_m > 3", k.BOOL),
        ("present(maybe) and maybe.value.kind == 'masked' and maybe.value.max_m > 3", k.BOOL),
        ("present(maybe) and maybe.kind == 'masked' and maybe.max_m > 3", k.BOOL),
        ("moe.capacity(layout, 3, N)", k.DIM),
    ],
)
def test_fields_where_their_constructor_is_known(source: str, kind: k.Kind) -> None:
    assert infer(parse(source, "here"), SCOPE) == kind


# rule: 001 "a constructor's own fields are readable only on its branches"
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("layout.max_m", "'max_m' is a field of masked only, but layout may be contiguous here; guard it with"),
        ("layout.kind == 'masked' or layout.max_m > 3", "no constructor of MGroupedLayout that is possible here"),
        ("layout.kind == 'contiguous' and layout.max_m > 3", "no constructor of MGroupedLayout that is possible"),
        ("layout.rows", "no constructor of MGroupedLayout that is possible here has a field 'rows'"),
        ("layout.kind == 'sparse'", "'sparse' is no value of 'layout.kind', which takes 'contiguous', 'masked'"),
        ("maybe.kind == 'masked'", "maybe.kind is read where maybe may be absent; guard it with present(maybe)"),
        ("N.kind == 'a'", "'N' is of kind Dim, which has no field 'kind'"),
        ("layout == 3", "never equals 3"),
        ("layout + 1", "arithmetic needs numbers"),
    ],
)
def test_fields_that_may_not_be_there(source: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        infer(parse(source, "here"), SCOPE)
    assert message in str(caught.value)


# --- discriminants and families ---


# rule: 001 "match takes a finite discriminant — Bool, enum, ADT, present"
def test_points_are_constructors_with_their_finite_fields() -> None:
    (choice,) = discriminants(toy().signature)
    assert [repr(value) for value in choice.values] == [
        "contiguous(packing='tight', metadata_kind='physical_psum')",
        "contiguous(packing='tight', metadata_kind='per_row')",
        "contiguous(packing='aligned', metadata_kind='physical_psum')",
        "contiguous(packing='aligned', metadata_kind='per_row')",
        "masked()",
    ]


# rule: 001 "{<constructor>: _} matches any value of that constructor, ... also constrains a finite field"
def test_a_family_is_matched_by_constructor_and_field() -> None:
    shapes = {call.label: (call.inputs["x"].shape, call.outputs["y"].shape) for call in cases(toy())}
    assert shapes == {
        "masked": ((4, 16, 8), (4, 16, 8)),
        "tight": ((20, 8), (20, 8)),
        "psum": ((24, 1, 8), (24, 1, 8)),
    }
    assert findings(simple(SIGNATURE, ROWS, '{flops: "E * K"}')) == []


# rule: 001 "cases are exhaustive and disjoint over the discriminant values the entry accepts"
def test_families_cover_every_constructor_once() -> None:
    lacking = SIGNATURE.replace('    - {when: {masked: _}, is: "[E, form.max_m, K]"}\n', "")
    assert any("no case for masked()" in item for item in findings(simple(lacking, ROWS)))
    twice = SIGNATURE.replace("{metadata_kind: physical_psum}}", "_}")
    assert any("2 cases for contiguous(" in item for item in findings(simple(twice, ROWS)))


# rule: 001 "an entry that does not accept the new constructor rejects it with a domain restriction"
def test_a_domain_restriction_excludes_a_constructor() -> None:
    only = SIGNATURE.replace('    - {when: {masked: _}, is: "[E, form.max_m, K]"}\n', "")
    only = only.replace("shape_rules:", "shape_rules:\n- \"layout.kind == 'contiguous'\"")
    rows = yaml.safe_dump([row for row in yaml.safe_load(ROWS) if row["label"] != "masked"])
    assert findings(simple(only, rows, '{flops: "E * K"}')) == []
    with pytest.raises(CheckError, match=r"shape_rules\[0\]: \"layout\.kind == 'contiguous'\" does not hold"):
        signature_for(toy(only, rows, "OnlyToyFwdOp")).construct(layout=MaskedLayoutSpec(16))


# rule: 001 "A refinement that reads only discriminants — every name and ADT field it reads"
def test_a_domain_restriction_reads_finite_fields_only() -> None:
    signature = toy().signature
    finite = finite_names(discriminants(signature))
    assert is_domain_restriction(parse("layout.packing == 'tight' or layout.kind == 'masked'", "r"), signature, finite)
    assert not is_domain_restriction(parse("layout.kind == 'masked' and layout.max_m > 1", "r"), signature, finite)
    assert not is_domain_restriction(parse("moe.capacity(layout, 1, 1) > 1", "r"), signature, finite)


# rule: 001 "invariant is an optional refinement"; a point that the invariant excludes needs no case
def test_an_invariant_excludes_points() -> None:
    flag = k.Field("wide", k.BOOL)
    mode = k.Field("mode", k.Str(("a", "b")), "x.Mode")
    invariant = parse("mode == 'a' or not wide", "invariant")
    adt = k.ADT("Form", (k.Constructor("only", "x.Only", (flag, mode), invariant),))
    text = """
    params: {form: {type: Form}}
    types:
      S: {params: {wide: Bool, b: Bool}, match: [wide, b], cases: [
        {when: [true, false], is: "[2]"}, {when: [false, true], is: "[3]"}, {when: [false, false], is: "[4]"}]}
    inputs: {x: {dtype: float32, shape: "S[form.wide, form.mode == 'b']"}}
    outputs: {y: {dtype: float32, shape: "[]"}}
    """
    raw = RawEntry("FormFwdOp", "toy", "toy.yaml", simple(text))
    entry = parse_entry(raw, lambda name: adt if name == "Form" else None)
    from tileops.manifest.branch_checks import branches

    assert [str(item.inputs["x"].shape_text) for item in branches(entry) if not isinstance(item, tuple)] == [
        "[4]",
        "[3]",
        "[2]",
    ]


# --- calls ---


def test_the_generated_check_reads_fields() -> None:
    signature = signature_for(toy())
    construction = signature.construct(layout=MaskedLayoutSpec(16))
    good = (empty(4, 16, 8), empty(4, dtype=torch.int32))
    assert signature.check_call(construction, good).outputs[0].shape == (4, 16, 8)
    with pytest.raises(CheckError, match=r"axis 1 is 15 where \[E, layout\.max_m, K\] needs layout\.max_m = 16"):
        signature.check_call(construction, (empty(4, 15, 8), good[1]))
    aligned = ContiguousLayoutSpec(ContiguousPacking.ALIGNED, ContiguousMetadata.PER_ROW, 12)
    with pytest.raises(CheckError, match=r"shape_rules\[0\].*does not hold for layout=contiguous\(packing='aligned'"):
        signature.construct(layout=aligned)
