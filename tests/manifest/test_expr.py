"""The expression language: its allow-list, kinds and narrowing, folding, evaluation."""

from __future__ import annotations

import ast
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.manifest.helpers import expr, scope
from tileops.errors import ManifestError
from tileops.manifest import kinds as k
from tileops.manifest.expr import (
    NAMESPACE,
    EvaluationError,
    ExpressionError,
    Facts,
    evaluate,
    fold,
    infer,
    parse_shape,
    render,
    substitute,
)

NAMES = {
    "M": k.DIM,
    "K": k.DIM,
    "S": k.SHAPE,
    "T": k.DType(("float16", "float32")),
    "flag": k.BOOL,
    "mode": k.Str(("sum", "mean")),
    "g": k.INT,
    "limit": k.Maybe(k.INT),
    "pads": k.Seq(k.INT, None, "tuple"),
    "eps": k.REAL,
    "weight": k.TENSOR,
}
SCOPE = scope(**NAMES)


@pytest.mark.parametrize(
    "source",
    [
        "2 * M + 1",
        "M // 4 % 3 - -K",
        "not flag or M <= K",
        "0 < M <= K",
        "mode in ('sum', 'mean')",
        "M if flag else K",
        "present(limit) and limit.value > 0",
        "pads[0] + pads[-1]",
        "len(S[1:])",
        "all(p >= 0 for p in pads)",
        "sum(p * 2 for p in pads if p > 0)",
        "max(pads, default=0)",
        "per_axis(pads, 0, 2, fallback=M)",
        "pool.out(M, g, 1, 0, 1, flag)",
        "eps < inf",
        "T == 'float16'",
        "(1, 2)",
    ],
)
def test_constructs_of_the_language(source: str) -> None:
    infer(expr(source), SCOPE)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("M / 2", "the operator / is outside the expression language; use // for integers"),
        ("M ** 2", "the operator ** is outside the expression language"),
        ("M & 1", "the operator & is outside the expression language"),
        ("~g", "this unary operator is outside the expression language"),
        ("lambda: M", "a lambda is outside the expression language"),
        ("[M, K]", "a list is outside the expression language"),
        ("{'a': 1}", "a dict is outside the expression language"),
        ("f'{M}'", "an f-string is outside the expression language"),
        ("(M := 2)", "an assignment is outside the expression language"),
        ("M is K", "the comparison 'is' is outside the expression language"),
        ("[p for p in pads]", "a list comprehension is outside the expression language"),
        ("len(p for p in pads)", "a comprehension is allowed only as the argument of all, sum, max, min"),
        ("(p for p in pads)", "a comprehension is allowed only as the argument of all, sum, max, min"),
        ("max(*pads)", "an unpacked argument is outside the expression language"),
        ("M.bit_length()", "'M.bit_length' is not a built-in primitive"),
        ("exec('x')", "'exec' is not a built-in primitive"),
        ("__import__('os')", "'__import__' is not a built-in primitive"),
        ("(M + 1)(2)", "the call of 'M + 1' is outside the expression language"),
        ("1j", "the literal 1j is outside the expression language"),
        ("1e999", "the float literal inf is outside the expression language; write inf"),
        ("present(M + 1)", "present takes exactly one name"),
        ("M +", "not a well-formed expression"),
        ("", "not a well-formed expression"),
    ],
)
def test_constructs_outside_the_language(source: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        infer(expr(source), SCOPE)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"here: in {source!r}")


@pytest.mark.parametrize(
    ("source", "remedy"),
    [
        ("weight.shape == (M, K)", 'write weight: {shape: "[M, K]"}'),
        ("weight.shape == pads.shape", 'write one shape term for weight and pads, such as "[*S]"'),
        ("weight.shape[0] > 1", 'name its axes, weight: {shape: "[...]"}, and'),
        ("weight is None or M > 0", "write not present(weight)"),
        ("limit is not None", "write present(limit)"),
        ("limit == None", "write not present(limit)"),
        ("limit != None", "write present(limit)"),
        ("pads[1] if isinstance(pads, tuple) else pads", "write per_axis(pads, 1, n)"),
        ("isinstance(pads, tuple)", "write per_axis(pads, i, n)"),
        ("len({d % 4 for d in pads}) == len(pads)", "write unique_axes(pads, 4)"),
    ],
)
def test_rejected_rule_forms_name_their_rewrite(source: str, remedy: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        infer(expr(source), SCOPE)
    assert remedy in str(caught.value)


def test_errors_point_into_the_string() -> None:
    with pytest.raises(ExpressionError, match=r"at column 5: the operator \*\*"):
        expr("1 + M ** 2")


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("M + K", k.DIM),
        ("2 * M // 3", k.DIM),
        ("M - K", k.INT),
        ("-M", k.INT),
        ("M * g", k.INT),
        ("M * eps", k.REAL),
        ("M if flag else g", k.INT),
        ("mode if flag else 'x'", k.Str(("sum", "mean", "x"))),
        ("limit.value if present(limit) else M", k.INT),
        ("limit", k.Maybe(k.INT)),
        ("prod(S)", k.DIM),
        ("prod(pads)", k.INT),
        ("S[0]", k.INT),
        ("S[1:]", k.SHAPE),
        ("broadcast(S, S)", k.SHAPE),
        ("promote_int_to_float(T)", k.DType(("float16", "float32"))),
        ("category(T)", k.Str(("bool", "int", "float", "complex"))),
        ("flag == (M > 0)", k.BOOL),
    ],
)
def test_kinds(source: str, kind: k.Kind) -> None:
    assert infer(expr(source), SCOPE) == kind


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("M + mode", "arithmetic needs numbers, 'mode' is of kind 'sum' | 'mean'"),
        ("limit + 1", "guard it with present(limit) and read limit.value"),
        ("limit > 1", "guard it with present(limit) and read limit.value"),
        ("limit.value + 1", "limit.value is read where limit may be absent"),
        ("present(limit) or limit.value > 1", "limit.value is read where limit may be absent"),
        ("M.value", "'M' is of kind Dim, which has no payload; write M"),
        ("M and flag", "a condition is of kind Bool, 'M' is of kind Dim"),
        ("M if flag else mode", "the arms of the conditional are of different kinds"),
        ("mode == 'max'", "'max' is no value of 'mode', which takes 'sum', 'mean'"),
        ("T == 'float64'", "'float64' is no value of 'T', which takes 'float16', 'float32'"),
        ("T == 'float61'", "'float61' is no dtype"),
        ("mode in ('sum', 'maximum')", "'maximum' is no value of 'mode'"),
        ("M == 'a'", "'M' is of kind Dim and never equals 'a'"),
        ("mode == T", "are never equal"),
        ("present(M)", "'M' is of kind Dim and always present"),
        ("present(nothing)", "'nothing' is not declared"),
        ("unknown + 1", "'unknown' is not declared; declare it in forall, params or let"),
        ("weight + 1", "'weight' is a tensor; only present(weight) tests it"),
        ("g[0]", "only sequences are indexed"),
        ("pads[flag]", "an index is an integer"),
        ("M in K", "'in' needs a sequence on its right"),
        ("ceil_div(M)", "ceil_div misses b"),
        ("ceil_div(M, K, g)", "ceil_div takes 2 positional arguments, got 3"),
        ("ceil_div(M, c=K)", "ceil_div has no argument 'c'"),
        ("ceil_div(M, flag)", "b of ceil_div must be of kind Int, got Bool"),
        ("all(p for p in g)", "a comprehension runs over a sequence"),
        ("M // 0", "division by zero"),
    ],
)
def test_ill_kinded(source: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        infer(expr(source), SCOPE)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "present(limit) and limit.value > 0",
        "not present(limit) or limit.value > 0",
        "limit.value if present(limit) else 0",
        "not (not present(limit)) and limit.value > 0",
        "flag and present(limit) and limit.value > 0",
        "(limit.value if present(limit) else 0) > 0",
        "(0 if not present(limit) else limit.value) > 0",
        "present(limit) and (flag or limit.value > 0)",
        "not present(limit) or limit > 0",
    ],
)
def test_guards_narrow(source: str) -> None:
    infer(expr(source), SCOPE)


def test_a_comparison_narrows_to_its_literals() -> None:
    infer(expr("mode == 'sum' or mode == 'mean'"), SCOPE)
    with pytest.raises(ExpressionError, match="no value of 'mode', which takes 'mean'"):
        infer(expr("mode != 'sum' and mode == 'sum'"), SCOPE)
    with pytest.raises(ExpressionError, match="no value of 'T', which takes 'float32'"):
        infer(expr("T == 'float16' or T == 'float16'"), SCOPE)


@pytest.mark.parametrize(
    ("source", "facts", "left"),
    [
        ("not flag or M <= K", Facts({"flag": False}), "True"),
        ("not flag or M <= K", Facts({"flag": True}), "M <= K"),
        ("M <= K or not flag", Facts({"flag": False}), "True"),
        ("M > 0 and flag", Facts({"flag": False}), "False"),
        ("M if mode == 'sum' else K", Facts({"mode": "mean"}), "K"),
        ("mode in ('sum', 'mean')", Facts({"mode": "mean"}), "True"),
        ("limit.value if present(limit) else M", Facts({"limit": None}, {"limit": False}), "M"),
        ("limit.value if present(limit) else M", Facts({}, {"limit": True}), "limit.value"),
        ("(T == 'float16') == present(w)", Facts({}, {"w": False}), "not T == 'float16'"),
        ("(T == 'float16') == present(w)", Facts({}, {"w": True}), "T == 'float16'"),
        ("2 * 3 + M", Facts(), "6 + M"),
        ("coalesce_dtype(out, T)", Facts({"out": None}), "coalesce_dtype(None, T)"),
        ("coalesce_dtype(out, 'float16')", Facts({"out": None}), "'float16'"),
        ("1 // 0", Facts(), "1 // 0"),
    ],
)
def test_folding(source: str, facts: Facts, left: str) -> None:
    assert fold(expr(source), facts).text == left


def test_folding_drops_names() -> None:
    assert fold(expr("flag and M > K"), Facts({"flag": False})).names == frozenset()
    assert expr("present(w) and w2 > 0").names == {"w2"}
    assert expr("present(w) and w2 > 0").tested == {"w"}
    assert expr("sum(p * M for p in pads)").names == {"M", "pads"}


def test_evaluation() -> None:
    values = {"M": 7, "K": 2, "pads": (1, 2), "limit": None, "mode": "sum", "S": (2, 3), "T": "float16"}
    for source, expected in {
        "M // K + M % K": 4,
        "sum(p * M for p in pads)": 21,
        "limit.value if present(limit) else M": 7,
        "mode == 'sum' and prod(S) == 6": True,
        "eps": math.inf,
        "-inf": -math.inf,
        "max(3, M, K)": 7,
        "broadcast(S, (1,))": (2, 3),
    }.items():
        assert evaluate(expr(source), values | {"eps": math.inf}) == expected


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("M // K", "division by zero"),
        ("pads[5]", "index out of range"),
        ("ceil_div(M, K)", "ceil_div needs a positive divisor, got 0"),
        ("broadcast(S, (4,))", "do not broadcast"),
    ],
)
def test_evaluation_errors_name_the_declaration(source: str, cause: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        evaluate(expr(source), {"M": 7, "K": 0, "pads": (1, 2), "S": (2, 3)})
    assert str(caught.value).startswith(f"here: in {source!r}: ")
    assert cause in str(caught.value)


def test_user_names_do_not_hide_primitives() -> None:
    assert evaluate(expr("len(S) + max"), {"S": (1, 2), "max": 3, "len": 9}) == 5


def test_rendering_is_python_that_evaluates_alike() -> None:
    source = "per_axis(pads, 1, 2) + (limit.value if flag else M)"
    assert eval(render(expr(source)), NAMESPACE | {"pads": (1, 5), "limit": 2, "flag": True, "M": 0}) == 7


def test_shapes() -> None:
    items = parse_shape("[M, 2 * N, *S, *broadcast(A, B)]", "here")
    assert [str(item) for item in items] == ["M", "2 * N", "*S", "*broadcast(A, B)"]
    assert parse_shape("[]", "here") == ()
    application = parse_shape("Mat[flag, M, K + 1]", "here")
    assert (application.family, [str(part) for part in application.arguments]) == (
        "Mat",
        ["flag", "M", "K + 1"],
    )
    for bad in ("M, K", "(M, K)", "[*2]", "[*S[1:]]", "[M", 3, "[M / 2]"):
        with pytest.raises(ExpressionError):
            parse_shape(bad, "here")


def test_substitution() -> None:
    replaced = substitute(
        expr("rows * 2 + (o.value if present(o) else 0)"),
        {
            "rows": ast.parse("M + 1", mode="eval").body,
            "o": ast.parse("limit", mode="eval").body,
        },
    )
    assert replaced.text == "(M + 1) * 2 + (limit.value if present(limit) else 0)"


ATOMS = st.sampled_from(
    [*NAMES, "0", "1", "-2", "2.5", "'sum'", "None", "True", "inf", "present(limit)", "limit.value"]
)
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds(
            "({} {} {})".format,
            inner,
            st.sampled_from(["+", "-", "*", "//", "%", "<", "==", "!=", "in", "and", "or", "/", "**", "is"]),
            inner,
        ),
        st.builds("(not {})".format, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds(
            "{}({}, {})".format,
            st.sampled_from(["max", "ceil_div", "broadcast", "per_axis", "reduced"]),
            inner,
            inner,
        ),
        st.builds("{}({})".format, st.sampled_from(["len", "prod", "category", "sum", "foo", "present"]), inner),
        st.builds("{}[{}]".format, inner, inner),
        st.builds("all({} > 0 for p in {})".format, inner, inner),
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(st.one_of(EXPRESSIONS, st.text(max_size=30)))
def test_any_string_is_accepted_or_explained(source: str) -> None:
    """Nothing but a diagnostic comes out of parsing and inference; what is accepted evaluates or says why
    not.
    """
    values = {
        "M": 3,
        "K": 2,
        "S": (2, 3),
        "T": "float16",
        "flag": True,
        "mode": "sum",
        "g": -1,
        "limit": None,
        "pads": (0, 1),
        "eps": 0.5,
    }
    try:
        parsed = expr(source)
        infer(parsed, SCOPE)
    except ManifestError:
        return
    present = {"limit": False, "weight": True}
    try:
        result = evaluate(parsed, values, present.get)
    except EvaluationError:
        return
    folded = fold(parsed, Facts({"flag": True, "mode": "sum", "limit": None}, present))
    assert evaluate(folded, values, present.get) == result or result != result
