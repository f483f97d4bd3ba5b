"""The ways that a matrix multiplication can take on a CPU, and which one a call takes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable
from typing import Any, Literal, NamedTuple

from tileops.jit import CpuTarget, cpu_target
from tileops.kernels.gemm.call_spec import GemmCall

COLUMNS, STEP = 16, 32  # columns of a panel, elements of k to which panels are padded

#: The most rows of A for which AMX reads rows of an unpacked B where they lie, and elements of B from which it does so
#: for 3 or 4 rows.
_STREAMED_ROWS = 96
_STREAMED_FROM = 1 << 18
#: Multiplications of float32 up to which the vector units are done before AMX has its operands.
_SMALL = 1 << 18
#: Above this many rows of A an unpacked B is packed as a whole before it is used.
_PACK_ALL_ABOVE = 1024
#: Numbers of rows of A up to which everything that is compiled or chosen by it is the same.
ROW_CLASSES = (1, 2, 4, 8, COLUMNS, 64, _STREAMED_ROWS, 255, 512, _PACK_ALL_ABOVE)
#: Multiplications per nanosecond of one thread by form.
RATE = {"f32": 80.0, "pairs": 160.0, "parts1": 800.0, "parts2": 300.0, "parts3": 150.0}
_RATE_OF_THREE_PARTS_AND_ONE = 260.0
#: Bytes of an element in panels and in row blocks, for one column or row.
ELEMENT_BYTES = {"f32": 4, "pairs": 2, "parts1": 2, "parts2": 4, "parts3": 6}
ON_AMX = ("parts1", "parts2", "parts3")
#: Bytes of packed B up to which every thread may read all of it.
SMALL_B = 8 << 20

#: Layout of packed float32 weights whose values all are finite bfloat16.
NARROWED = "panels16-bf16"


def packed_layouts(dtype: str) -> tuple[str, ...]:
    """Names of the layouts in which weights of `dtype` are packed, the one for any values first: the same on every
    CPU.
    """
    return ("panels16-f32", NARROWED) if dtype == "float32" else ("panels16-pairs",)


#: What is dense in memory of a matrix whose rows run along K.
Order = Literal["rows", "columns", "strided"]


class Sizes(NamedTuple):
    """Extents of a product, and the steps of ``op(a)`` and ``op(b)`` from row to row (of `b` along N) and within a row,
    in elements.
    """

    m: int
    n: int
    k: int
    a_row: int
    a_step: int
    b_row: int
    b_step: int

    @classmethod
    def of(cls, call: GemmCall) -> Sizes:
        """The sizes of a call."""
        return cls(*call.mnk, *call.a_strides, *call.b_strides[::-1])


class Path(NamedTuple):
    """The way a call takes.

    Attributes:
        kind: see the module.
        form: what the register tile of `blocks` finds in panels (see `_forms`).
        a_form: what it finds in row blocks.
        source: what `blocks` finds as B: "rows", "raw" (a packed weight in another form), "panels".
        pack_a: A is packed into row blocks first; AMX can also read rows where they lie.
        dense_a: A must be copied to dense rows first.
        dtype: storage format of the operands and of the result.
        a_dtype: storage format of A after that: with few rows half precisions are widened once, not at every use.
        b_dtype: storage format of B.
        dense_b: B must be copied to dense rows first.
        pack_b: B is packed as a whole first.
        packed: layout in which the caller packed B, or None.
        a_columns: columns of A are dense in memory, and its row blocks are packed straight from there.
        b_columns: rows of ``op(b)`` are dense in memory, and panels are packed straight from there.
    """

    kind: Literal["dot", "panels", "stream", "blocks"]
    form: str
    a_form: str
    source: str
    pack_a: bool
    dense_a: bool
    dtype: str
    a_dtype: str
    b_dtype: str
    dense_b: bool = False
    pack_b: bool = False
    packed: str | None = None
    a_columns: bool = False
    b_columns: bool = False

    @property
    def size(self) -> int:
        """Bytes of an element of the operands and of the result."""
        return 4 if self.dtype == "f32" else 2

    @property
    def a_size(self) -> int:
        """Bytes of an element of A as the multiplication reads it."""
        return 4 if self.a_dtype == "f32" else 2

    @property
    def b_size(self) -> int:
        """Bytes of an element of B."""
        return 4 if self.b_dtype == "f32" else 2

    @property
    def rate(self) -> float:
        """Multiplications per nanosecond of one thread."""
        return RATE[self.form] if self.a_form == self.form else _RATE_OF_THREE_PARTS_AND_ONE


def _form(target: CpuTarget, dtype: str) -> str:
    if target.has_amx:
        return {"bf16": "parts1", "f16": "parts2", "f32": "parts3"}[dtype]
    return "pairs" if dtype == "bf16" and target.has_avx512bf16 else "f32"


def few_rows(target: CpuTarget, dtype: str, b_dtype: str) -> int:
    """The most rows of A for which streaming B beats packing A."""
    if b_dtype != "bf16" or not target.has_amx:
        return 16
    return 4 if dtype == "bf16" else 8


def path(call: GemmCall) -> Path:
    """The way that `call` takes on this CPU; remembered, as choosing, building and binding a kernel ask in turn."""
    target = cpu_target()
    known: tuple[Any, Path] | None = call.__dict__.get("_path")
    if known is None or known[0] is not target:
        known = call.__dict__["_path"] = target, path_of(target, Sizes.of(call), call.a.short, call.packed)
    return known[1]


#: The ways that were chosen: there are few, and most calls ask again.
_paths: dict[tuple[Any, ...], Path] = {}


def path_of(target: CpuTarget, sizes: Sizes, dtype: str, packed: str | None) -> Path:
    key = target.name, bisect_left(ROW_CLASSES, sizes.m), dtype, packed, case_of(sizes, dtype)
    found = _paths.get(key)
    if found is None:
        a_order, b_order, *rest = key[-1]
        found = _paths[key] = _chosen(target, *key[1:4], a_order, b_order if packed is None else "rows", *rest)
    return found


def case_of(sizes: tuple[int, ...], dtype: str) -> tuple[Order, Order, bool, bool, bool]:
    """All of `Sizes` that the way of a call depends on besides its class of rows; see `_chosen`."""
    m, n, k, a_row, a_step, b_row, b_step = sizes
    whole = k % STEP == 0
    return (
        "rows" if a_step == 1 or k == 1 else "columns" if a_row == 1 else "strided",
        "rows" if b_step == 1 or k == 1 else "columns" if b_row == 1 else "strided",
        # AMX can load rows of A where they lie: whole tiles only, and not all lines in one set of the cache.
        whole and m % 32 == 0 and a_row * (4 if dtype == "f32" else 2) % 2048 != 0,
        whole and n >= 32 and (m > 4 or n * k >= _STREAMED_FROM),
        m * n * k <= _SMALL,
    )


def _chosen(
    target: CpuTarget,
    rows: int,
    dtype: str,
    packed: str | None,
    a_order: Order,
    b_order: Order,
    tiles: bool,
    streamed: bool,
    small: bool,
) -> Path:
    """The way of calls in a class of `ROW_CLASSES`.

    Args:
        target: the CPU.
        rows: number of the class.
        dtype: storage format of the operands.
        packed: layout in which the caller packed B, or None.
        a_order: what of A is dense in memory: its rows, its columns, or nothing.
        b_order: the same of B as ``[N, K]``.
        tiles: AMX can load rows of A where they lie.
        streamed: and rows of B, which is large enough.
        small: there are few multiplications.
    """
    dense_a, dense_b = a_order != "rows", b_order != "rows"
    m = ROW_CLASSES[rows] if rows < len(ROW_CLASSES) else _PACK_ALL_ABOVE + 1
    b_dtype = "bf16" if packed == NARROWED else dtype
    form = a_form = _form(target, dtype)
    few = m <= few_rows(target, dtype, b_dtype) or (small and form == "parts3" and packed is None)
    if few and form in ("parts2", "parts3"):
        form = a_form = "f32"
    elif form == "parts3" and b_dtype == "bf16":
        form = "parts1"
    widen = few and m > 1 and dtype != "f32" and form == "f32"
    a_dtype = "f32" if widen else dtype
    pack_a = dense_a or a_form != "parts1" or not tiles
    if packed is not None:
        raw = "f32" if b_dtype == "f32" else "pairs"
        in_form = raw == form or (b_dtype == "bf16" and form == "parts1")
        if few:
            return Path(
                "panels", form, form, "raw", False, dense_a or widen, dtype, a_dtype, b_dtype, packed=packed
            )  # fmt: skip
        source = "panels" if in_form else "raw"
        a_columns = a_order == "columns" and a_form in ON_AMX
        return Path(
            "blocks", form, a_form, source, pack_a, dense_a and not a_columns, dtype, dtype, b_dtype, packed=packed,
            a_columns=a_columns,
        )  # fmt: skip
    if form == "parts1" and 2 < m <= _STREAMED_ROWS and streamed and not dense_b:
        return Path("stream", form, form, "rows", True, dense_a, dtype, dtype, dtype)
    if few:
        return Path("dot", form, form, "rows", False, dense_a or widen, dtype, a_dtype, dtype, dense_b)
    a_columns, b_columns = a_order == "columns" and form in ON_AMX, b_order == "columns"
    # What columns give is in panels with little work, once and for all row blocks.
    pack_all = b_columns or m > _PACK_ALL_ABOVE
    source = "panels" if pack_all else "rows"
    return Path(
        "blocks", form, form, source, pack_a, dense_a and not a_columns, dtype, dtype, dtype,
        dense_b and not b_columns, pack_all, a_columns=a_columns, b_columns=b_columns,
    )  # fmt: skip


def compile_class(target: CpuTarget, m: int, n: int, k: int, chosen: Path) -> Hashable:
    """What is compiled and chosen for sizes on a way."""
    return chosen, bisect_left(ROW_CLASSES, m), rows_at_once(m, n, k, chosen), target.lanes


def rows_at_once(m: int, n: int, k: int, chosen: Path) -> int:
    """Rows of a unit on AMX: half of 512 where units go by rows (see `_blocks_cpu`), for two threads to share."""
    by_rows = 256 <= m <= 512 and chosen.source == "panels" and n * k * ELEMENT_BYTES[chosen.form] <= SMALL_B
    return 256 if by_rows else 512
