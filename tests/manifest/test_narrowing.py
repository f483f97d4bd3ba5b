"""Guards narrow kinds in the arm that they select; Maybe payloads, literals and unions."""

from __future__ import annotations

import pytest

from tileops.manifest import kinds as k
from tileops.manifest.expr import ExpressionError, Facts, Scope, fold, infer, narrow, parse

MODES = k.Str(("a", "b", "c"))
DTYPES = k.DType(("float16", "bfloat16", "float32"))
PADDING = k.parse_type("int | tuple[int, int] | 'valid' | 'same'")
SCOPE = Scope(
    {
        "M": k.DIM,
        "N": k.DIM,
        "S": k.SHAPE,
        "n": k.INT,
        "flag": k.BOOL,
        "mode": MODES,
        "limit": k.Maybe(k.INT),
        "other": k.Maybe(k.INT),
        "choice": k.Maybe(MODES),
        "T": DTYPES,
        "out_dtype": k.Maybe(k.DType(("float16", "float32"))),
        "padding": PADDING,
        "pair": k.Seq(k.INT, 2, "tuple"),
        "bias": k.TENSOR,
    }
)


def kind(source: str) -> k.Kind:
    return infer(parse(source, "here"), SCOPE)


# rule: 001 "present(v) narrows Maybe[X] to X"; "Narrowing composes through not, and, or and conditionals"
@pytest.mark.parametrize(
    "source",
    [
        "present(limit) and limit.value > M",
        "present(limit) and limit > M",
        "not present(limit) or limit.value > M",
        "limit.value > M if present(limit) else True",
        "True if not present(limit) else limit.value > M",
        "(limit.value if present(limit) else N) > M",
        "not (present(limit) and limit.value > M)",
        "not (not present(limit) or limit.value > M)",
        "(present(limit) and present(other)) and limit.value > other.value",
        "not present(limit) or not present(other) or limit.value > other.value",
        "(flag and present(limit)) and limit.value > 0",
        "((present(limit) if flag else present(limit))) and limit.value > 0",
        "((present(limit) if flag else False)) and limit.value > 0",
        "(not present(limit) if flag else True) or limit.value > 0",
        "((flag and present(limit)) or (M > 1 and present(limit))) and limit.value > 0",
        "all(present(limit) and limit.value > size for size in S)",
        "sum(limit.value for size in S if present(limit)) > 0",
        "present(limit) and (flag or limit.value > 0)",
    ],
)
def test_a_payload_is_read_where_it_is_present(source: str) -> None:
    assert kind(source) == k.BOOL


# rule: 001 "its payload v.value is legal only on branches where present(v) holds"
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("limit.value > M", "limit.value is read where limit may be absent; guard it with present(limit)"),
        ("present(limit) or limit.value > M", "limit.value is read where limit may be absent"),
        ("not present(limit) and limit.value > M", "limit.value is read where limit may be absent"),
        ("limit.value > 0 if flag else present(limit)", "limit.value is read where limit may be absent"),
        ("limit.value > 0 if not present(limit) else True", "limit.value is read where limit may be absent"),
        ("(present(limit) or flag) and limit.value > 0", "limit.value is read where limit may be absent"),
        ("(present(limit) if flag else True) and limit.value > 0", "limit.value is read where limit may be absent"),
        ("present(other) and limit.value > 0", "limit.value is read where limit may be absent"),
        ("limit > M", "'limit' is of kind Maybe[Int]; guard it with present(limit) and read limit.value"),
        ("limit + 1", "arithmetic needs numbers, 'limit' is of kind Maybe[Int]; guard it with present(limit)"),
        ("M.value", "'M' is of kind Dim, which has no payload; write M"),
        ("present(M)", "'M' is of kind Dim and always present; present takes what may be absent"),
        ("present(nobody)", "'nobody' is not declared"),
        ("bias > 1", "'bias' is a tensor; only present(bias) tests it"),
    ],
)
def test_a_payload_is_not_read_elsewhere(source: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        kind(source)
    assert message in str(caught.value)


# rule: 001 "A Maybe value may be passed as is to a primitive that accepts it"
def test_a_maybe_value_goes_to_a_primitive_that_takes_it() -> None:
    assert kind("per_axis(limit, 0, 2, fallback=n)") == k.INT
    assert kind("coalesce_dtype(out_dtype, T)") == k.DType(("float16", "float32", "bfloat16"))
    with pytest.raises(ExpressionError, match=r"a of ceil_div must be of kind Int, got Maybe\[Int\]"):
        kind("ceil_div(limit, 2)")


def where(guard: str, subject: str) -> k.Kind:
    """Kind of `subject` where `guard` holds."""
    expr = parse(guard, "here")
    return infer(parse(subject, "here"), narrow(expr, True, SCOPE))


# rule: 001 "x == lit and x in (...) intersect x's kind with the literals, x != lit and x not in (...) subtract them"
@pytest.mark.parametrize(
    ("guard", "subject", "expected"),
    [
        ("mode == 'a'", "mode", "'a'"),
        ("'a' == mode", "mode", "'a'"),
        ("mode != 'a'", "mode", "'b' | 'c'"),
        ("mode in ('a', 'b')", "mode", "'a' | 'b'"),
        ("mode not in ('a', 'b')", "mode", "'c'"),
        ("not mode == 'a'", "mode", "'b' | 'c'"),
        ("mode == 'a' or mode == 'c'", "mode", "'a' | 'c'"),
        ("not (mode == 'a' or mode == 'c')", "mode", "'b'"),
        ("mode != 'a' and mode != 'b'", "mode", "'c'"),
        ("(mode == 'a' if flag else mode == 'b')", "mode", "'a' | 'b'"),
        ("T == 'float16'", "T", "DType[float16]"),
        ("T not in ('float16', 'bfloat16')", "T", "DType[float32]"),
        ("choice == 'a'", "choice", "'a'"),
        ("choice != 'a'", "choice", "Maybe['b' | 'c']"),
        ("present(choice) and choice.value != 'a'", "choice", "'b' | 'c'"),
        ("padding == 'same'", "padding", "'same'"),
        ("padding in ('same', 'valid')", "padding", "'valid' | 'same'"),
        ("padding not in ('same', 'valid')", "padding", "Int | Seq[Int]"),
        ("padding != 'same'", "padding", "Int | Seq[Int] | 'valid'"),
        ("flag or mode == 'a'", "mode", "'a' | 'b' | 'c'"),
        ("M == 3", "M", "Dim"),
    ],
)
def test_literals_narrow(guard: str, subject: str, expected: str) -> None:
    assert str(where(guard, subject)) == expected


# rule: 001 "a comparison with literals that no member of an enum or dtype set takes is rejected"
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("mode == 'd'", "'d' is no value of 'mode', which takes 'a', 'b', 'c'"),
        ("mode in ('a', 'd')", "'d' is no value of 'mode'"),
        ("T == 'float64'", "'float64' is no value of 'T', which takes 'float16', 'bfloat16', 'float32'"),
        ("T == 'float33'", "'float33' is no dtype"),
        ("mode == 'a' and mode == 'b'", "'b' is no value of 'mode', which takes 'a'"),
        ("mode != 'a' or mode == 'b'", "'b' is no value of 'mode', which takes 'a'"),
        ("padding == 'full'", "'padding' is of kind"),
        ("M == 'a'", "'M' is of kind Dim and never equals 'a'"),
        ("mode == 3", "3 is no value of 'mode'"),
        ("mode == T", "are never equal: compare values of one kind"),
    ],
)
def test_literals_that_nothing_takes(source: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        kind(source)
    assert message in str(caught.value)


# rule: 001 "A string inhabits DType[S] only when it names a registered member of S"
def test_a_string_is_a_dtype_where_it_names_one() -> None:
    assert kind("T if flag else 'float32'") == DTYPES
    assert kind("coalesce_dtype(out_dtype, 'float16')") == k.DType(("float16", "float32"))
    assert k.fits(k.Str(("float16",)), DTYPES)
    assert not k.fits(k.Str(("float64",)), DTYPES)
    with pytest.raises(ExpressionError, match="T of coalesce_dtype must be of kind DType"):
        kind("coalesce_dtype(out_dtype, 'float33')")
    with pytest.raises(ExpressionError, match="the arms of the conditional are of different kinds"):
        kind("T if flag else 'float33'")


# rule: 001 Table 4
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("M + N", k.DIM),
        ("2 * M", k.DIM),
        ("M // 2", k.DIM),
        ("M % 8", k.DIM),
        ("M - N", k.INT),
        ("-1", k.INT),
        ("M + n", k.INT),
        ("M * -1", k.INT),
        ("S[0]", k.INT),
        ("pair[1]", k.INT),
        ("M if flag else N", k.DIM),
        ("M if flag else n", k.INT),
        ("M > N", k.BOOL),
        ("M in (1, 2)", k.BOOL),
        ("len(S)", k.DIM),
        ("prod(S)", k.DIM),
        ("S[1:]", k.SHAPE),
        ("broadcast(S, S)", k.SHAPE),
        ("category(T)", k.Str(("bool", "int", "float", "complex"))),
        ("promote_int_to_float(T)", DTYPES),
        ("max(M, N)", k.DIM),
        ("max(M, n)", k.INT),
        ("0.5 * M", k.REAL),
        ("-inf", k.REAL),
    ],
)
def test_kinds_of_expressions(source: str, expected: k.Kind) -> None:
    assert kind(source) == expected


def test_a_fixed_sequence_has_no_element_beyond_its_length() -> None:
    with pytest.raises(ExpressionError, match="'pair' has 2 elements, none at 2"):
        kind("pair[2]")
    assert kind("pair[-2]") == k.INT


# rule: 001 "Each of those is folded at the branch first"
def test_folding_reaches_into_comprehensions() -> None:
    expr = parse("all(size > limit if present(limit) else size > 0 for size in S)", "here")
    assert fold(expr, Facts({"limit": None}, {"limit": False})).text == "all((size > 0 for size in S))"
    hidden = parse("all(M > 0 for M in S)", "here")
    assert fold(hidden, Facts({"M": 3})).text == "all((M > 0 for M in S))"
