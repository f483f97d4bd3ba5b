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


def entry(text: str | dict[str, Any], name: str = "ToyFwdOp", file: str = "toy.yaml") -> Entry:
    """The entry of YAML text."""
    fields = yaml.safe_load(text) if isinstance(text, str) else text
    return parse_entry(RawEntry(name, fields.get("family", "toy"), file, fields))


def base() -> dict[str, Any]:
    """The fields of `BASE`, to be changed."""
    return copy.deepcopy(yaml.safe_load(BASE))


def findings(fields: str | dict[str, Any], name: str = "ToyFwdOp") -> list[str]:
    """Static diagnostics as ``field: message``."""
    return [f"{item.field}: {item.message}" for item in check_entry(entry(fields, name))]


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
