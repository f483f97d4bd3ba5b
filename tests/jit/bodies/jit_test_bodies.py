"""Kernel factories for the tests of `tileops.jit`; imported by the process that compiles them."""

from __future__ import annotations

import numba
import numpy as np

from tileops.jit import lang
from tileops.jit.lang.random import philox4x32


def maths(names):
    """Named functions of the vocabulary: ``x`` of `n` float32, ``outs`` of ``len(names)`` rows of `n`."""
    ldm, stm, lanes = lang.load_masked("f32"), lang.store_masked("f32"), lang.lanes()

    def store_all(out, n, i, mask, x):
        for row, name in enumerate(names):
            stm(out + (n * row + i) * 4, getattr(lang, name)(x), mask)

    block = lang.traced(store_all, 5)

    def body(begin, end, tid, x, outs, n):
        for i in range(begin, end, lanes):
            mask = lang.tail_mask(end - i)
            block(outs, n, i, mask, ldm(x + i * 4, mask))

    return body


def maths_of_two(names):
    """Words of two operands: ``x`` and ``y`` of `n` float32, ``outs`` of ``len(names)`` rows of `n`."""
    ldm, stm, lanes = lang.load_masked("f32"), lang.store_masked("f32"), lang.lanes()
    functions = {"softplus": lambda x, y: lang.softplus(x, y, 20.0)}

    def store_all(out, n, i, mask, x, y):
        for row, name in enumerate(names):
            stm(out + (n * row + i) * 4, functions.get(name, getattr(lang, name))(x, y), mask)

    block = lang.traced(store_all, 6)

    def body(begin, end, tid, x, y, outs, n):
        for i in range(begin, end, lanes):
            mask = lang.tail_mask(end - i)
            block(outs, n, i, mask, ldm(x + i * 4, mask), ldm(y + i * 4, mask))

    return body


def integers(element):
    """Words on integers and masks: two vectors of `element` side by side, results in rows of as many elements."""
    size = lang.itemsize(element)
    count = 4 * lang.lanes() // size

    @lang.tile("x: i64, y: i64, outs: i64, n: i64, i: i64")
    def tile(t, x, y, outs, n, i):
        a, b = (
            lang.Lockstep([t.load_integers(element, p + (i + u * count) * size, lanes=count) for u in range(2)])
            for p in (x, y)
        )
        assert not lang.is_float(a)
        assert not lang.is_mask(a)
        positive, even = a > 0, (b & 1) == 0
        assert lang.is_mask(positive)

        def as_integers(mask):
            return lang.select(mask, a * 0 + 1, a * 0)

        masks = [
            *(
                lang.select(positive, even, ~even),
                lang.select(positive, True, even),
                positive == even,
                positive != even,
            ),
            *(positive < even, positive >= even, positive + even, positive * even, lang.abs_(even), lang.sign(even)),
            *(lang.maximum(positive, even), lang.minimum(positive, even), lang.to_float(even) == 1.0),
            *(lang.select(positive, True, False), lang.to_float(a) < lang.to_float(b)),
        ]
        rows = [lang.abs_(a), lang.sign(a), lang.maximum(a, b), lang.minimum(a, b), lang.minimum(a, 3)]
        for row, value in enumerate([*rows, lang.select(even, a, b), *(as_integers(mask) for mask in masks)]):
            for u, member in enumerate(value.members):
                t.store_words(outs + (n * row + i + u * count) * size, member)

    def body(begin, end, tid, x, y, outs, n):
        for i in range(begin, end, 2 * count):
            tile(x, y, outs, n, i)

    return body


def arithmetic(rows):
    """Binary expressions of `EXPRESSIONS`, written in the body itself: Numba's operators on vectors."""
    ldm, stm, lanes = lang.load_masked("f32"), lang.store_masked("f32"), lang.lanes()

    def body(begin, end, tid, x, y, outs, n):
        for i in range(begin, end, lanes):
            mask = lang.tail_mask(end - i)
            a, b = ldm(x + i * 4, mask), ldm(y + i * 4, mask)
            p = outs + i * 4
            stm(p, a + b, mask)
            stm(p + 4 * n, a - b, mask)
            stm(p + 8 * n, a * b, mask)
            stm(p + 12 * n, a / b, mask)
            stm(p + 16 * n, -a * 2 + 0.5, mask)
            stm(p + 20 * n, lang.select((a < b) & ~(a == b), a, 3.0), mask)
            stm(p + 24 * n, lang.select((a >= 0.0) | (a != a), b, a), mask)
            stm(p + 28 * n, lang.maxq(a, b), mask)
            stm(p + 32 * n, lang.minq(a, b), mask)
            stm(p + 36 * n, lang.max_nan(a, b), mask)
            stm(p + 40 * n, lang.min_nan(a, b), mask)
            stm(p + 44 * n, lang.copysign(a, b), mask)
            stm(p + 48 * n, lang.abs_(a), mask)
            stm(p + 52 * n, lang.floor(a), mask)
            stm(p + 56 * n, lang.rint(a), mask)
            stm(p + 60 * n, lang.sqrt(a), mask)
            stm(p + 64 * n, lang.rsqrt_exact(a), mask)
            stm(p + 68 * n, lang.to_float(lang.as_int(a) >> 20), mask)
            stm(p + 72 * n, lang.as_float(lang.as_int(a) ^ (lang.as_int(b) & 1)), mask)
            c = a
            c += b
            c *= np.float32(0.25)
            stm(p + 76 * n, c, mask)

    return body


def convert(source, destination):
    """``y = x``, from one storage format to another, whole vectors and a masked tail."""
    ld, ldm = lang.load(source), lang.load_masked(source)
    st, stm = lang.store(destination), lang.store_masked(destination)
    from_size, to_size, lanes = lang.itemsize(source), lang.itemsize(destination), lang.lanes()

    def body(begin, end, tid, x, y):
        i = begin
        while i + lanes <= end:
            st(y + i * to_size, ld(x + i * from_size))
            i += lanes
        if i < end:
            mask = lang.tail_mask(end - i)
            stm(y + i * to_size, ldm(x + i * from_size, mask), mask)

    return body


def convert_scalars(source, destination):
    """``y = x``, element by element."""
    ld, st = lang.load_scalar(source), lang.store_scalar(destination)
    from_size, to_size = lang.itemsize(source), lang.itemsize(destination)

    def body(begin, end, tid, x, y):
        for i in range(begin, end):
            st(y + i * to_size, ld(x + i * from_size))

    return body


def across():
    """Reductions and splats of one vector per unit: ``x`` rows of LANES, ``y`` rows of 6."""
    ld, lds, st1 = lang.load("f32"), lang.load_splat("f32"), lang.store_scalar("f32")
    lanes = lang.lanes()

    def body(begin, end, tid, x, y):
        for i in range(begin, end):
            v = ld(x + i * lanes * 4)
            p = y + i * 24
            st1(p, lang.hsum(v))
            st1(p + 4, lang.hmax(v))
            st1(p + 8, lang.hmax_nan(v))
            st1(p + 12, lang.first(v))
            st1(p + 16, lang.hsum(lds(x + i * lanes * 4)))
            st1(p + 20, lang.hsum(lang.to_float(lang.iota())) if lang.any_true(v > 0.0) else np.float32(-1.0))

    return body


def masks():
    """`tail_mask(n)` of every row: ``n`` int64, ``y`` rows of LANES bytes."""
    stb, lanes = lang.store("b1"), lang.lanes()
    load_i64 = lang.load_i64

    def body(begin, end, tid, n, y):
        for i in range(begin, end):
            stb(y + i * lanes, lang.tail_mask(load_i64(n + 8 * i)))

    return body


def transposed():
    """LANES x LANES words transposed, and the sum of each row."""

    @lang.tile("x: i64, y: i64, sums: i64")
    def tile(t, x, y, sums):
        n = t.LANES
        rows = [t.load_words(x + 4 * n * i) for i in range(n)]
        for i, column in enumerate(t.transpose(rows)):
            t.store_words(y + 4 * n * i, column)
        t.store("f32", sums, t.reduce_transpose([t.bitcast(row, "f32") for row in rows]))

    def body(begin, end, tid, x, y, sums):
        for _ in range(begin, end):
            tile(x, y, sums)

    return body


def matmul(rows, vectors, dtype):
    """``C = A B`` for K units of 4 bytes (a float32, or two bfloat16); blocks of columns are the units."""
    lanes = lang.lanes()
    width = lanes * vectors

    @lang.tile("K: i64, a: i64, lda: i64, b: i64, c: i64, ldc: i64, n: i64")
    def micro(t, K, a, lda, b, c, ldc, n):
        def step(k, acc):
            panel = [t.load_words(b + (k * width + lanes * j) * 4) for j in range(vectors)]
            out = []
            for i in range(rows):
                word = t.load_splat_word(a + lda * i + k * 4)
                for j in range(vectors):
                    old = acc[i * vectors + j]
                    if dtype == "bf16":
                        out.append(t.dot_bf16(old, word, panel[j]))
                    else:
                        out.append(t.fma(t.bitcast(word, "f32"), t.bitcast(panel[j], "f32"), old))
            return out

        sums = t.loop(0, K, 1, [t.vconst(0.0)] * (rows * vectors), step)

        def whole():
            for i in range(rows):
                for j in range(vectors):
                    t.store("f32", c + ldc * i + 4 * lanes * j, sums[i * vectors + j])

        def masked():
            for i in range(rows):
                for j in range(vectors):
                    mask = t.mask_lt(n, start=lanes * j)
                    t.store("f32", c + ldc * i + 4 * lanes * j, sums[i * vectors + j], mask)

        t.when(n >= width, whole, masked)

    def body(begin, end, tid, K, N, a, lda, b, c, ldc):
        for block in range(begin, end):
            micro(K, a, lda, b + block * K * width * 4, c + block * width * 4, ldc, N - block * width)

    return body


def control():
    """Scalar arithmetic and control flow of a tile: ``y[i] = collatz-like value`` of ``x[i]``, int64."""

    @lang.tile("x: i64", returns="i64", inline=True)
    def value(t, x):
        quotient, remainder = x // 3, x % 3
        (low,) = t.when(remainder == 0, lambda: [quotient * 2], lambda: [x + 1])
        small = t.min(t.max(low, -5), 40)
        (total,) = t.loop(2, x, 3, [t.const(0)], lambda i, carried: [carried[0] + i])
        return small * 1000 + t.select_value(total > 20, total, t.const(-1))

    def body(begin, end, tid, x, y):
        for i in range(begin, end):
            lang.store_i64(y + 8 * i, value(lang.load_i64(x + 8 * i)))

    return body


def silu_and_mul(dtype, unroll):
    """The elementwise example of the guide, with a scale."""
    block, masked = lang.elementwise_block(lambda x, y, scale: lang.silu(x) * y * scale, [dtype, dtype], dtype, unroll)
    step, lanes = unroll * lang.lanes(), lang.lanes()

    def body(begin, end, tid, scale, x, y, out):
        i = begin
        while i + step <= end:
            block((x, y), out, i, scale)
            i += step
        while i < end:
            masked((x, y), out, i, end, scale)
            i += lanes

    return body


def record(grain=1):
    """Every unit writes its thread, and the bounds of the chunk that it was in."""

    def body(begin, end, tid, out, integer, single, double):
        for i in range(begin, end):
            lang.store_i64(out + 48 * i, tid)
            lang.store_i64(out + 48 * i + 8, begin)
            lang.store_i64(out + 48 * i + 16, end)
            lang.store_i64(out + 48 * i + 24, integer)
            lang.store_i64(out + 48 * i + 32, int(single * np.float32(4.0)))
            lang.store_i64(out + 48 * i + 40, int(double * 4.0))

    return body


def row_sums(dtype):
    """The row example of the guide."""
    ld, ldm, st1 = lang.load(dtype), lang.load_masked(dtype), lang.store_scalar("f32")
    size, lanes = lang.itemsize(dtype), lang.lanes()

    def body(begin, end, tid, x, out, n):
        for row in range(begin, end):
            p = x + row * n * size
            acc = lang.zeros()
            i = 0
            while i + lanes <= n:
                acc += ld(p + i * size)
                i += lanes
            if i < n:
                acc += ldm(p + i * size, lang.tail_mask(n - i))
            st1(out + row * 4, lang.hsum(acc))

    return body


def numbered(number):
    """A kernel of its own for every `number`."""

    def body(begin, end, tid, out):
        for i in range(begin, end):
            lang.store_i64(out + 8 * i, number)

    return body


def filled(nbytes):
    """A loop that LLVM turns into a call of memset."""

    def body(begin, end, tid, out):
        for i in range(begin, end):
            for j in range(nbytes):
                lang.store_i64(out + 8 * (i * nbytes + j), 0)

    return body


def wrong_type():
    """Does not compile."""

    def body(begin, end, tid, out):
        lang.store_i64(out, "text")

    return body


def raising():
    """Raises for units above 5."""

    def body(begin, end, tid, out):
        for i in range(begin, end):
            lang.store_i64(out + 8 * i, i)
            if i > 5:
                raise ValueError("no")

    return body


def random():
    """Philox of six rows of `n` int32 words (counter, then key): four rows."""

    @lang.tile("words: i64, outs: i64, row: i64")
    def tile(t, words, outs, row):
        rows = [lang.Lockstep([t.load_integers("i32", words + row * k)]) for k in range(6)]
        for k, (value,) in enumerate(value.members for value in philox4x32(rows[:4], rows[4:])):
            t.store_words(outs + row * k, value)

    def body(begin, end, tid, words, outs, n):
        for i in range(begin, end, lang.LANES):
            tile(words + i * 4, outs + i * 4, n * 4)

    return body


def printing():
    """Calls into Python."""

    def body(begin, end, tid):
        print(begin)

    return body


def helped():
    """Calls a function under `njit`, which uses the vocabulary too."""

    @numba.njit
    def twice(v):
        return v + v

    ld, st = lang.load("f32"), lang.store("f32")

    def body(begin, end, tid, x, y):
        for i in range(begin, end):
            st(y + i * 64, twice(ld(x + i * 64)))

    return body


def branching():
    """A traced function that branches on a value."""
    word = lang.traced(lambda x: x if x > 0 else -x, 1)
    ld, st = lang.load("f32"), lang.store("f32")

    def body(begin, end, tid, out):
        st(out, word(ld(out)))

    return body
