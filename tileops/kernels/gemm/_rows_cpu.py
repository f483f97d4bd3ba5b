"""Device side of GEMM with few rows: B is streamed once, straight from where it lies.

`dot` reads B as rows of k (``[N, K]``); `panels` reads a packed weight. Both hold a few rows of A against a
few columns and are limited by the memory that B comes from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tileops.jit import lang
from tileops.jit.lang import pairs
from tileops.kernels.gemm import _forms

#: Rows of B are fetched ahead as a whole while those of a unit take no more than this, which the nearest cache can hold
#: besides; longer ones, which the hardware follows, a little before their use.
FAR_BYTES = 32 << 10
NEAR_BYTES = 1024


def dot(
    dtype: str, a_dtype: str, native_pairs: bool, MT: int, NT: int, unroll: int, prefetch: int
) -> Callable[..., None]:
    """Body: unit `u` is NT columns of the result, for all rows.

    Args:
        dtype: storage format of B and of the result.
        a_dtype: storage format of A: the same, or float32 where A was widened before.
        native_pairs: multiply bfloat16 pairs with one instruction.
        MT: rows of A at a time.
        NT: rows of B at a time.
        unroll: vectors of k side by side.
        prefetch: rows of the next unit that are fetched while rows of A pass: all of them if there is one
            pass over this unit (and then long rows are fetched a little ahead of their use instead), fewer if several
            passes share the work.
    """
    size, a_size = lang.itemsize(dtype), lang.itemsize(a_dtype)

    @lang.tile("a: i64, lda: i64, rows: i64, b: i64, ldb: i64, columns: i64, K: i64, d: i64, ldd: i64, ahead: i64")
    def multiply(
        t: Any, a: Any, lda: Any, rows: Any, b: Any, ldb: Any, columns: Any, K: Any, d: Any, ldd: Any, ahead: Any
    ) -> None:
        width = t.LANES * (2 if native_pairs else 1)
        # Rows beyond the matrix repeat its last one; their sums are not stored.
        lefts = [a + lda * t.min(rows - 1, i) for i in range(MT)]
        rights = [b + ldb * t.min(columns - 1, j) for j in range(NT)]

        def vector(of: str, addr: Any, left: Any) -> Any:
            if native_pairs:
                return pairs.load_pairs(addr, left)
            return t.load(of, addr, None if left is None else t.mask_lt(left))

        def add(k: Any, total: list[Any], left: Any = None) -> list[Any]:
            right = [vector(dtype, row + k * size, left) for row in rights]
            result = []
            for i in range(MT):
                x = vector(a_dtype, lefts[i] + k * a_size, left)
                for j in range(NT):
                    old = total[i * NT + j]
                    result.append(t.dot_bf16(old, x, right[j]) if native_pairs else t.fma(x, right[j], old))
            return result

        def steps(k: Any, total: list[Any]) -> list[Any]:
            for row in range(prefetch):
                for line in range(0, unroll * width * size, 64):
                    t.prefetch(ahead + ldb * row + k * size + line)
            count = MT * NT
            sums: list[Any] = []
            for part in range(unroll):
                sums += add(k + part * width, total[part * count : (part + 1) * count])
            return sums

        several = K // (width * unroll) * (width * unroll)
        whole = K // width * width
        count = MT * NT
        total = t.loop(0, several, width * unroll, [t.vconst(0.0)] * (count * unroll), steps)
        for part in range(1, unroll):
            total[:count] = [x + y for x, y in zip(total[:count], total[part * count :], strict=False)]
        total = t.loop(several, whole, width, total[:count], add)
        total = t.loop(whole, K, width, total, lambda k, sums: add(k, sums, K - k))
        mask = t.mask_lt(t.min(columns, NT))
        for i in range(MT):
            value = t.reduce_transpose(total[i * NT : (i + 1) * NT])
            t.when(rows > i, lambda i=i, value=value: t.store(dtype, d + ldd * i, value, mask))

    one_pass = prefetch == NT

    def body(begin, end, tid, A, lda, B, ldb, D, ldd, M, N, K):
        for u in range(begin, end):
            n = u * NT
            for m in range(0, M, MT):
                ahead = B + (n + NT + m // MT % NT) * ldb
                if one_pass and NT * ldb > FAR_BYTES:
                    ahead = B + n * ldb + NEAR_BYTES
                multiply(A + m * lda, lda, M - m, B + n * ldb, ldb, N - n, K, D + m * ldd + n * size, ldd, ahead)

    return body


def _alone(t: Any, addr: Any) -> Any:
    """The word of one bfloat16 and a zero, in every lane."""
    return pairs.join_bf16(t.load_splat("bf16", addr), t.vconst(0.0))


def panels(
    dtype: str, a_dtype: str, b_dtype: str, native_pairs: bool, MT: int, NV: int, unroll: int, ahead_bytes: int
) -> Callable[..., None]:
    """Body: unit `u` is one panel of a packed weight, for all rows of A.

    A thread's panels are cut into NV runs, over which it advances side by side: NV streams that stay in order from
    beginning to end are what the memory serves fastest, and the address a little ahead in a stream is always one that
    will be needed. Panels that are left over are taken together. Either way a column is summed in the same order.

    Rows of A are dense. For the other arguments see `dot`.

    Args:
        dtype: storage format of the result.
        b_dtype: of B: the same, or bfloat16 where the result is float32.
        NV: panels at a time.
        unroll: lines of each panel side by side.
        ahead_bytes: how far before its use each stream is fetched.
    """
    size, a_size = lang.itemsize(dtype), lang.itemsize(a_dtype)
    paired = _forms.raw_form(b_dtype) == "pairs"
    per_line = 2 if paired else 1
    width, line_bytes = _forms.COLUMNS, _forms.LINE

    @lang.tile(
        "a: i64, lda: i64, rows: i64, b: i64, stride: i64, apart: i64, panels: i64, columns: i64, K: i64, "
        "d: i64, ldd: i64"
    )
    def multiply(
        t: Any, a: Any, lda: Any, rows: Any, b: Any, stride: Any, apart: Any, panels: Any, columns: Any, K: Any,
        d: Any, ldd: Any,
    ) -> None:  # fmt: skip
        per_panel = width // t.LANES
        vectors = NV * per_panel
        count = MT * vectors
        lefts = [a + lda * t.min(rows - 1, i) for i in range(MT)]
        # Streams beyond the last panel repeat it; their sums are not stored.
        streams = [b + stride * (apart * t.min(panels - 1, j)) for j in range(NV)]

        def add(k: Any, total: list[Any], low_only: bool = False) -> list[Any]:
            right = [
                t.load_words(streams[j // per_panel] + k * line_bytes + (j % per_panel) * (t.LANES * 4))
                for j in range(vectors)
            ]
            if paired and not native_pairs:
                halves = [pairs.split_pairs(b_dtype, words) for words in right]
            result = []
            for i in range(MT):
                at = lefts[i] + k * (per_line * a_size)
                if not paired:
                    x = t.load_splat(a_dtype, at)
                    result += [t.fma(x, t.bitcast(right[j], "f32"), total[i * vectors + j]) for j in range(vectors)]
                elif native_pairs:
                    x = t.load_splat_word(at) if not low_only else _alone(t, at)
                    result += [t.dot_bf16(total[i * vectors + j], x, right[j]) for j in range(vectors)]
                elif low_only:
                    low = t.load_splat(a_dtype, at)
                    result += [t.fma(low, halves[j][0], total[i * vectors + j]) for j in range(vectors)]
                else:
                    low, high = t.load_splat(a_dtype, at), t.load_splat(a_dtype, at + a_size)
                    result += [
                        t.fma(high, halves[j][1], t.fma(low, halves[j][0], total[i * vectors + j]))
                        for j in range(vectors)
                    ]
            return result

        def several(k: Any, total: list[Any]) -> list[Any]:
            for stream in streams:
                for step in range(unroll):
                    t.prefetch(stream + (k + step) * line_bytes + ahead_bytes)
            sums: list[Any] = []
            for part in range(unroll):
                sums += add(k + part, total[part * count : (part + 1) * count])
            return sums

        steps = K // per_line
        most = steps // unroll * unroll
        total = t.loop(0, most, unroll, [t.vconst(0.0)] * (count * unroll), several)
        for part in range(1, unroll):
            total[:count] = [x + y for x, y in zip(total[:count], total[part * count :], strict=False)]
        total = t.loop(most, steps, 1, total[:count], add)
        if paired:
            # An odd last element has no neighbour to be read with it.
            total = t.loop(steps, steps + K % 2, 1, total, lambda k, sums: add(k, sums, low_only=True))
        masks, places = [], []
        for j in range(vectors):
            panel, start = j // per_panel, j % per_panel * t.LANES
            left = t.select_value(panels > panel, columns - apart * (panel * width), 0)
            masks.append(t.mask_lt(left, start=start))
            places.append(d + (apart * (panel * width) + start) * size)

        def write(i: int) -> None:
            for j in range(vectors):
                t.store(dtype, places[j] + ldd * i, total[i * vectors + j], masks[j])

        for i in range(MT):
            t.when(rows > i, lambda i=i: write(i))

    def body(begin, end, tid, A, lda, B, stride, D, ldd, M, N, K):
        run = (end - begin) // NV
        for u in range(begin, begin + run):
            for m in range(0, M, MT):
                multiply(
                    A + m * lda, lda, M - m, B + u * stride, stride, run, NV, N - u * width, K,
                    D + m * ldd + u * width * size, ldd,
                )  # fmt: skip
        u = begin + NV * run
        if u < end:
            for m in range(0, M, MT):
                multiply(
                    A + m * lda, lda, M - m, B + u * stride, stride, 1, end - u, N - u * width, K,
                    D + m * ldd + u * width * size, ldd,
                )  # fmt: skip

    return body
