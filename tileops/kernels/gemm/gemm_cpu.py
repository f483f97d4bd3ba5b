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
from functools import cached_property, lru_cache
from typing import Any

from tileops.autotune.space import TileSpace, power_of_two
from tileops.jit import cpu_target, parallel
from tileops.jit.cpu.direct import Address, Family, Member
from tileops.jit.program import Program
from tileops.kernels.base import Config, Kernel
from tileops.kernels.cpu_scratch import give, take
from tileops.kernels.gemm import paths
from tileops.kernels.gemm.call_spec import GemmCall, GemmFwdInterface
from tileops.kernels.gemm.paths import (
    COLUMNS,
    DTYPES,
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
        if call.a.dtype not in DTYPES:
            return f"a is {call.a.dtype}; the CPU kernel takes {', '.join(DTYPES)}"
        known = packed_layouts(call.a.dtype)
        if call.packed is not None and call.packed not in known:
            return f"b is packed as {call.packed!r}; the CPU kernel reads {' or '.join(map(repr, known))}"
        return super().refusal(call)

    @classmethod
    def compile_class(cls, call: GemmCall) -> Hashable:
        if call.a.dtype not in DTYPES:
            return None
        return paths.compile_class(cpu_target(), *call.mnk, path(call))

    def resized(self, call: GemmCall) -> Callable[..., Callable[..., None] | Member | None] | None:
        if call.packed is not None:
            return None
        target, dtype, own = cpu_target(), call.a.short, path(call)
        together, varying = rows_at_once(*call.mnk, own), own.source == "panels"
        served: dict[Hashable, bool] = {}
        bind = self._binder(own)
        trans_a, trans_b = call.trans_a, call.trans_b
        rows = bisect_left(ROW_CLASSES, call.mnk[0])
        least = ROW_CLASSES[rows - 1] + 1 if rows else 0
        most = ROW_CLASSES[rows] if rows < len(ROW_CLASSES) else sys.maxsize

        def at(a: tuple[int, ...], b: tuple[int, ...], d: tuple[int, ...]) -> Callable[..., None] | Member | None:
            m, n = d
            if not least <= m <= most:
                return None
            k = a[0] if trans_a else a[1]
            sizes = (m, n, k, *((1, m) if trans_a else (k, 1)), *((k, 1) if trans_b else (1, n)))
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
        bound = self._binder(path(call))(Sizes.of(call))
        return bound.launcher() if isinstance(bound, Member) else bound

    def _binder(self, chosen: Path) -> Callable[[tuple[int, ...]], Callable[..., None] | Member]:
        """From `Sizes` to a call on a way."""
        if _is_launched_once(chosen):
            once = self._few_rows(chosen)
            return lambda sizes: once(sizes) if sizes[2] else _zero
        ways = {"blocks": self._blocks, "stream": self._stream}
        work_of = ways.get(chosen.kind, self._few_rows_with_copies)(chosen)
        if chosen.dense_a or chosen.dense_b:
            dense = self._with_dense_operands(chosen)
            return lambda sizes: dense(sizes, work_of(sizes)) if sizes[2] else _zero
        return lambda sizes: _run(work_of(sizes)) if sizes[2] else _zero

    # -- the ways of a call ----------------------------------------------------------------------------------------

    def _few_rows_with_copies(self, chosen: Path) -> Callable[[tuple[int, ...]], _Work]:
        main, once = self.entries["main"].launch, self._few_rows(chosen)

        def of(sizes: tuple[int, ...]) -> _Work:
            _, limit, units, (lda, ldb, ldd, m, n, k), _ = once(sizes)

            def launch(threads: int, a: int, b: int, d: int, scratch: int) -> None:
                main(threads, units, a, lda, b, ldb, d, ldd, m, n, k)

            return launch, limit, 0, 0

        return of

    def _few_rows(self, chosen: Path) -> Callable[[tuple[int, ...]], Member]:
        """From `Sizes` to a call of few rows on a way, its copied operands dense."""
        size, a_size, b_size = chosen.size, chosen.a_size, chosen.b_size
        dense_a, dense_b, dot = chosen.dense_a, chosen.dense_b, chosen.kind == "dot"
        family = self._few
        alone, together = (_dot_rows(m, chosen) if dot else COLUMNS for m in (1, 2))
        read, multiplied = b_size / _STREAM, 1 / RATE["f32"]

        def of(sizes: tuple[int, ...]) -> Member:
            m, n, k, a_row, _, b_row, _ = sizes
            lda = _padded_row(k, a_size) if dense_a else a_row * size
            ldb = panel_stride(b_size, k) if not dot else _padded_row(k, size) if dense_b else b_row * size
            limit = parallel.limit(n * k * (read + m * multiplied))
            units = -(-n // (alone if m == 1 else together))
            return Member(family, limit, units, (lda, ldb, n * size, m, n, k))

        return of

    @cached_property
    def _few(self) -> Family:
        """Calls of few rows without copies."""
        a, b, d = (Address(place) for place in range(3))
        return Family(self.entries["main"], (a, None, b, None, d, None, None, None, None), 3)

    def _stream(self, chosen: Path) -> Callable[[tuple[int, ...]], _Work]:
        size, dense_a = chosen.size, chosen.dense_a
        pack_a, main, team = self.entries["pack_a"].launch, self.entries["main"].launch, parallel.team

        def of(sizes: tuple[int, ...]) -> _Work:
            m, n, k, a_row, _, b_row, _ = sizes
            lda = _padded_row(k, size) if dense_a else a_row * size
            ldb, ldd = b_row * size, n * size
            panels, stride = 1 if m <= COLUMNS else _round_up(-(-m // COLUMNS), 2), panel_stride(2, k)
            pack_limit = parallel.limit(m * k * 2 / _STREAM)
            units, steps = -(-n // 32), k // STEP

            def launch(threads: int, a: int, b: int, d: int, scratch: int) -> None:
                pack_a(team(pack_limit), panels, a, lda, m, k, scratch, stride)
                main(threads, units, scratch, stride, b, ldb, d, ldd, m, n, steps)

            return launch, parallel.limit(n * k * 2 / _STREAM), panels * stride, 0

        return of

    def _blocks(self, chosen: Path) -> Callable[[tuple[int, ...]], _Work]:
        size, mr, nr = chosen.size, self._mr, self._nr
        most_rows, columns, most_k, fetch = self._mc, self._nc, self._kc, self._fetch
        per_k, a_rows = ELEMENT_BYTES[chosen.form] * COLUMNS, 16 if chosen.form in ON_AMX else mr
        a_pitch_of_k = ELEMENT_BYTES[chosen.a_form]
        a_step_of_pack = a_pitch_of_k * a_rows
        read_ns, product_ns = size / _STREAM, 1 / chosen.rate
        packs_chunks = chosen.source != "panels"
        a_columns, b_columns, dense_a, dense_b = chosen.a_columns, chosen.b_columns, chosen.dense_a, chosen.dense_b
        packed_size = chosen.b_size if chosen.packed else 0
        entries, team = self.entries, parallel.team
        main = entries["main"].launch
        pack_a = entries["pack_a"].launch if chosen.pack_a else None
        pack_b = entries["pack_b"].launch if chosen.pack_b else None

        def of(sizes: tuple[int, ...]) -> _Work:
            m, n, k, row_of_a, step_of_a, row_of_b, step_of_b = sizes
            padded_k = -(-k // STEP) * STEP
            limit = parallel.limit(m * n * k * product_ns)
            chunks = round(k / most_k)
            kc = padded_k if chunks < 2 else _round_up(-(-k // chunks), STEP)
            row_blocks = -(-m // most_rows)
            mc = _round_up(-(-m // row_blocks), mr)
            nc = _columns_of_a_block(n, nr, columns, row_blocks, team(limit) or 1)
            units = row_blocks * -(-n // nc)
            tile = mr * nr * 4
            sums = tile if k <= kc else tile * (mc // mr) * (nc // nr)
            per_thread = _round_up(sums + nc * kc * per_k // COLUMNS if packs_chunks else sums, 4096)

            lda, ldd, scratch_bytes = _padded_row(k, size) if dense_a else row_of_a * size, n * size, 0
            a_pitch, a_step, a_line = lda, size, lda
            if pack_a is not None:
                a_units, a_stride = -(-m // mr) * mr // a_rows, padded_k * a_step_of_pack
                a_extents: tuple[int, ...] = m, k
                a_packed_units = a_units
                if a_columns:  # by steps of k and pairs of panels
                    lda = step_of_a * size
                    a_packed_units, a_extents = a_units // 2 * (padded_k // STEP), (m, k, a_units, 1)
                a_pitch, a_step, a_line = padded_k * a_pitch_of_k, a_step_of_pack, 64
                scratch_bytes = _round_up(a_units * a_stride, _SCRATCH_ALIGN)
                pack_limit = parallel.limit(m * k * read_ns)
            ldb = panel_stride(packed_size, k) if packed_size else _padded_row(k, size) if dense_b else row_of_b * size
            if pack_b is not None:
                b_at, b_units, b_stride = scratch_bytes, packed_panels(n), per_k * padded_k
                b_extents: tuple[int, ...] = n, k
                b_packed_units, rows_ldb, ldb = b_units, ldb, b_stride
                if b_columns:
                    rows_ldb = step_of_b * size
                    b_packed_units, b_extents = b_units // 2 * (padded_k // STEP), (n, k, b_units, 0)
                scratch_bytes += b_units * b_stride

            def launch(threads: int, a: int, b: int, d: int, scratch: int) -> None:
                if pack_a is not None:
                    pack_a(team(pack_limit), a_packed_units, a, lda, *a_extents, scratch, a_stride)
                    a = scratch
                if pack_b is not None:
                    pack_b(threads, b_packed_units, b, rows_ldb, *b_extents, scratch + b_at, b_stride)
                    b = scratch + b_at
                main(
                    threads, units, a, a_pitch, a_step, a_line, b, ldb, d, ldd, m, n, k, mc, nc, kc,
                    scratch + scratch_bytes, per_thread, fetch,
                )  # fmt: skip

            return launch, limit, scratch_bytes, per_thread

        return of

    def _with_dense_operands(self, chosen: Path) -> Callable[[tuple[int, ...], _Work], Callable[..., None]]:
        """From `Sizes` and work on dense rows to a call that first copies the operands whose rows are not dense."""
        size, a_size, dense_a, dense_b = chosen.size, chosen.a_size, chosen.dense_a, chosen.dense_b
        lanes, team = cpu_target().lanes, parallel.team
        copy_a: Any
        copy_b: Any
        copy_a, copy_b = (
            self.entries[name].launch if name in self.entries else None for name in ("dense_a", "dense_b")
        )

        def stage(rows: int, k: int, row_step: int, k_step: int) -> tuple[Any, ...]:
            return parallel.limit(2 * rows * k), -(-rows // lanes), row_step * size, k_step * size, rows

        def of(sizes: tuple[int, ...], work: _Work) -> Callable[..., None]:
            m, n, k, a_row, a_step, b_row, b_step = sizes
            launch, limit, scratch_bytes, per_thread = work
            a_ld, b_ld = _padded_row(k, a_size), _padded_row(k, size)
            a_stage = stage(m, k, a_row, a_step) if dense_a else None
            b_stage = stage(n, k, b_row, b_step) if dense_b else None
            a_bytes = _round_up(m * a_ld, _SCRATCH_ALIGN) if dense_a else 0
            copied = a_bytes + (_round_up(n * b_ld, _SCRATCH_ALIGN) if dense_b else 0)

            def run(a: Any, b: Any, d: Any) -> None:
                threads = team(limit)
                scratch = take(copied + scratch_bytes + (threads or 1) * per_thread)
                base = scratch.data_ptr()
                left, right = a.data_ptr(), b.data_ptr()
                if a_stage is not None:
                    copy_limit, units, row_step, k_step, rows = a_stage
                    copy_a(team(copy_limit), units, left, row_step, k_step, rows, k, base, a_ld)
                    left = base
                if b_stage is not None:
                    copy_limit, units, row_step, k_step, rows = b_stage
                    copy_b(team(copy_limit), units, right, row_step, k_step, rows, k, base + a_bytes, b_ld)
                    right = base + a_bytes
                launch(threads, left, right, d.data_ptr(), base + copied)
                give(scratch)

            return run

        return of


def _run(work: _Work) -> Callable[..., None]:
    """A call that is nothing but `work`."""
    launch, limit, scratch_bytes, per_thread = work
    team = parallel.team

    def run(a: Any, b: Any, d: Any) -> None:
        threads = team(limit)
        scratch = take(scratch_bytes + (threads or 1) * per_thread)
        launch(threads, a.data_ptr(), b.data_ptr(), d.data_ptr(), scratch.data_ptr())
        give(scratch)

    return run


def _zero(a: Any, b: Any, d: Any) -> None:
    """The sum of no products."""
    d.zero_()


def _is_launched_once(chosen: Path) -> bool:
    """Whether calls on a way are one launch, of few rows without copies."""
    return chosen.kind in ("dot", "panels") and not (chosen.dense_a or chosen.dense_b)


#: What is left of a call on dense operands: ``launch(threads, a, b, d, scratch)`` with addresses, the limit of its
#: threads (see `parallel.limit`), bytes of scratch memory, and further ones for each thread.
_Work = tuple[Callable[[int, int, int, int, int], None], int, int, int]


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
