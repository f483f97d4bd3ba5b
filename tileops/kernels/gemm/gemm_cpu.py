"""Matrix multiplication on the CPU: which way a call takes, and its launch.

Four ways, by the number of rows M of the result:

- *dot*: few rows, B as the caller holds it. B is read once, row by row.
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

from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields
from typing import Any, Literal

from tileops.autotune.space import TileSpace, power_of_two
from tileops.jit import cpu_target, parallel
from tileops.jit.program import Program
from tileops.kernels.base import Config, Kernel, TensorSpec
from tileops.kernels.gemm.call_spec import GemmCall, GemmFwdInterface
from tileops.kernels.gemm.scratch import give, take

DTYPES = ("float32", "bfloat16", "float16")

COLUMNS, STEP = 16, 32  # columns of a panel, elements of k to which panels are padded
_GEMM = "tileops.kernels.gemm"
_SCRATCH_ALIGN = 64

#: How far before its use a stream of packed panels is fetched.
_AHEAD_BYTES = 1024
#: Rows of an unpacked B that few rows of A meet at a time.
_DOT_ROWS = 4
#: The most rows of A for which AMX reads rows of an unpacked B where they lie.
_STREAMED_ROWS = 96
#: Above this many rows of A an unpacked B is packed as a whole before it is used.
_PACK_ALL_ABOVE = 1024
#: Bytes per nanosecond of one thread that streams weights; multiplications per nanosecond of one thread by
#: form.
_STREAM = 14.0
_RATE = {"f32": 80.0, "pairs": 160.0, "parts1": 800.0, "parts2": 300.0, "parts3": 150.0}
_RATE_OF_THREE_PARTS_AND_ONE = 260.0
#: Bytes of an element of B in panels.
_PANEL_BYTES = {"f32": 4, "pairs": 2, "parts1": 2, "parts2": 4, "parts3": 6}
#: Bytes of packed B up to which every thread may read all of it.
SMALL_B = 8 << 20


#: Layout of packed float32 weights whose values all are finite bfloat16.
NARROWED = "panels16-bf16"


def packed_layouts(dtype: str) -> tuple[str, ...]:
    """Names of the layouts in which weights of `dtype` are packed, the one for any values first: the same on every
    CPU.
    """
    return ("panels16-f32", NARROWED) if dtype == "float32" else ("panels16-pairs",)


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


@dataclass(frozen=True)
class Path:
    """The way a call takes.

    Attributes:
        kind: see the module.
        form: what the register tile of `blocks` finds in panels (see `_forms`).
        a_form: what it finds in row blocks.
        source: what `blocks` finds as B: "rows", "raw" (a packed weight in another form), "panels".
        pack_a: A is packed into row blocks first; AMX can also read rows where they lie.
        dense_a: A must be copied to dense rows first.
        a_dtype: storage format of A after that: with few rows half precisions are widened once, not at every use.
        b_dtype: storage format of B.
        dense_b: B likewise.
        pack_b: B is packed as a whole first.
    """

    kind: Literal["dot", "panels", "stream", "blocks"]
    form: str
    a_form: str
    source: str
    pack_a: bool
    dense_a: bool
    a_dtype: str
    b_dtype: str
    dense_b: bool
    pack_b: bool

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
        return _RATE[self.form] if self.a_form == self.form else _RATE_OF_THREE_PARTS_AND_ONE


def _form(dtype: str) -> str:
    target = cpu_target()
    if target.has_amx:
        return {"bf16": "parts1", "f16": "parts2", "f32": "parts3"}[dtype]
    return "pairs" if dtype == "bf16" and target.has_avx512bf16 else "f32"


def _few_rows(dtype: str, b_dtype: str) -> int:
    """The most rows of A for which streaming B beats packing A."""
    if b_dtype != "bf16" or not cpu_target().has_amx:
        return 16
    return 4 if dtype == "bf16" else 8


def path(call: GemmCall) -> Path:
    """The way that `call` takes on this CPU; remembered, as choosing, building and binding a kernel ask in turn."""
    target = cpu_target()
    known: tuple[Any, Path] | None = call.__dict__.get("_path")
    if known is None or known[0] is not target:
        known = call.__dict__["_path"] = target, _path(call)
    return known[1]


def _path(call: GemmCall) -> Path:
    m, n, k = call.mnk
    dtype = call.a.short
    b_dtype = "bf16" if call.packed == NARROWED else dtype
    form = a_form = _form(dtype)
    few = m <= _few_rows(dtype, b_dtype)
    if few and form in ("parts2", "parts3"):
        form = a_form = "f32"
    elif form == "parts3" and b_dtype == "bf16":
        form = "parts1"
    widen = few and m > 1 and dtype != "f32" and form == "f32"
    a_dtype = "f32" if widen else dtype
    dense_a = k > 1 and call.a_strides[1] != 1
    pack_a = dense_a or a_form != "parts1" or not _readable_as_tiles(call)
    if call.packed is not None:
        raw = "f32" if b_dtype == "f32" else "pairs"
        in_form = raw == form or (b_dtype == "bf16" and form == "parts1")
        if few:
            return Path("panels", form, form, "raw", False, dense_a or widen, a_dtype, b_dtype, False, False)
        source = "panels" if in_form else "raw"
        return Path("blocks", form, a_form, source, pack_a, dense_a, dtype, b_dtype, False, False)
    dense_b = k > 1 and call.b_strides[0] != 1
    if form == "parts1" and not few and m <= _STREAMED_ROWS and k % STEP == 0 and n >= 32 and not dense_b:
        return Path("stream", form, form, "rows", True, dense_a, dtype, dtype, False, False)
    if few:
        return Path("dot", form, form, "rows", False, dense_a or widen, a_dtype, dtype, dense_b, False)
    pack_all = m > _PACK_ALL_ABOVE
    return Path(
        "blocks", form, form, "panels" if pack_all else "rows", pack_a, dense_a, dtype, dtype, dense_b, pack_all
    )


def _readable_as_tiles(call: GemmCall) -> bool:
    """Whether AMX can load rows of A where they lie: whole tiles only, and not all lines in one set of the
    cache.
    """
    m, _, k = call.mnk
    pitch = call.a_strides[0] * call.a.itemsize
    return m % 32 == 0 and k % STEP == 0 and pitch % 2048 != 0


def _tiles_of(form: str) -> dict[str, tuple[int, ...]]:
    """Values of the tile parameters for a form."""
    lanes = cpu_target().lanes
    if form.startswith("parts"):
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
    return config["MC"] % config["MR"] == 0 and (chosen.form.startswith("parts") or registers <= 28)


def _rows_at_once(call: GemmCall) -> int:
    """Rows of a unit on AMX: half of 512 where units go by rows (see `_blocks_cpu`), for two threads to share."""
    m, n, k = call.mnk
    chosen = path(call)
    small = n * k * _PANEL_BYTES[chosen.form] <= SMALL_B
    return 256 if chosen.source == "panels" and small and 256 <= m <= 512 else 512


def _few_rows_program(call: GemmCall, chosen: Path) -> Program:
    m, native = call.mnk[0], chosen.form in ("pairs", "parts1")
    options: dict[str, Any]
    if chosen.kind == "dot":
        options = {"MT": 1 if m == 1 else 2 if m == 2 else 4, "NT": _DOT_ROWS, "unroll": 4 if m == 1 else 1}
        options["prefetch"] = _DOT_ROWS if m <= 4 else 1
    else:
        tile_rows, tile_panels = _panel_tile(m)
        options = {"MT": tile_rows, "NV": tile_panels, "unroll": 2 if m == 1 else 1, "ahead_bytes": _AHEAD_BYTES}
        options["b_dtype"] = chosen.b_dtype
    return Program.of(
        f"{_GEMM}._rows_cpu:{chosen.kind}",
        ["ptr", "i64", "ptr", "i64", "ptr", "i64", "i64", "i64", "i64"],
        dtype=call.a.short, a_dtype=chosen.a_dtype, native_pairs=native, **options,
    )  # fmt: skip


def _panel_tile(m: int) -> tuple[int, int]:
    """Compile class of few rows with packed weights: rows and panels held at a time."""
    if cpu_target().lanes < 16:
        return (1 if m == 1 else 2 if m == 2 else 4), 1
    return next(tile for tile in ((1, 6), (2, 6), (4, 4), (8, 2), (16, 1)) if m <= tile[0] or tile[0] == 16)


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
        m = call.mnk[0]
        # The numbers of rows that `default_config` and `programs` tell apart.
        rows = m if m <= COLUMNS else 64 if m <= 64 else 255 if m < 256 else 256
        return path(call), call.a.dtype, call.packed, rows, _rows_at_once(call), cpu_target().lanes

    def resized(self, call: GemmCall) -> Callable[..., Callable[..., None] | None] | None:
        if call.packed is not None:
            return None
        of, dtype, weight = TensorSpec.contiguous, call.a.dtype, call.b
        same = {item.name: getattr(call, item.name) for item in fields(call)}
        own_class = self.compile_class(call)

        def at(a: tuple[int, ...], b: tuple[int, ...], d: tuple[int, ...]) -> Callable[..., None] | None:
            tensors = {"a": of(dtype, a), "b": weight if b == weight.shape else of(dtype, b), "d": of(dtype, d)}
            other = GemmCall.made({**same, **tensors})
            return self.bind(other) if self.compile_class(other) == own_class else None

        return at

    @classmethod
    def default_config(cls, call: GemmCall) -> Config:
        form = path(call).form
        if path(call).a_form != form:
            nc = 512 if call.mnk[0] >= 256 else 64
            return {"MR": 32, "NV": 2, "MC": _rows_at_once(call), "NC": nc, "KC": 512, "prefetch": 0}
        if form.startswith("parts"):
            parts, many = int(form[-1]), call.mnk[0] >= 256
            # Rows of an unpacked B with a power-of-two stride share few cache sets: fetching many ahead
            # evicts them.
            prefetch = (0 if many else 4) if path(call).source == "rows" else 1
            # Panels that one or two row blocks use need not stay in the first-level cache.
            kc = 256 if parts > 1 else 512 if call.mnk[0] > 64 else 2048
            nc = 256 if many else 64
            return {"MR": 32, "NV": 2, "MC": _rows_at_once(call), "NC": nc, "KC": kc, "prefetch": prefetch}
        lanes = cpu_target().lanes
        if lanes == 16:
            kc = 1024 if form == "pairs" else 384
            return {"MR": 14, "NV": 2, "MC": 504, "NC": 128, "KC": kc, "prefetch": 1}
        return {"MR": 6 if lanes == 8 else 3, "NV": 1, "MC": 504, "NC": 128, "KC": 384, "prefetch": 0}

    @classmethod
    def programs(cls, call: GemmCall, config: Config) -> dict[str, Program]:
        chosen = path(call)
        dtype = call.a.short
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
                panels=1 if call.mnk[0] <= COLUMNS else 2,
            )
            return found
        if chosen.kind != "blocks":
            found["main"] = _few_rows_program(call, chosen)
            return found
        amx = chosen.form.startswith("parts")
        pack_a = "pack_row_tiles" if amx else "pack_row_blocks"
        options = {"parts": int(chosen.a_form[-1])} if amx else {"form": chosen.form, "MR": config["MR"]}
        if chosen.pack_a:
            found["pack_a"] = Program.of(
                f"{_GEMM}._forms:{pack_a}", ["ptr", "i64", "i64", "i64", "ptr", "i64"], dtype=dtype, **options
            )
        if chosen.pack_b:
            found["pack_b"] = _pack_b(dtype, chosen.form)
        found["main"] = Program.of(
            f"{_GEMM}._blocks_cpu:blocks",
            ["ptr", "i64", "i64", "i64", "ptr", "i64", "ptr", *["i64"] * 7, "ptr", "i64"],
            dtype=dtype, b_dtype=chosen.b_dtype, a_form=chosen.a_form, form=chosen.form, source=chosen.source,
            MR=config["MR"], NV=config["NV"], prefetch=config["prefetch"],
        )  # fmt: skip
        return found

    def bind(self, call: GemmCall) -> Callable[..., None]:
        if call.mnk[2] == 0:
            return lambda a, b, d: d.zero_()
        chosen = path(call)
        binder = {
            "dot": self._bind_few,
            "panels": self._bind_few,
            "stream": self._bind_stream,
            "blocks": self._bind_blocks,
        }[chosen.kind]
        launch, own_scratch = binder(call, chosen)
        if chosen.dense_a or chosen.dense_b:
            return self._with_dense_operands(call, chosen, launch, own_scratch)
        if own_scratch is None:
            return lambda a, b, d: launch(a.data_ptr(), b.data_ptr(), d.data_ptr(), 0)

        def run(a: Any, b: Any, d: Any) -> None:
            scratch = take(own_scratch())
            launch(a.data_ptr(), b.data_ptr(), d.data_ptr(), scratch.data_ptr())
            give(scratch)

        return run

    # -- the ways of a call ----------------------------------------------------------------------------------------

    def _bind_few(self, call: GemmCall, chosen: Path) -> tuple[_Launch, _Scratch]:
        m, n, k = call.mnk
        size = call.a.itemsize
        main = self.entries["main"].launch
        team = parallel.team
        limit = parallel.limit(n * k * chosen.b_size / _STREAM + m * n * k / _RATE["f32"])
        lda = _padded_row(k, chosen.a_size) if chosen.dense_a else call.a_strides[0] * size
        ldd = n * size
        if chosen.kind == "dot":
            ldb = _row_bytes(call.b, k, call.b_strides[1], chosen.dense_b)
            units = -(-n // _DOT_ROWS)
        else:
            ldb = panel_stride(chosen.b_size, k)
            units = -(-n // COLUMNS)

        def launch(a: int, b: int, d: int, scratch: int) -> None:
            main(team(limit) if limit else 0, units, a, lda, b, ldb, d, ldd, m, n, k)

        return launch, None

    def _bind_stream(self, call: GemmCall, chosen: Path) -> tuple[_Launch, _Scratch]:
        m, n, k = call.mnk
        lda = _row_bytes(call.a, k, call.a_strides[0], chosen.dense_a)
        ldb, ldd = call.b_strides[1] * call.b.itemsize, n * call.d.itemsize
        panels, stride = 1 if m <= COLUMNS else _round_up(-(-m // COLUMNS), 2), panel_stride(2, k)
        pack_a, main = self.entries["pack_a"].launch, self.entries["main"].launch
        team, limit = parallel.team, parallel.limit(n * k * 2 / _STREAM)
        pack_limit = parallel.limit(m * k * 2 / _STREAM)

        def launch(a: int, b: int, d: int, scratch: int) -> None:
            pack_a(team(pack_limit), panels, a, lda, m, k, scratch, stride)
            main(team(limit), -(-n // 32), scratch, stride, b, ldb, d, ldd, m, n, k // STEP)

        return launch, lambda: panels * stride

    def _bind_blocks(self, call: GemmCall, chosen: Path) -> tuple[_Launch, _Scratch]:
        m, n, k = call.mnk
        size = call.a.itemsize
        config = {name: int(value) for name, value in self.config.items()}
        mr, nr = config["MR"], config["NV"] * COLUMNS
        per_k = {"f32": 64, "pairs": 32}.get(chosen.form) or 32 * int(chosen.form[-1])
        a_row = {"f32": 4, "pairs": 2}.get(chosen.a_form) or 2 * int(chosen.a_form[-1])
        padded_k = _round_up(k, STEP)
        limit = parallel.limit(m * n * k / chosen.rate)
        team = parallel.team

        chunks = max(1, round(k / config["KC"]))
        kc = _round_up(-(-k // chunks), STEP)
        row_blocks = -(-m // config["MC"])
        mc = _round_up(-(-m // row_blocks), mr)
        nc = _columns_of_a_block(n, nr, config["NC"], row_blocks, max(1, team(limit)))
        units = row_blocks * -(-n // nc)

        in_place = chosen.source == "panels"
        tile = mr * nr * 4
        sums = tile * (1 if k <= kc else (mc // mr) * (nc // nr))
        per_thread = _round_up((0 if in_place else nc * kc * per_k // COLUMNS) + sums, 4096)
        a_rows = 16 if chosen.form.startswith("parts") else mr
        a_units = -(-_round_up(m, mr) // a_rows)
        a_stride = padded_k * a_row * a_rows
        a_bytes = _round_up(a_units * a_stride, _SCRATCH_ALIGN) if chosen.pack_a else 0
        b_stride = per_k * padded_k
        b_units = packed_panels(n) if chosen.pack_b else 0
        b_bytes = b_units * b_stride

        lda = _row_bytes(call.a, k, call.a_strides[0], chosen.dense_a)
        rows_ldb = 0 if call.packed else _row_bytes(call.b, k, call.b_strides[1], chosen.dense_b)
        ldb = b_stride if chosen.pack_b else panel_stride(chosen.b_size, k) if call.packed else rows_ldb
        ldd = n * size
        a_layout = (padded_k * a_row, a_row * a_rows, 64) if chosen.pack_a else (lda, size, lda)
        main = self.entries["main"].launch
        pack_a = self.entries["pack_a"].launch if chosen.pack_a else None
        pack_b = self.entries["pack_b"].launch if chosen.pack_b else None
        pack_limit = parallel.limit(m * k * size / _STREAM)

        def scratch_bytes() -> int:
            return a_bytes + b_bytes + max(1, team(limit)) * per_thread

        def launch(a: int, b: int, d: int, scratch: int) -> None:
            if pack_a is not None:
                pack_a(team(pack_limit), a_units, a, lda, m, k, scratch, a_stride)
                a = scratch
            if pack_b is not None:
                pack_b(team(limit), b_units, b, rows_ldb, n, k, scratch + a_bytes, b_stride)
                b = scratch + a_bytes
            main(
                team(limit), units, a, *a_layout, b, ldb, d, ldd, m, n, k, mc, nc, kc,
                scratch + a_bytes + b_bytes, per_thread,
            )  # fmt: skip

        return launch, scratch_bytes

    def _with_dense_operands(
        self, call: GemmCall, chosen: Path, launch: _Launch, own_scratch: _Scratch
    ) -> Callable[..., None]:
        """`launch` after copying the operands whose rows are not dense."""
        m, n, k = call.mnk
        size = call.a.itemsize
        lanes, team = cpu_target().lanes, parallel.team
        copy_a: Any
        copy_b: Any
        copy_a, copy_b = (
            self.entries[name].launch if name in self.entries else None for name in ("dense_a", "dense_b")
        )
        a_ld, b_ld = _padded_row(k, chosen.a_size), _padded_row(k, size)

        def stage(rows: int, row_step: int, k_step: int) -> tuple[Any, ...]:
            return parallel.limit(2 * rows * k), -(-rows // lanes), row_step * size, k_step * size, rows

        a_stage = stage(m, *call.a_strides) if chosen.dense_a else None
        b_stage = stage(n, call.b_strides[1], call.b_strides[0]) if chosen.dense_b else None
        a_bytes = _round_up(m * a_ld, _SCRATCH_ALIGN) if chosen.dense_a else 0
        b_bytes = _round_up(n * b_ld, _SCRATCH_ALIGN) if chosen.dense_b else 0

        def run(a: Any, b: Any, d: Any) -> None:
            more = 0 if own_scratch is None else own_scratch()
            scratch = take(a_bytes + b_bytes + more)
            base = scratch.data_ptr()
            left, right = a.data_ptr(), b.data_ptr()
            if a_stage is not None:
                limit, units, row_step, k_step, rows = a_stage
                copy_a(team(limit), units, left, row_step, k_step, rows, k, base, a_ld)
                left = base
            if b_stage is not None:
                limit, units, row_step, k_step, rows = b_stage
                copy_b(team(limit), units, right, row_step, k_step, rows, k, base + a_bytes, b_ld)
                right = base + a_bytes
            launch(left, right, d.data_ptr(), base + a_bytes + b_bytes)
            give(scratch)

        return run


_Launch = Callable[[int, int, int, int], None]
_Scratch = Callable[[], int] | None


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def _columns_of_a_block(n: int, step: int, wanted: int, row_blocks: int, threads: int) -> int:
    """Width of the column blocks, near `wanted`, that spreads the units over the threads most evenly."""
    best, least = step, None
    for blocks in range(1, -(-n // step) + 1):
        width = _round_up(-(-n // blocks), step)
        if width > max(2 * wanted, step):
            continue
        if 2 * width < wanted and least is not None:
            break
        units = row_blocks * -(-n // width)
        # The thread with most work has this many columns of result rows.
        load = -(-units // threads) * min(width, n)
        cost = load * (1 + 0.1 * abs(width - wanted) / wanted)
        if least is None or cost < least:
            best, least = width, cost
    return best


def _padded_row(k: int, itemsize: int) -> int:
    """Bytes of a row of a dense copy: whole words of four bytes."""
    return _round_up(k * itemsize, 4)


def _row_bytes(operand: TensorSpec, k: int, row_stride: int, copied: bool) -> int:
    return _padded_row(k, operand.itemsize) if copied else row_stride * operand.itemsize
