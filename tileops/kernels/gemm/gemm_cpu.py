"""Matrix multiplication on the CPU: which way a call takes, and its launch.

Four ways, by the number of rows M of the result:

- *dot*: few rows, B as the caller holds it. B is read once, row by row. On AMX small products of float32, too.
- *panels*: few rows, packed B.
- *stream*: up to some dozen rows of bfloat16 on AMX, which reads rows of B where they lie.
- *blocks*: many rows. A is packed into row blocks, B chunk by chunk into panels inside the kernel (or it is packed
  already, or, where very many rows share the cost, packed as a whole first), and a register tile does the rest.

All compute in float32 and round once. On AMX, which multiplies bfloat16 and sums in float32, the blocks of float16 and
float32 are sums of two and three bfloat16 (`lang.pairs.bf16_parts`). The parts are exact, and so are products that the
format holds, such as those of small integers; of others, 2**-18 is left out for float16 and 2**-25 for float32 (mean
square), as often too much as too little. That is less than what the rounding of the sum costs. AMX takes subnormal
numbers for zeros: float32 parts below 2**-126 vanish, so operands below about 2**-102 lose precision.

A packed float32 weight whose values all are bfloat16 is stored as such: half the memory to stream, and on AMX one part,
so that three products do instead of six.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from typing import Any

from tileops.autotune.space import TileSpace, power_of_two
from tileops.jit import cpu_target, parallel
from tileops.jit.cpu.direct import SCRATCH, Address, Family, Member, Step
from tileops.jit.program import Program
from tileops.kernels.base import FLOAT_DTYPES, Config, Kernel
from tileops.kernels.gemm import paths
from tileops.kernels.gemm.call_spec import GemmCall, GemmFwdInterface
from tileops.kernels.gemm.paths import (
    COLUMNS,
    ELEMENT_BYTES,
    NARROWED,
    ON_AMX,
    RATE,
    ROW_CLASSES,
    STEP,
    Path,
    Sizes,
    case_of,
    few_rows,
    packed_layouts,
    path,
    path_of,
    rows_at_once,
)

#: Bytes per nanosecond of one thread that streams weights.
_STREAM = 14.0
_GEMM = "tileops.kernels.gemm"
_SCRATCH_ALIGN = 64

#: How far before its use a stream of packed panels is fetched.
_AHEAD_BYTES = 1024
#: Rows of an unpacked B that few rows of A meet at a time, and bytes of a column of those that a single row meets: the
#: more rows, the less often the end of a row interrupts the stream from memory.
_DOT_ROWS, _DOT_COLUMN_BYTES = 4, 32
#: What AMX fetches ahead of an unpacked B, in pairs of rows at each step.
_ROWS_AHEAD = 4


def panel_stride(itemsize: int, k: int) -> int:
    """Bytes of a panel of a packed weight."""
    return _round_up(k, STEP) * COLUMNS * itemsize


def packed_panels(n: int) -> int:
    """Panels of a packed weight: a multiple of four, so that a wide register tile never passes the end."""
    return _round_up(-(-n // COLUMNS), 4)


def pack_program(dtype: str, layout: str) -> Program:
    """Packs the rows of a ``[N, K]`` weight; `dtype` is a short name."""
    form = "parts1" if layout == NARROWED else "f32" if dtype == "f32" else "pairs"
    return _pack_b(dtype, form)


def narrowing_program() -> Program:
    """Finds out whether all of a float32 matrix is finite bfloat16."""
    return Program.of(f"{_GEMM}._forms:beyond_bf16", ["ptr", "i64", "i64", "ptr"])


def dense_program(dtype: str, to: str) -> Program:
    """Copies a matrix of any strides into dense rows, of its own format or of float32."""
    return Program.of(
        f"{_GEMM}._forms:dense_rows", ["ptr", "i64", "i64", "i64", "i64", "ptr", "i64"], dtype=dtype, to=to
    )


def _pack_b(dtype: str, form: str) -> Program:
    return Program.of(f"{_GEMM}._forms:pack_panels", ["ptr", "i64", "i64", "i64", "ptr", "i64"], dtype=dtype, form=form)


def _pack_columns(dtype: str, form: str) -> Program:
    return Program.of(
        f"{_GEMM}._forms:pack_columns", ["ptr", *["i64"] * 5, "ptr", "i64"], dtype=dtype, form=form
    )  # fmt: skip


def _tiles_of(form: str) -> dict[str, tuple[int, ...]]:
    """Values of the tile parameters for a form."""
    lanes = cpu_target().lanes
    if form in ON_AMX:
        return {"MR": (32,), "NV": (2,), "KC": (256, 384, 512, 1024, 2048), "prefetch": (0, 1, 4)}
    shapes = {16: ((6, 12, 14), (2, 4)), 8: ((4, 6), (1,)), 4: ((2, 3), (1,))}[lanes]
    return {"MR": shapes[0], "NV": shapes[1], "KC": (256, 384, 512, 1024), "prefetch": (0, 1)}


def _fits(config: Any, call: GemmCall) -> bool:
    if call is None:
        return True
    chosen = path(call)
    if chosen.kind != "blocks":
        return dict(config) == GemmCpuKernel.default_config(call)
    values = _tiles_of(chosen.form)
    if any(config[name] not in known for name, known in values.items()):
        return False
    registers = config["MR"] * config["NV"] * (COLUMNS // cpu_target().lanes)
    return config["MC"] % config["MR"] == 0 and (chosen.form in ON_AMX or registers <= 28)


def _few_rows_program(m: int, chosen: Path) -> Program:
    native = chosen.form in ("pairs", "parts1")
    options: dict[str, Any]
    if chosen.kind == "dot":
        # One or two rows, and the few more where AMX serves the rest, have all of B fetched ahead.
        ahead = m <= 2 or few_rows(cpu_target(), chosen.dtype, chosen.dtype) <= 4
        columns = _dot_rows(m, chosen)
        options = {"MT": 1 if m == 1 else 2 if ahead else 4, "NT": columns}
        options["unroll"] = 4 if m == 1 and columns == _DOT_ROWS else 1
        options["prefetch"] = columns if ahead else 1
    else:
        tile_rows, tile_panels = _panel_tile(m)
        options = {"MT": tile_rows, "NV": tile_panels, "unroll": 2 if m == 1 else 1, "ahead_bytes": _AHEAD_BYTES}
        options["b_dtype"] = chosen.b_dtype
    return Program.of(
        f"{_GEMM}._rows_cpu:{chosen.kind}",
        ["ptr", "i64", "ptr", "i64", "ptr", "i64", "i64", "i64", "i64"],
        dtype=chosen.dtype, a_dtype=chosen.a_dtype, native_pairs=native, **options,
    )  # fmt: skip


def _dot_rows(m: int, chosen: Path) -> int:
    """Rows of B at a time: more where registers can hold their sums."""
    return _DOT_COLUMN_BYTES // chosen.size if m == 1 and cpu_target().lanes == 16 else _DOT_ROWS


def _panel_tile(m: int) -> tuple[int, int]:
    """Compile class of few rows with packed weights: rows and panels held at a time."""
    if cpu_target().lanes < 16:
        return (1 if m == 1 else 2 if m == 2 else 4), 1
    return next(tile for tile in ((1, 6), (2, 6), (4, 4), (8, 2), (16, 1)) if m <= tile[0] or tile[0] == 16)


def _compiled_prefetch(chosen: Path, prefetch: int) -> int:
    """What the program of `blocks` fetches ahead. On AMX unpacked B needs one program, which may be told to fetch
    nothing: it has the time.
    """
    return prefetch or (_ROWS_AHEAD if chosen.form in ON_AMX and chosen.source == "rows" else 0)


class GemmCpuKernel(Kernel, GemmFwdInterface):
    """Every layout, any sizes; see the module for the ways a call can take."""

    devices = frozenset({"cpu"})
    tile_space = TileSpace(
        {
            "MR": (2, 3, 4, 6, 12, 14, 32),
            "NV": (1, 2, 4),
            "MC": (84, 168, 256, 512, 504, 1024, 1008),
            "NC": (64, 128, 256, 512),
            "KC": (256, 384, 512, 1024, 2048),
            "prefetch": (0, 1, 4),
        },
        constraints=(_fits,),
        bucket=lambda call: {
            "M": power_of_two(call.mnk[0]),
            "N": call.mnk[1],
            "K": call.mnk[2],
            "packed": call.packed is not None,
            **({"narrowed": True} if call.packed == NARROWED else {}),
        },
    )

    def __init__(self, config: Config, entries: Mapping[str, Any]) -> None:
        super().__init__(config, entries)
        self._mr, self._mc, self._nc, self._kc = (int(config[name]) for name in ("MR", "MC", "NC", "KC"))
        self._nr = int(config["NV"]) * COLUMNS
        self._fetch = 1 if config["prefetch"] else 0

    @classmethod
    def refusal(cls, call: GemmCall) -> str | None:
        if call.a.dtype not in FLOAT_DTYPES:
            return f"a is {call.a.dtype}; the CPU kernel takes {', '.join(FLOAT_DTYPES)}"
        known = packed_layouts(call.a.dtype)
        if call.packed is not None and call.packed not in known:
            return f"b is packed as {call.packed!r}; the CPU kernel reads {' or '.join(map(repr, known))}"
        return super().refusal(call)

    @classmethod
    def compile_class(cls, call: GemmCall) -> Hashable:
        if call.a.dtype not in FLOAT_DTYPES:
            return None
        return paths.compile_class(cpu_target(), *call.mnk, path(call))

    def resized(self, call: GemmCall) -> Callable[..., Callable[..., None] | Member | None] | None:
        if call.packed is not None:
            return None
        target, dtype, own = cpu_target(), call.a.short, path(call)
        together, varying = rows_at_once(*call.mnk, own), own.source == "panels"
        served: dict[Hashable, bool] = {}
        bind = self._calls(own)
        trans_a, trans_b = call.trans_a, call.trans_b
        rows = bisect_left(ROW_CLASSES, call.mnk[0])
        least = ROW_CLASSES[rows - 1] + 1 if rows else 0
        most = ROW_CLASSES[rows] if rows < len(ROW_CLASSES) else sys.maxsize

        def at(a: tuple[int, ...], b: tuple[int, ...], d: tuple[int, ...]) -> Callable[..., None] | Member | None:
            m, n = d
            if not least <= m <= most:
                return None
            k = a[0] if trans_a else a[1]
            a_row, a_step = (1, m) if trans_a else (k, 1)
            b_row, b_step = (k, 1) if trans_b else (1, n)
            sizes = m, n, k, a_row, a_step, b_row, b_step
            # As `compile_class` says.
            case = case_of(sizes, dtype)
            same = served.get(case)
            if same is None:
                same = served[case] = path_of(target, Sizes._make(sizes), dtype, None) == own
            if not same or (varying and rows_at_once(m, n, k, own) != together):
                return None
            return bind(sizes)

        return at

    @classmethod
    def default_config(cls, call: GemmCall) -> Config:
        chosen, m = path(call), call.mnk[0]
        form = chosen.form
        if chosen.a_form != form:
            nc = 512 if m >= 256 else 64
            return {"MR": 32, "NV": 2, "MC": rows_at_once(*call.mnk, chosen), "NC": nc, "KC": 512, "prefetch": 0}
        if form in ON_AMX:
            parts, many = int(form[-1]), m >= 256
            # Rows of an unpacked B with a power-of-two stride share few cache sets: fetching many ahead
            # evicts them.
            prefetch = (0 if many else _ROWS_AHEAD) if chosen.source == "rows" else 1
            # Panels that one or two row blocks use need not stay in the first-level cache.
            kc = 256 if parts > 1 else 512 if m > 64 else 2048
            nc = 256 if many else 64
            return {"MR": 32, "NV": 2, "MC": rows_at_once(*call.mnk, chosen), "NC": nc, "KC": kc, "prefetch": prefetch}
        lanes = cpu_target().lanes
        if lanes == 16:
            kc = 1024 if form == "pairs" else 384
            return {"MR": 14, "NV": 2, "MC": 504, "NC": 128, "KC": kc, "prefetch": 1}
        return {"MR": 6 if lanes == 8 else 3, "NV": 1, "MC": 504, "NC": 128, "KC": 384, "prefetch": 0}

    @classmethod
    def programs(cls, call: GemmCall, config: Config) -> dict[str, Program]:
        chosen, m = path(call), call.mnk[0]
        dtype = chosen.dtype
        found: dict[str, Program] = {}
        if chosen.dense_a:
            found["dense_a"] = dense_program(dtype, chosen.a_dtype)
        if chosen.dense_b:
            found["dense_b"] = dense_program(dtype, dtype)
        if chosen.kind == "stream":
            found["pack_a"] = _pack_b(dtype, chosen.form)
            found["main"] = Program.of(
                f"{_GEMM}._stream_cpu:streamed_rows",
                ["ptr", "i64", "ptr", "i64", "ptr", "i64", "i64", "i64", "i64"],
                panels=1 if m <= COLUMNS else 2,
            )
            return found
        if chosen.kind != "blocks":
            found["main"] = _few_rows_program(m, chosen)
            return found
        amx = chosen.form in ON_AMX
        pack_a = "pack_row_tiles" if amx else "pack_row_blocks"
        options = {"parts": int(chosen.a_form[-1])} if amx else {"form": chosen.form, "MR": config["MR"]}
        if chosen.a_columns:
            found["pack_a"] = _pack_columns(dtype, chosen.a_form)
        elif chosen.pack_a:
            found["pack_a"] = Program.of(
                f"{_GEMM}._forms:{pack_a}", ["ptr", "i64", "i64", "i64", "ptr", "i64"], dtype=dtype, **options
            )
        if chosen.b_columns:
            found["pack_b"] = _pack_columns(dtype, chosen.form)
        elif chosen.pack_b:
            found["pack_b"] = _pack_b(dtype, chosen.form)
        found["main"] = Program.of(
            f"{_GEMM}._blocks_cpu:blocks",
            ["ptr", "i64", "i64", "i64", "ptr", "i64", "ptr", *["i64"] * 7, "ptr", "i64", "i64"],
            dtype=dtype, b_dtype=chosen.b_dtype, a_form=chosen.a_form, form=chosen.form, source=chosen.source,
            MR=config["MR"], NV=config["NV"], prefetch=_compiled_prefetch(chosen, int(config["prefetch"])),
        )  # fmt: skip
        return found

    def bind(self, call: GemmCall) -> Callable[..., None]:
        bound = self._calls(path(call))(Sizes.of(call))
        return bound.launcher() if isinstance(bound, Member) else bound

    def _calls(self, chosen: Path) -> Callable[[tuple[int, ...]], Callable[..., None] | Member]:
        """From `Sizes` to a call on a way."""
        ways = {"blocks": self._blocks, "stream": self._stream}
        copies, copied = self._dense_operands(chosen)
        operands = _COPIED if chosen.dense_a else _A, _MOVED if chosen.dense_b else _B
        steps, work = ways.get(chosen.kind, self._few_rows)(chosen, *operands)
        family = Family([*copies, *steps], 3)

        def of(sizes: tuple[int, ...]) -> Callable[..., None] | Member:
            if sizes[2] == 0:
                return _zero
            before, copied_ns, start, b_at = copied(sizes) if copies else _NO_COPIES
            values, scratch, per_thread = work(sizes, copied_ns, start, b_at)
            return Member(family, before + values, None, scratch, per_thread)

        return of

    # -- the ways of a call: kernels, and from sizes to the integers that these get (see `Member`) -----------------

    def _dense_operands(self, chosen: Path) -> tuple[list[Step], Callable[[tuple[int, ...]], tuple[Any, ...]]]:
        """Copies of the operands whose rows are not dense, that of A at the beginning of scratch memory: the kernels,
        and from `Sizes` to their integers, the nanoseconds that they take, where they end, and where that of B begins.
        """
        size, a_size, dense_a, dense_b = chosen.size, chosen.a_size, chosen.dense_a, chosen.dense_b
        lanes, limit = cpu_target().lanes, parallel.limit
        steps: list[Step] = []
        if dense_a:
            steps.append((self.entries["dense_a"], (_A, None, None, None, None, _COPIED, None)))
        if dense_b:
            steps.append((self.entries["dense_b"], (_B, None, None, None, None, _MOVED, None)))

        def of(sizes: tuple[int, ...]) -> tuple[Any, ...]:
            m, n, k, a_row, a_step, b_row, b_step = sizes
            values: tuple[int, ...] = ()
            a_bytes = b_bytes = work = 0
            if dense_a:
                ld, work = _padded_row(k, a_size), 2 * m * k
                values = -(-m // lanes), limit(work), a_row * size, a_step * size, m, k, ld
                a_bytes = _round_up(m * ld, _SCRATCH_ALIGN)
            if dense_b:
                ld = _padded_row(k, size)
                values += -(-n // lanes), limit(2 * n * k), b_row * size, b_step * size, n, k, a_bytes, ld
                b_bytes = _round_up(n * ld, _SCRATCH_ALIGN)
                work += 2 * n * k
            return values, float(work), a_bytes + b_bytes, (a_bytes,) if dense_b else ()

        return steps, of

    def _few_rows(self, chosen: Path, a: Address, b: Address) -> _Way:
        size, a_size, b_size = chosen.size, chosen.a_size, chosen.b_size
        dense_a, dense_b, dot = chosen.dense_a, chosen.dense_b, chosen.kind == "dot"
        alone, together = (_dot_rows(m, chosen) if dot else COLUMNS for m in (1, 2))
        read, multiplied, limit = b_size / _STREAM, 1 / RATE["f32"], parallel.limit

        def of(sizes: tuple[int, ...], copied_ns: float, start: int, b_at: tuple[int, ...]) -> _Bound:
            m, n, k, a_row, _, b_row, _ = sizes
            lda = _padded_row(k, a_size) if dense_a else a_row * size
            ldb = panel_stride(b_size, k) if not dot else _padded_row(k, size) if dense_b else b_row * size
            threads = limit(n * k * (read + m * multiplied) + copied_ns)
            units = -(-n // (alone if m == 1 else together))
            return (units, threads, lda, *b_at, ldb, n * size, m, n, k), start, 0

        return [(self.entries["main"], (a, None, b, None, _D, None, None, None, None))], of

    def _stream(self, chosen: Path, a: Address, b: Address) -> _Way:
        size, dense_a, limit = chosen.size, chosen.dense_a, parallel.limit
        entries = self.entries
        steps: list[Step] = [
            (entries["pack_a"], (a, None, None, None, _MOVED, None)),
            (entries["main"], (_MOVED, None, b, None, _D, None, None, None, None)),
        ]

        def of(sizes: tuple[int, ...], copied_ns: float, start: int, b_at: tuple[int, ...]) -> _Bound:
            m, n, k, a_row, _, b_row, _ = sizes
            lda = _padded_row(k, size) if dense_a else a_row * size
            panels, stride = 1 if m <= COLUMNS else _round_up(-(-m // COLUMNS), 2), panel_stride(2, k)
            packing = panels, limit(m * k * 2 / _STREAM), lda, m, k, start, stride
            threads = limit(n * k * 2 / _STREAM + copied_ns)
            values = -(-n // 32), threads, start, stride, *b_at, b_row * size, n * size, m, n, k // STEP
            return packing + values, start + panels * stride, 0

        return steps, of

    def _blocks(self, chosen: Path, a: Address, b: Address) -> _Way:
        size, mr, nr = chosen.size, self._mr, self._nr
        most_rows, columns, most_k = self._mc, self._nc, self._kc
        packs_a, packs_b, a_columns, b_columns = chosen.pack_a, chosen.pack_b, chosen.a_columns, chosen.b_columns
        dense_a, dense_b, packed_size = chosen.dense_a, chosen.dense_b, chosen.b_size if chosen.packed else 0
        per_k, a_rows = ELEMENT_BYTES[chosen.form] * COLUMNS, 16 if chosen.form in ON_AMX else mr
        a_pitch_of_k = ELEMENT_BYTES[chosen.a_form]
        a_step_of_pack = a_pitch_of_k * a_rows
        read_ns, product_ns = size / _STREAM, 1 / chosen.rate
        packs_chunks = chosen.source != "panels"
        limit, team = parallel.limit, parallel.team

        def packing(name: str, source: Address, by_columns: bool) -> Step:
            extents = [None] * (4 if by_columns else 2)
            return self.entries[name], (source, None, *extents, _MOVED, None)

        steps = [packing("pack_a", a, a_columns)] if packs_a else []
        steps += [packing("pack_b", b, b_columns)] if packs_b else []
        left, right = _MOVED if packs_a else a, _MOVED if packs_b else b
        steps.append(
            (self.entries["main"], (left, *[None] * 3, right, None, _D, *[None] * 7, _MOVED, None, self._fetch))
        )

        def of(sizes: tuple[int, ...], copied_ns: float, start: int, b_at: tuple[int, ...]) -> _Bound:
            m, n, k, row_of_a, step_of_a, row_of_b, step_of_b = sizes
            padded_k = -(-k // STEP) * STEP
            threads = limit(m * n * k * product_ns + copied_ns)
            chunks = round(k / most_k)
            kc = padded_k if chunks < 2 else _round_up(-(-k // chunks), STEP)
            row_blocks = -(-m // most_rows)
            mc = _round_up(-(-m // row_blocks), mr)
            nc = _columns_of_a_block(n, nr, columns, row_blocks, team(threads) or 1)
            tile = mr * nr * 4
            sums = tile if k <= kc else tile * (mc // mr) * (nc // nr)
            per_thread = _round_up(sums + nc * kc * per_k // COLUMNS if packs_chunks else sums, 4096)

            values: tuple[int, ...] = ()
            lda = _padded_row(k, size) if dense_a else row_of_a * size
            a_facts: tuple[int, ...] = lda, size, lda
            if packs_a:
                units, stride = -(-m // mr) * mr // a_rows, padded_k * a_step_of_pack
                pack_threads = limit(m * k * read_ns)
                if a_columns:  # by steps of k and pairs of panels
                    extents = step_of_a * size, m, k, units, 1
                    values = units // 2 * (padded_k // STEP), pack_threads, *extents, start, stride
                else:
                    values = units, pack_threads, lda, m, k, start, stride
                a_facts = start, padded_k * a_pitch_of_k, a_step_of_pack, 64
                start += _round_up(units * stride, _SCRATCH_ALIGN)
            ldb = panel_stride(packed_size, k) if packed_size else _padded_row(k, size) if dense_b else row_of_b * size
            if packs_b:
                units, stride = packed_panels(n), per_k * padded_k
                if b_columns:
                    extents = step_of_b * size, n, k, units, 0
                    values += units // 2 * (padded_k // STEP), threads, *b_at, *extents, start, stride
                else:
                    values += units, threads, *b_at, ldb, n, k, start, stride
                b_at, ldb = (start,), stride
                start += units * stride
            values += (
                row_blocks * -(-n // nc), threads, *a_facts, *b_at, ldb, n * size, m, n, k, mc, nc, kc,
                start, per_thread,
            )  # fmt: skip
            return values, start, per_thread

        return steps, of


#: The operands and the result, a copy of A at the beginning of scratch memory, and what is further on in it.
_A, _B, _D = (Address(place) for place in range(3))
_COPIED, _MOVED = Address(SCRATCH), Address(SCRATCH, None)
_NO_COPIES: tuple[Any, ...] = (), 0.0, 0, ()
#: The integers that the kernels of a call get, bytes of scratch memory, and further ones for each thread; what gives
#: them from `Sizes`, the nanoseconds of copies before, where these end, and where that of B begins if there is one.
_Bound = tuple[tuple[int, ...], int, int]
_Way = tuple[list[Step], Callable[[tuple[int, ...], float, int, tuple[int, ...]], _Bound]]


def _zero(a: Any, b: Any, d: Any) -> None:
    """The sum of no products."""
    d.zero_()


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


@lru_cache(maxsize=1024)
def _columns_of_a_block(n: int, step: int, wanted: int, row_blocks: int, threads: int) -> int:
    """Width of the column blocks, near `wanted`, that spreads the units over the threads most evenly."""
    best = most = min(_round_up(2 * wanted, step), _round_up(n, step))
    least = math.inf
    width = most
    while width > 0 and (2 * width >= wanted or width == most):
        blocks = -(-n // width)
        width = _round_up(-(-n // blocks), step)  # the narrowest that gives as many blocks
        # The thread with most work has this many columns of result rows.
        load = -(-row_blocks * blocks // threads) * min(width, n)
        cost = load * (1 + 0.1 * abs(width - wanted) / wanted)
        if cost < least:
            best, least = width, cost
        width -= step
    return best


def _padded_row(k: int, itemsize: int) -> int:
    """Bytes of a row of a dense copy: whole words of four bytes."""
    return _round_up(k * itemsize, 4)
