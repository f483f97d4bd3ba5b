"""Property tests: whatever a spec file holds, the validator answers with diagnostics; an expression string is refused,
folded and evaluated with errors of ours only; and random valid signatures are inferred back from their own tensors.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.manifest.calls import empty
from tests.manifest.helpers import BASE, GROUPED, base, entry
from tileops.errors import CheckError, ManifestError
from tileops.manifest import kinds as k
from tileops.manifest import validate
from tileops.manifest.diagnostics import Diagnostic
from tileops.manifest.expr import Facts, Scope, evaluate, fold, infer, parse, parse_shape
from tileops.manifest.plan import plan_branch
from tileops.manifest.unify import unify
from tileops.manifest.workload import cases
from tileops.ops.signature_codegen import signature_for


def examples(count: int) -> settings:
    """So many examples, however slow the machine is."""
    return settings(
        max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
    )


# --- anything in a spec file ---

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-9, 9),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.dates(),
    st.sampled_from(["M", "[M, K]", "N // 0", "present(bias)", "Mat[M]", "_", "DType[", "int | None", "\ud800", "*"]),
)
YAML = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(SCALARS, inner, max_size=3)),
    max_leaves=8,
)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place of a nested value."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += _paths(item, (*path, key))
    return found


PLACES = [(text, path) for text in (BASE, GROUPED) for path in _paths(base(text))]


def _checked(found: list[Diagnostic]) -> None:
    for item in found:
        assert item.message
        str(item).encode("utf-8", "replace")
        item.as_dict()


@examples(150)
@given(st.sampled_from(PLACES), YAML)
def test_arbitrary_values_give_diagnostics_never_exceptions(place: tuple[str, tuple[Any, ...]], value: Any) -> None:
    text, path = place
    fields = base(text)
    target: Any = fields
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    _checked(validate.check_entry(entry(fields)))


@examples(60)
@given(st.sampled_from([BASE, GROUPED]), st.randoms(use_true_random=False), st.integers(1, 6))
def test_damaged_text_gives_diagnostics_never_exceptions(text: str, rng: random.Random, edits: int) -> None:
    """Characters of a file removed, doubled or swapped: it may no longer be YAML, or be another entry."""
    characters = list("ToyFwdOp:\n" + "\n".join(f"  {line}" for line in text.strip().splitlines()) + "\n")
    for _ in range(edits):
        position = rng.randrange(len(characters))
        characters[position] = rng.choice(["", characters[position] * 2, " ", ":", "[", "}", "&a", "*a", "\t", "'"])
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "toy.yaml").write_text("".join(characters))
        found, _ = validate.validate(directory=Path(directory), code=False)
    _checked(found)


@examples(60)
@given(st.one_of(YAML.map(lambda value: yaml.dump(value, allow_unicode=True).encode("utf-8", "replace")), st.binary()))
def test_arbitrary_files_give_diagnostics_never_exceptions(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "toy.yaml").write_bytes(content)
        (Path(directory) / "types.yaml").write_bytes(content)
        found, _ = validate.validate(directory=Path(directory), code=False)
    assert found
    _checked(found)


# --- anything as an expression ---

NAMES: dict[str, k.Kind] = {
    "M": k.DIM,
    "S": k.SHAPE,
    "p": k.INT,
    "q": k.Maybe(k.INT),
    "flag": k.BOOL,
    "mode": k.Str(("sum", "mean")),
    "pads": k.Seq(k.INT, 2, "tuple"),
    "T": k.DType(("float16", "float32")),
    "eps": k.REAL,
    "x": k.TENSOR,
}
VALUES: dict[str, Any] = {
    **{"M": 3, "S": (2, 0), "p": -1, "q": None, "flag": True, "mode": "sum"},
    **{"pads": (0, 1), "T": "float16", "eps": 0.5},
}
SYMBOLS = [*"012-+*/%<()[]{},:.=i", "**", "//", "==", "in", "is", "and", "or", "not", "None", "inf", "'sum'", "'x'"]
WORDS = ["present(", "prod(", "broadcast(", "per_axis(", "all(", "max(", " for i in ", "if", "else", "value", "default"]
TOKENS = [*NAMES, *SYMBOLS, *WORDS]
TEXTS = st.one_of(st.text(max_size=12), st.lists(st.sampled_from(TOKENS), max_size=9).map(" ".join))


def _operation(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Well-formed expressions, of any kinds."""
    binary = st.sampled_from(["+", "-", "*", "//", "%", "==", "!=", "<", ">=", "and", "or", "in", "not in"])
    call = st.sampled_from(["prod", "len", "sum", "max", "category", "broadcast", "ceil_div", "reduced", "valid_axes"])
    return st.one_of(
        st.tuples(inner, binary, inner).map(lambda parts: f"({' '.join(parts)})"),
        st.tuples(inner, inner, inner).map(lambda parts: f"({parts[0]} if {parts[1]} else {parts[2]})"),
        st.tuples(call, st.lists(inner, max_size=3)).map(lambda parts: f"{parts[0]}({', '.join(parts[1])})"),
        st.tuples(inner, inner).map(lambda parts: f"{parts[0]}[{parts[1]}]"),
        inner.map(lambda part: f"(not {part})"),
        inner.map(lambda part: f"all(i > 0 for i in {part})"),
    )


LITERALS = ["q.value", "present(q)", "present(x)", "0", "1", "-2", "'sum'", "'float16'", "(1, 2)"]
LEAVES = st.sampled_from([*VALUES, *LITERALS])
EXPRESSIONS = st.recursive(LEAVES, _operation, max_leaves=10)


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@examples(400)
@given(st.one_of(TEXTS, EXPRESSIONS))
def test_arbitrary_expressions_raise_errors_of_ours_only(source: str) -> None:
    _ours(lambda: parse_shape(source, "here"))
    expr = _ours(lambda: parse(source, "here"))
    if expr is None:
        return
    folded = fold(expr, Facts({"flag": True, "mode": "sum", "q": None}, {"q": False, "x": True}))
    for one in (expr, folded):
        _ours(partial(infer, one, Scope(NAMES)))
        _ours(partial(evaluate, one, VALUES, lambda name: name == "x"))


def _ours(action: Callable[[], Any]) -> Any:
    """What `action` returns, or None where it raises an error that names the declaration."""
    try:
        return action()
    except ManifestError as error:
        if not str(error).startswith("here: in "):
            raise
        return None


@examples(400)
@given(EXPRESSIONS)
def test_folding_keeps_the_value_of_what_is_well_kinded(source: str) -> None:
    expr = parse(source, "here")
    try:
        infer(expr, Scope(NAMES))
        expected = evaluate(expr, VALUES, lambda name: name == "x")
    except ManifestError:
        return
    folded = fold(expr, Facts({"flag": True, "mode": "sum", "q": None}, {"q": False, "x": True}))
    assert evaluate(folded, VALUES, lambda name: name == "x") == expected


# --- instantiate, then infer ---


@st.composite
def signatures(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of a valid entry with one row, and the values that its indices must get back."""
    sizes = {f"D{i}": draw(st.integers(0, 4)) for i in range(draw(st.integers(1, 4)))}
    dims = list(sizes)
    forall: dict[str, str] = dict.fromkeys(dims, "Dim")
    row: dict[str, Any] = dict(sizes)
    params: dict[str, Any] = {}
    factor = draw(st.sampled_from([None, 1, 2, 3]))
    if factor is not None:
        params["factor"] = {"type": "int"}
        row["factor"] = factor
    forms = ["{}", "2 * {} + 1", "{} + 3", "3 * ({} + 1)"] + (["factor * {}"] if factor is not None else [])
    solving = [draw(st.sampled_from(forms)).format(dim) for dim in dims]

    tensors: list[list[str]] = [[]]
    for axis in solving:
        if draw(st.booleans()):
            tensors.append([])
        tensors[-1].append(axis)
    spliced = draw(st.booleans())
    if spliced:
        forall["S"] = "Shape"
        row["S"] = draw(st.lists(st.integers(0, 3), max_size=2))
        tensors[0].insert(draw(st.integers(0, len(tensors[0]))), "*S")
    lets = {}
    if draw(st.booleans()):
        lets["total"] = " + ".join([*dims, "len(S)"] if spliced else dims)
        tensors.append(["total", draw(st.sampled_from(dims))])
    tensors.append([draw(st.sampled_from(dims)), f"{draw(st.sampled_from(dims))} * 2"])

    forall["T"] = "DType[float16 | float32]"
    row["dtype_cases"] = [{"T": draw(st.sampled_from(["float16", "float32"]))}]
    declared = {f"x{i}": {"dtype": "T", "shape": f"[{', '.join(axes)}]"} for i, axes in enumerate(tensors)}
    inputs = {name: declared[name] for name in draw(st.permutations(list(declared)))}
    if draw(st.booleans()):  # a metadata tensor, whose own axis follows from its values
        forall |= {"B": "Dim", "lens": "Seq[Int]"}
        row["lens"] = draw(st.lists(st.integers(0, 3), max_size=3))
        offsets = {"dtype": "int32", "shape": "[B + 1]", "values": "prefix_sum(lens)"}
        inputs["offsets"] = offsets | {"requires": ["max_segment(3)"]}
    types = {}
    output = f"[{draw(st.sampled_from(dims))}]"
    if draw(st.booleans()):  # a family that turns two axes around
        params["turned"] = {"type": "bool", "default": False}
        row["turned"] = draw(st.booleans())
        cases_of = [{"when": False, "is": "[a, b]"}, {"when": True, "is": "[b, a]"}]
        types["Pair"] = {"params": {"f": "Bool", "a": "Dim", "b": "Dim"}, "match": "f", "cases": cases_of}
        output = f"Pair[turned, {dims[0]}, {dims[-1]}]"
        inputs["pair"] = {"dtype": "float32", "shape": output}
    if draw(st.booleans()):  # an optional tensor with an index of its own
        forall["E"] = "Dim"
        inputs["extra"] = {"dtype": "T", "shape": f"[E, {dims[0]}]", "optional": True}
        if draw(st.booleans()):
            row |= {"some": ["extra"], "E": draw(st.integers(0, 3))}
    signature = {
        "forall": forall,
        "params": params,
        "types": types,
        "inputs": inputs,
        "outputs": {"output": {"dtype": "T", "shape": output}},
        "let": lets,
    }
    fields = {"family": "toy", "status": "spec-only", "signature": signature, "workloads": [{**row, "label": "row"}]}
    expected = {name: row[name] for name in forall if name in row and name != "lens"}
    return {**fields, "roofline": {"flops": "0"}}, expected


@examples(120)
@given(signatures())
def test_random_signatures_are_inferred_back_from_their_tensors(made: tuple[dict[str, Any], dict[str, Any]]) -> None:
    fields, expected = made
    toy = entry(fields)
    assert [str(item) for item in validate.check_entry(toy)] == []
    (call,) = cases(toy)
    for name, value in expected.items():
        assert call.indices[name] == (tuple(value) if isinstance(value, list) else value), name
    if "lens" in fields["workloads"][0]:
        assert call.indices["B"] == len(fields["workloads"][0]["lens"])
    for tensor in call.inputs.values():
        assert all(size >= 0 for size in tensor.shape)


@examples(80)
@given(signatures(), st.data())
def test_generated_and_abstract_checks_agree_on_random_signatures(made: tuple[dict[str, Any], Any], data: Any) -> None:
    """On the row's own tensors, and where one of their sizes is another: the same indices, or the same refusal."""
    toy = entry(made[0])
    (call,) = cases(toy)
    shapes = {name: list(item.shape) for name, item in call.inputs.items()}
    sized = sorted(name for name, shape in shapes.items() if shape)
    if sized and data.draw(st.booleans(), "damage"):
        shape = shapes[data.draw(st.sampled_from(sized))]
        shape[data.draw(st.integers(0, len(shape) - 1))] = data.draw(st.integers(0, 6), "size")
    signature = signature_for(toy)
    construction = signature.construct(**call.params)
    tensors = [
        empty(*shapes[name], dtype=getattr(torch, call.inputs[name].dtype)) if name in shapes else None
        for name in call.forward_order
    ]
    facts = {name: (tuple(shapes[name]), call.inputs[name].dtype) for name in shapes}

    def abstract() -> dict[str, Any]:
        return unify(toy.name, plan_branch(call.branch), construction.values, facts)

    assert _outcome(lambda: signature.check_call(construction, tensors).indices) == _outcome(abstract)


def _outcome(check: Callable[[], dict[str, Any]]) -> Any:
    try:
        return check()
    except CheckError as error:
        return str(error)
