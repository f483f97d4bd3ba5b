"""Device side of GEMM with some dozen rows of bfloat16 on AMX: B is streamed once, straight from where it lies.

AMX multiplies 16 rows of the left operand as they lie in memory with a right operand in panels. Here rows of B
(``[N, K]``) are the left operand, so nothing of it has to be packed; A, which is small, is. The accumulators then hold
the result transposed, and are transposed once at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tileops.jit import lang
from tileops.jit.lang import pairs
from tileops.kernels.gemm import _forms

#: Rows of B (columns of the result) of a unit: two tiles.
COLUMNS_AT_ONCE = 32
#: Rows of B up to which the next 32 are fetched ahead, and how far each row itself is fetched ahead otherwise.
FAR_ROW_BYTES = 16 << 10
NEAR_BYTES = 1024


def streamed_rows(panels: int) -> Callable[..., None]:
    """Body: unit `u` is 32 columns of the result, for all rows; the last unit repeats columns of the one before it.

    Args:
        panels: panels of A at a time: 1 for up to 16 rows, 2 for more; A has a multiple of them.
    """
    tile, line = _forms.TILE, _forms.LINE
    rows_at_once = 16 * panels
    groups = [(i, j) for i in range(2) for j in range(panels)]

    @lang.tile("", inline=True)
    def start(t: Any) -> None:
        t.amx_config()

    @lang.tile("", inline=True)
    def finish(t: Any) -> None:
        t.amx_release()

    @lang.tile("a: i64, stride: i64, rows: i64, b: i64, ldb: i64, steps: i64, d: i64, ldd: i64, ahead: i64")
    def multiply(
        t: Any, a: Any, stride: Any, rows: Any, b: Any, ldb: Any, steps: Any, d: Any, ldd: Any, ahead: Any
    ) -> None:
        for index in range(len(groups)):
            t.amx_zero(index)

        def step(k: Any, _: Any) -> None:
            row = b + k * line
            for i in range(COLUMNS_AT_ONCE):
                # As many streams as this are too much for the hardware to foresee.
                t.prefetch(row + ldb * i + ahead, locality=2)
            for j in range(panels):
                t.amx_load(6 + j, a + stride * j + k * tile, line)
            for i in range(2):
                t.amx_load(4 + i, row + ldb * (16 * i), ldb)
            for index, (i, j) in enumerate(groups):
                t.amx_dot_bf16(index, 4 + i, 6 + j)

        t.loop(0, steps, body=step)
        sums = t.alloca(len(groups) * tile)
        for index in range(len(groups)):
            t.amx_store(index, sums + index * tile, line)
        for j in range(panels):
            left, right = (
                t.transpose(
                    [t.bitcast(t.load_words(sums + (i * panels + j) * tile + r * line), "f32") for r in range(16)]
                )
                for i in range(2)
            )
            for r in range(16):
                m = 16 * j + r

                def write(m: int = m, first: Any = left[r], second: Any = right[r]) -> None:
                    pairs.store_bf16_flushed(d + ldd * m, first, second)

                t.when(rows > m, write)

    def body(begin, end, tid, A, stride, B, ldb, D, ldd, M, N, steps):
        # The next unit is fetched while this one is computed, unless both together would fill the cache.
        ahead = COLUMNS_AT_ONCE * ldb if ldb <= FAR_ROW_BYTES else NEAR_BYTES
        start()
        for u in range(begin, end):
            n = u * COLUMNS_AT_ONCE
            if n > N - COLUMNS_AT_ONCE:
                n = N - COLUMNS_AT_ONCE
            for m in range(0, M, rows_at_once):
                multiply(A + m // 16 * stride, stride, M - m, B + n * ldb, ldb, steps, D + m * ldd + n * 2, ldd, ahead)
        finish()

    return body
