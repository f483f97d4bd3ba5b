"""Device side of GEMM with many rows: cache blocks around a register tile.

The unit of work is a block of MC rows and NC columns of the result. Units are numbered with the column block outermost,
so that a thread keeps one part of B in its cache while all rows pass over it; with the row block outermost where B is
packed and small, so that a thread makes whole rows, which operations on rows then find in its cache. Within a unit K is
cut into chunks of KC: the chunk of B (NC columns) is put into panels in the thread's scratch memory, unless B is packed
in the right form already, and the register tile passes over it. Between chunks the sums are kept in float32 scratch;
the last chunk stores the result, rounded once. Every element is summed in one order, whatever the blocks and the
threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tileops.jit import lang
from tileops.kernels.gemm import _forms, _tiles_cpu
from tileops.kernels.gemm.paths import SMALL_B


def _chunk_source(dtype: str, form: str, source: str) -> Any:
    """A tile that makes panels of a chunk of B and returns the address of the first.

    ``word(b, ldb, n, columns, panels, k, count, scratch)``: columns ``n .. n + columns - 1`` (of `panels`
    panels, the last ones zero), elements ``k .. k + count - 1``. `source` says what B is: ``"rows"`` (``[N,
    K]`` with dense rows, `ldb` bytes apart), ``"raw"`` (a packed weight) or ``"panels"`` (panels of `form`);
    then `ldb` is the panel stride.
    """
    size, per_k = lang.itemsize(dtype), _forms.bytes_per_k(form)
    raw_per_k = _forms.bytes_per_k(_forms.raw_form(dtype))
    from_rows: Any = _forms.panel_from_rows(dtype, form) if source == "rows" else None
    from_panel: Any = _forms.panel_from_panel(dtype, form) if source == "raw" else None

    @lang.tile("b: i64, ldb: i64, n: i64, columns: i64, panels: i64, k: i64, count: i64, scratch: i64", returns="i64")
    def chunk(t: Any, b: Any, ldb: Any, n: Any, columns: Any, panels: Any, k: Any, count: Any, scratch: Any) -> Any:
        if source == "panels":
            return b + (n // _forms.COLUMNS) * ldb + k * per_k
        stride = (count + (_forms.STEP - 1)) // _forms.STEP * (_forms.STEP * per_k)

        def panel(p: Any, _: Any) -> None:
            to = scratch + p * stride
            if source == "rows":
                row = n + p * _forms.COLUMNS
                # Panels beyond the last column read nothing; their address stays inside the matrix.
                left = t.max(columns - p * _forms.COLUMNS, 0)
                from_rows(b + t.select_value(left > 0, row, n) * ldb + k * size, ldb, left, count, to)
            else:
                from_panel(b + (n // _forms.COLUMNS + p) * ldb + k * raw_per_k, count, to)

        t.loop(0, panels, body=panel)
        return scratch

    return chunk


def _memory_ahead(dtype: str, form: str, source: str, NV: int, prefetch: int) -> tuple[Any, tuple[int, int]]:
    """What the AMX tile fetches while it computes, so that memory and arithmetic overlap.

    Panels in place: the next NV panels, shared by the row blocks that pass over the present ones. Otherwise
    the chunk of B that has to be packed next, shared by all register tiles of the present chunk.

    Returns:
        A tile ``word(b, ldb, panel, stride, n, k, p, row_block, block, steps, line)`` that gives the first address,
        and the rows and lines per row of one step. With 16 row blocks and `prefetch` 1 everything is fetched
        just once; with 8, where `line` is two lines: of each two the processor fetches the other.
    """
    size = lang.itemsize(dtype)
    raw_per_k = _forms.bytes_per_k(_forms.raw_form(dtype))

    @lang.tile(
        "b: i64, ldb: i64, panel: i64, stride: i64, n: i64, k: i64, p: i64, row_block: i64, block: i64, steps: i64, "
        "line: i64",
        returns="i64",
        inline=True,
    )
    def ahead(
        t: Any, b: Any, ldb: Any, panel: Any, stride: Any, n: Any, k: Any, p: Any, row_block: Any, block: Any,
        steps: Any, line: Any,
    ) -> Any:  # fmt: skip
        share = row_block * steps * line * prefetch
        if source == "panels":
            return panel + (p + NV) * stride + share
        if source == "raw":
            return b + (n // _forms.COLUMNS + p) * ldb + k * raw_per_k + share
        return b + (n + block * (2 * prefetch)) * ldb + k * size

    lines = _forms.STEP * size // _forms.LINE
    return ahead, (2 * prefetch, lines) if source == "rows" else (NV, prefetch)


def blocks(
    dtype: str, b_dtype: str, a_form: str, form: str, source: str, MR: int, NV: int, prefetch: int
) -> Callable[..., None]:
    """Body of the multiplication.

    Args:
        dtype: storage format of the result.
        b_dtype: of B.
        a_form: what row blocks hold (see `_forms`): as panels, or more parts.
        form: what panels hold; a ``parts`` form runs on AMX.
        source: what B is (see `_chunk_source`).
        MR: rows of the register tile (32 on AMX).
        NV: panels of the register tile (2 on AMX).
        prefetch: how much memory to fetch ahead (see `_memory_ahead`), 0 for none.
    """
    chunk = _chunk_source(b_dtype, form, source)
    tile = _tiles_cpu.amx_tile if form in _forms.PARTS else _tiles_cpu.vector_tile
    ahead, lines = _memory_ahead(b_dtype, form, source, NV, prefetch)
    start, multiply, finish = tile(dtype, a_form, form, MR, NV, lines if prefetch else (0, 0))
    unit = {"f32": 1, "pairs": 2}.get(form, _forms.STEP)
    per_k = _forms.bytes_per_k(form)
    size, step, width, line_bytes = lang.itemsize(dtype), _forms.STEP, _forms.COLUMNS, _forms.LINE
    in_place = 1 if source == "panels" else 0
    # Whichever takes more room stays in the nearest cache while the other passes.
    rows_first = a_form != form
    tile_bytes = MR * NV * width * 4

    def body(
        begin, end, tid, A, a_row, a_per_k, pitch, B, ldb, D, ldd, M, N, K, MC, NC, KC, scratch, per_thread, fetch
    ):
        # A row of A takes a_row bytes and an element of k a_per_k: in packed row blocks, or where the rows
        # lie. With `fetch` 0 the tile fetches, again and again, what it has just read.
        start()
        own = scratch + tid * per_thread
        sums = own + (1 - in_place) * NC * KC * per_k // width
        row_blocks = (M + MC - 1) // MC
        column_blocks = (N + NC - 1) // NC
        by_rows = in_place if N * K * per_k <= width * SMALL_B else 0
        kept = 1 if K > KC else 0
        held, held_d = 0, 0
        for u in range(begin, end):
            row_block = u // column_blocks if by_rows else u % row_blocks
            column_block = u % column_blocks if by_rows else u // row_blocks
            m0 = row_block * MC
            n0 = column_block * NC
            rows = MC if M - m0 > MC else M - m0
            columns = NC if N - n0 > NC else N - n0
            panels = (columns + NV * width - 1) // (NV * width) * NV
            for k in range(0, K, KC):
                count = KC if K - k > KC else K - k
                panel = chunk(B, ldb, n0, columns, panels, k, count, own)
                stride = in_place * ldb + (1 - in_place) * ((count + step - 1) // step * step * per_k)
                first = 1 if k == 0 else 0
                last = 1 if k + KC >= K else 0
                steps = (count + unit - 1) // unit
                next_n = n0 + NC * last
                next_k = (k + KC) * (1 - last)
                tall, wide = (rows + MR - 1) // MR, panels // NV
                ahead_line = 2 * line_bytes if in_place and tall <= 8 else line_bytes
                for block in range(tall * wide):
                    if rows_first:
                        i, p = block // wide * MR, block % wide * NV
                    else:
                        i, p = block % tall * MR, block // tall * NV
                    target = D + (m0 + i) * ldd + (n0 + p * width) * size
                    held = multiply(
                        steps,
                        A + (m0 + i) * a_row + k * a_per_k,
                        a_row,
                        a_per_k * step,
                        pitch,
                        panel + p * stride,
                        stride,
                        sums + block * kept * tile_bytes,
                        first,
                        last,
                        target,
                        ldd,
                        rows - i,
                        columns - p * width,
                        ahead(B, ldb, panel, stride, next_n, next_k, p, i // MR, block, steps, ahead_line)
                        if fetch
                        else panel,
                        (stride if in_place else ldb) * fetch,
                        ahead_line * fetch,
                        p,
                        held,
                        held_d,
                    )
                    held_d = target
        finish(held, held_d, ldd)

    return body
