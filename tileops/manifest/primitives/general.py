"""The primitives that any family may call, and the few formulas of one family (`pool.`, `conv.`, `mhc.`).

They run on Python ints and, in generated call checks, on symbolic sizes: no truth value of a size is taken
where the result does not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tileops.manifest import kinds as k
from tileops.manifest.dtypes import DTYPES, represents
from tileops.manifest.primitives.registry import DomainError, Formal, count, primitive
from tileops.manifest.primitives.symbolic import (
    choose,
    conjunction,
    largest,
    require,
    smallest,
    square_root,
    total,
)

AXES = k.Maybe(k.Union((k.INT, k.INTS)))
INT_OR_SEQ = k.Maybe(k.Union((k.INT, k.INTS, k.Seq(k.Maybe(k.INT)))))
ANY_DTYPE = k.DType(tuple(DTYPES))
SCALAR = k.Union((k.INT, k.REAL, k.BOOL))
ANY_SEQ = k.Union((k.SHAPE, k.INTS, k.Seq(k.Maybe(k.INT)), k.Seq(k.BOOL), k.Seq(k.REAL)))


def normalize_axis(axis: int, rank: int) -> int:
    """`axis` counted from the front. At rank 0 the axes 0 and -1 name the one scalar axis.

    Raises:
        DomainError: there is no such axis.
    """
    if rank == 0 and axis in (0, -1):
        return 0
    if not -rank <= axis < rank:
        raise DomainError(f"axis {axis} is out of range for rank {rank}; it must lie in [{-rank}, {rank})")
    return axis % rank


def _axes(dim: int | Sequence[int] | None, rank: int) -> list[int]:
    given = [] if dim is None else [dim] if isinstance(dim, int) else list(dim)
    return [normalize_axis(axis, rank) for axis in given]


# --- shapes ---


@primitive("broadcast", Formal("shapes", k.SHAPE), result=k.SHAPE, variadic=True)
def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that `shapes` broadcast to, by PyTorch's rule."""
    rank = max(map(len, shapes))
    result: list[int] = [1] * rank
    for shape in shapes:
        axis = rank - len(shape)
        for size in shape:
            current = result[axis]
            if type(current) is int and current == 1:
                result[axis] = size
            elif type(size) is not int or size != 1:
                same = current == size
                if same is not True:  # a symbolic size is taken not to be 1, as torch takes it
                    listed = " and ".join(str(list(item)) for item in shapes)
                    where = f"axis {axis - rank} has sizes {current} and {size}"
                    require(same, f"shapes {listed} do not broadcast: {where}")
                if type(size) is int:
                    result[axis] = size
            axis += 1
    return tuple(result)


@primitive(
    "reduced",
    Formal("shape", k.SHAPE),
    Formal("dim", AXES),
    Formal("keepdim", k.BOOL),
    Formal("mode", k.Str(("full", "noop", "reject")), required=False),
    result=k.SHAPE,
)
def reduced(
    shape: Sequence[int], dim: int | Sequence[int] | None, keepdim: bool, mode: str = "full"
) -> tuple[int, ...]:
    """Shape after a reduction over `dim`.

    Args:
        shape: of the input.
        dim: axes to reduce.
        keepdim: reduced axes stay with size 1.
        mode: what no axes (None or an empty list) mean: "full" reduces all, "noop" lets an empty list reduce
            nothing, "reject" raises.
    """
    rank = len(shape)
    empty = dim is None or (not isinstance(dim, int) and len(dim) == 0)
    if empty and mode == "reject":
        raise DomainError(f"dim is {dim!r}; name at least one axis")
    if empty and (mode == "full" or dim is None):
        gone = set(range(rank))
    else:
        gone = set(_axes(dim, rank))
    if keepdim:
        return tuple(1 if axis in gone else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in gone)


# --- integers and folds ---


@primitive(
    "ceil_div",
    Formal("a", k.INT),
    Formal("b", k.INT),
    result=lambda kinds: k.DIM if kinds[0] == k.DIM == kinds[1] else k.INT,
)
def ceil_div(a: int, b: int) -> int:
    """``a / b`` rounded up; `b` is positive."""
    require(b > 0, f"ceil_div needs a positive divisor, got {b}")
    return -(-a // b)


@primitive(
    "per_axis",
    Formal("p", INT_OR_SEQ),
    Formal("i", k.INT),
    Formal("n", k.INT),
    Formal("fallback", k.INT, required=False, keyword=True),
    result=k.INT,
)
def per_axis(p: int | Sequence[int | None] | None, i: int, n: int, *, fallback: int | None = None) -> int:
    """The value for axis `i` of `n` of a parameter that is one int for all axes or a sequence with one per
    axis.
    """
    if not 0 <= i < n:
        raise DomainError(f"axis {i} is out of range for {n} axes")
    if isinstance(p, list | tuple) and len(p) != n:
        raise DomainError(f"expected one int or {n} of them, got {list(p)}")
    value: Any = p[i] if isinstance(p, list | tuple) else p
    if value is None:
        value = fallback
    if value is None:
        raise DomainError(f"the value of axis {i} is absent and there is no fallback")
    return value


@primitive("len", Formal("sequence", ANY_SEQ), result=k.DIM)
def length(sequence: Sequence[Any]) -> int:
    """Number of elements, or of axes of a shape."""
    return len(sequence)


@primitive("prod", Formal("sequence", ANY_SEQ), result=lambda kinds: k.DIM if kinds[0] == k.SHAPE else k.INT)
def prod(sequence: Sequence[int]) -> int:
    """Product of the elements; 1 for none."""
    return math.prod(sequence)


def _element_kind(kind: k.Kind) -> k.Kind:
    return k.DIM if isinstance(kind, k.Shape) else kind.element if isinstance(kind, k.Seq) else kind


def _folded_kind(arguments: list[k.Kind]) -> k.Kind:
    if any(isinstance(kind, k.Seq | k.Shape) for kind in arguments[1:]):
        raise DomainError("max and min take one sequence, or several numbers")
    found = _element_kind(arguments[0])
    for other in arguments[1:]:
        found = k.join(found, _element_kind(other)) or k.REAL
    return found


@primitive(
    "sum",
    Formal("sequence", ANY_SEQ),
    result=lambda kinds: k.INT if _element_kind(kinds[0]) == k.BOOL else _element_kind(kinds[0]),
)
def sum_of(sequence: Iterable[Any]) -> Any:
    """Sum of the elements; 0 for none."""
    return total(sequence)


_FOLD_ITEM = k.Union((k.SHAPE, k.INTS, k.Seq(k.REAL), k.INT, k.REAL))


def _extremum(name: str, choose: Callable[..., Any], values: tuple[Any, ...], default: Any) -> Any:
    items = list(values[0]) if len(values) == 1 and hasattr(values[0], "__iter__") else list(values)
    if not items:
        if default is None:
            raise DomainError(f"{name} of nothing; give a default")
        return default
    return choose(items)


_DEFAULT = Formal("default", k.NUMBER, required=False, keyword=True)


@primitive("max", Formal("values", _FOLD_ITEM), _DEFAULT, result=_folded_kind, variadic=True)
def maximum(*values: Any, default: Any = None) -> Any:
    """Largest of a sequence, or of several values; `default` for an empty sequence."""
    return _extremum("max", largest, values, default)


@primitive("min", Formal("values", _FOLD_ITEM), _DEFAULT, result=_folded_kind, variadic=True)
def minimum(*values: Any, default: Any = None) -> Any:
    """Smallest of a sequence, or of several values; `default` for an empty sequence."""
    return _extremum("min", smallest, values, default)


@primitive("all", Formal("conditions", k.Seq(k.BOOL)), result=k.BOOL)
def every(conditions: Iterable[bool]) -> bool:
    """Whether every condition holds; true for none."""
    return conjunction(conditions)


@primitive(
    "conv.out",
    Formal("length", k.INT),
    Formal("k", k.INT),
    Formal("s", k.INT),
    Formal("p", k.INT),
    Formal("d", k.INT),
    result=k.INT,
)
def conv_out(length: int, k: int, s: int, p: int, d: int) -> int:
    """Output length of a convolution: kernel `k`, stride `s`, padding `p` on both sides, dilation `d`."""
    require(s > 0, f"conv.out needs a positive stride, got {s}")
    return (length + 2 * p - d * (k - 1) - 1) // s + 1


@primitive(
    "pool.out",
    Formal("length", k.INT),
    Formal("k", k.INT),
    Formal("s", k.INT),
    Formal("p", k.INT),
    Formal("d", k.INT),
    Formal("ceil_mode", k.BOOL),
    result=k.DIM,
)
def pool_out(length: int, k: int, s: int, p: int, d: int, ceil_mode: bool) -> int:
    """Output length of a pooling window, with PyTorch's correction: in `ceil_mode` the last window starts
    inside the input or its left padding.
    """
    require(s > 0, f"pool.out needs a positive stride, got {s}")
    span = length + 2 * p - d * (k - 1) - 1
    windows = (span + (s - 1 if ceil_mode else 0)) // s + 1
    if ceil_mode:
        windows = choose((windows - 1) * s >= length + p, windows - 1, windows)
    require(windows >= 0, f"a window of {k} with dilation {d} does not fit a length of {length} padded by {p}")
    return windows


@primitive("mhc.expansion", count("q"), result=k.DIM)
def mhc_expansion(q: int) -> int:
    """The n with ``n * n + 2 * n == q``."""
    n = square_root(q + 1) - 1
    require(n * n + 2 * n == q, f"mhc.expansion needs q = n * n + 2 * n, got {q}")
    return n


# --- tests ---


@primitive("valid_axes", Formal("dim", AXES), Formal("rank", k.INT), result=k.BOOL)
def valid_axes(dim: int | Sequence[int] | None, rank: int) -> bool:
    """Whether every axis of `dim` exists at `rank`."""
    try:
        _axes(dim, rank)
    except DomainError:
        return False
    return True


@primitive("unique_axes", Formal("dim", AXES), Formal("rank", k.INT), result=k.BOOL)
def unique_axes(dim: int | Sequence[int] | None, rank: int) -> bool:
    """Whether no axis of `dim` occurs twice, counted modulo `rank`."""
    axes = _axes(dim, rank)
    return len(set(axes)) == len(axes)


@primitive(
    "category",
    Formal("x", k.Union((*SCALAR.members, ANY_DTYPE))),
    result=k.Str(("bool", "int", "float", "complex")),
)
def category(x: bool | int | float | complex | str) -> str:
    """Category of a scalar, or of a dtype."""
    if isinstance(x, str):
        return DTYPES[x].category
    for kind, name in ((bool, "bool"), (int, "int"), (float, "float")):
        if isinstance(x, kind):
            return name
    return "complex"


@primitive("representable", Formal("v", SCALAR), Formal("T", ANY_DTYPE), result=k.BOOL)
def representable(v: bool | int | float, T: str) -> bool:
    """Whether PyTorch converts the scalar `v` to dtype `T` without an overflow."""
    return represents(DTYPES[T], v)


# --- dtypes ---


def _promoted(arguments: list[k.Kind]) -> k.Kind:
    names = arguments[0].names if isinstance(arguments[0], k.DType) else ()
    return k.DType(tuple(dict.fromkeys(promote_int_to_float(name) for name in names)))


@primitive("promote_int_to_float", Formal("T", ANY_DTYPE), result=_promoted)
def promote_int_to_float(T: str) -> str:
    """float32 for a bool or integer dtype, else the dtype itself."""
    return "float32" if DTYPES[T].category in ("bool", "int") else T


def _coalesced(arguments: list[k.Kind]) -> k.Kind:
    first, second = arguments
    if isinstance(first, k.NoneKind):
        return second
    if isinstance(first, k.Maybe):
        return k.join(first.inner, second) or second
    return first


@primitive("coalesce_dtype", Formal("opt", k.Maybe(ANY_DTYPE)), Formal("T", ANY_DTYPE), result=_coalesced)
def coalesce_dtype(opt: str | None, T: str) -> str:
    """`opt` where it is given, else `T`."""
    return T if opt is None else opt


# --- lists for rows and generator arguments ---


@primitive("repeat", Formal("v", k.INT), count("n"), result=k.INTS)
def repeat(v: int, n: int) -> list[int]:
    """`v`, `n` times."""
    return [v] * n


@primitive("balanced_sizes", count("total"), count("count"), result=k.INTS)
def balanced_sizes(total: int, count: int) -> list[int]:
    """`total` split into `count` sizes that differ by at most one, the larger first."""
    if count <= 0:
        raise DomainError(f"balanced_sizes needs a positive count, got {count}")
    size, larger = divmod(total, count)
    return [size + 1] * larger + [size] * (count - larger)
