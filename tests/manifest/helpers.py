"""Entries from YAML text, for tests that need small or faulty ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import yaml

from tileops.manifest.entry import Entry, parse_entry
from tileops.manifest.expr import Expr, Scope, parse
from tileops.manifest.loading import RawEntry
from tileops.manifest.validate import check_entry

#: A valid entry that uses most fields; mutations of it must each be found.
BASE = """
family: toy
status: spec-only
ref_api: torch.matmul
signature:
  forall: {M: Dim, N: Dim, K: Dim, seq_lens: "Seq[Int]", T: "DType[float16 | float32]"}
  params:
    transposed: {type: bool, default: false}
    mode: {type: "'sum' | 'mean'", default: sum}
    groups: {type: int, default: 1}
    limit: {type: "int | None", default: null}
    inplace: {type: bool, default: false, kw_only: true}
  types:
    Mat:
      params: {flipped: Bool, rows: Dim, columns: Dim}
      match: flipped
      cases:
      - {when: false, is: "[rows, columns]"}
      - {when: true, is: "[columns, rows]"}
  inputs:
    a: {dtype: T, shape: "Mat[transposed, M, K]", mutated: inplace}
    b: {dtype: T, shape: "[K, 2 * N]"}
    ids: {dtype: int32, shape: "[M]", values: "packed_positions(seq_lens)", requires: ["in_range(0, 100)"]}
    bias: {dtype: float32, shape: "[N]", optional: true}
  outputs:
    output: {dtype: T, shape: "Mat[transposed, M, K]", alias: a}
    norm: {dtype: float32, shape: "[half]"}
  let:
    half: "N // groups"
  shape_rules:
  - "groups > 0 and N % groups == 0"
  - "not present(limit) or limit.value <= K"
workloads:
- {seq_lens: [3, 2], N: 4, K: 8, dtype_cases: [{T: float16}, {T: float32}], label: small}
- {seq_lens: "repeat(2, 4)", N: 4, K: 8, transposed: true, some: [bias],
   dtype_cases: [{T: float32}], label: biased}
roofline:
  flops: "4 * M * N * K + (N if present(bias) else 0)"
"""

#: A second valid entry, with what `BASE` lacks: an ADT, a family over two subjects, a construction-time tensor, an
#: output buffer, two related metadata tensors, dtype combinations, a keyword-only input and a composition.
GROUPED = """
family: toy
status: spec-only
signature:
  forall:
    M: Dim
    N: Dim
    K: Dim
    E: Dim
    sizes: "Seq[Int]"
    T: "DType[float16 | bfloat16]"
    W: "DType[float16 | bfloat16 | uint8]"
    I: "DType[int32 | int64]"
  params:
    layout: {type: MGroupedLayout}
    table: {dtype: float32, shape: "[K, 2]", optional: true}
    padding: {type: "int | 'same'", default: 0}
    scaled: {type: bool, default: false}
    out_dtype: {type: "float16 | float32 | None", default: null, kw_only: true}
  types:
    Rows:
      params: {kind: MGroupedLayout, scaled: Bool, tokens: Dim, experts: Dim}
      match: [kind, scaled]
      cases:
      - {when: [{masked: _}, false], is: "[experts, kind.max_m]"}
      - {when: [{contiguous: {packing: tight}}, false], is: "[tokens]"}
      - {when: [{contiguous: {packing: aligned}}, false], is: "[experts, 1]"}
      - {when: [{masked: _}, true], is: "[experts]"}
      - {when: [{contiguous: _}, true], is: "[experts, 2]"}
  inputs:
    x: {dtype: T, shape: "[M, K]", contiguous: true}
    w: {dtype: W, shape: "[E, K, N]"}
    counts: {dtype: I, shape: "[E]", values: "as_tensor(sizes)", requires: ["sums_to(M)"]}
    offsets: {dtype: I, shape: "[E]", values: "exclusive_prefix_sum(sizes)", requires: ["exclusive_prefix_of(counts)"]}
    result: {dtype: float32, shape: "[M]", mutated: true, write_only: true}
    scale: {dtype: float32, shape: "[E]", optional: "scaled"}
    bias: {dtype: T, shape: "[E, N]", optional: true, kw_only: true}
    lengths: {dtype: int32, shape: "[E]", device: cpu, optional: true, kw_only: true, values: "full((E,), 1)"}
  outputs:
    output: {dtype: "coalesce_dtype(out_dtype, T)", shape: "[M, N]", buffer: out}
    stats: {dtype: float32, shape: "Rows[layout, scaled, M, E]", nullable: "scaled or layout.kind == 'contiguous'"}
  shape_rules:
  - "not present(bias) or not scaled"
  - "(0 if padding == 'same' else padding) >= 0"
  dtype_combos:
  - {T: float16, W: float16}
  - {T: bfloat16, W: bfloat16}
  - {T: bfloat16, W: uint8}
workloads:
- {M: 8, N: 16, K: 4, sizes: [3, 5], layout: {masked: {max_m: 8}}, some: [bias, table],
   dtype_cases: [{T: float16, W: float16, I: int32}, {T: bfloat16, W: uint8, I: int32}], label: masked}
- {M: 8, N: 16, K: 4, sizes: "repeat(4, 2)", scaled: true, some: [lengths],
   layout: {contiguous: {packing: tight, metadata_kind: per_row, alignment: 1}},
   dtype_cases: [{T: bfloat16, W: bfloat16, I: int64}], label: scaled}
roofline:
  flops: "2 * M * N * K + (M * N if present(bias) else 0)"
  bytes: "bytes(x) + bytes(w) + bytes(counts) + (bytes(bias) if present(bias) else 0) + M * 4"
composition:
  kind: composite
  stages:
  - {name: gate, op: GateFwdOp}
  - {name: experts, kernel: grouped}
  - {name: combine, op: CombineFwdOp, optional: true}
"""


def entry(text: str | dict[str, Any], name: str = "ToyFwdOp", file: str = "toy.yaml") -> Entry:
    """The entry of YAML text."""
    fields = yaml.safe_load(text) if isinstance(text, str) else text
    return parse_entry(RawEntry(name, fields.get("family", "toy"), file, fields))


#: Operators that compositions in tests may name.
KNOWN = frozenset({"GateFwdOp", "CombineFwdOp"})

_PARSED = {text: yaml.safe_load(text) for text in (BASE, GROUPED)}


def base(text: str = BASE) -> dict[str, Any]:
    """The fields of `BASE` or `GROUPED`, to be changed."""
    return copy.deepcopy(_PARSED[text])


def findings(fields: str | dict[str, Any], name: str = "ToyFwdOp") -> list[str]:
    """Static diagnostics as ``field: message``."""
    return [f"{item.field}: {item.message}" for item in check_entry(entry(fields, name), KNOWN)]


def mutated(change: Callable[[dict[str, Any]], None]) -> list[str]:
    """Diagnostics of `BASE` after one change."""
    fields = base()
    change(fields)
    return findings(fields)


def simple(signature: str, rows: str = "[{label: row}]", roofline: str = '{flops: "0"}') -> dict[str, Any]:
    """Fields of an entry with this signature."""
    return {
        "family": "toy",
        "status": "spec-only",
        "signature": yaml.safe_load(signature),
        "workloads": yaml.safe_load(rows),
        "roofline": yaml.safe_load(roofline),
    }


def expr(source: str, where: str = "here") -> Expr:
    """A parsed expression."""
    return parse(source, where)


def scope(**names: Any) -> Scope:
    """A scope of kinds."""
    return Scope(names)
