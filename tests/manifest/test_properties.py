"""Property tests: whatever an entry holds, the validator answers with diagnostics; and random valid signatures are
inferred back from their own tensors.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.manifest.helpers import base, entry
from tileops.manifest import validate

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(), st.text(max_size=8))
YAML = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=8,
)
PATHS = st.sampled_from(
    [
        ("status",),
        ("ref_api",),
        ("signature",),
        ("workloads",),
        ("roofline",),
        ("composition",),
        ("signature", "forall"),
        ("signature", "forall", "M"),
        ("signature", "params"),
        ("signature", "params", "groups"),
        ("signature", "params", "groups", "type"),
        ("signature", "types"),
        ("signature", "types", "Mat"),
        ("signature", "types", "Mat", "cases"),
        ("signature", "types", "Mat", "match"),
        ("signature", "inputs"),
        ("signature", "inputs", "a"),
        ("signature", "inputs", "a", "shape"),
        ("signature", "inputs", "ids", "values"),
        ("signature", "inputs", "ids", "requires"),
        ("signature", "inputs", "bias", "optional"),
        ("signature", "outputs"),
        ("signature", "outputs", "norm", "nullable"),
        ("signature", "let"),
        ("signature", "let", "half"),
        ("signature", "shape_rules"),
        ("signature", "dtype_combos"),
        ("workloads", 0),
        ("workloads", 0, "dtype_cases"),
        ("workloads", 0, "some"),
        ("workloads", 0, "seq_lens"),
        ("workloads", 0, "label"),
        ("roofline", "flops"),
    ]
)


@settings(max_examples=150, deadline=None)
@given(PATHS, YAML)
def test_arbitrary_values_give_diagnostics_never_exceptions(path: tuple[Any, ...], value: Any) -> None:
    fields = base()
    target: Any = fields
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    for item in validate.check_entry(entry(fields)):
        assert item.message
