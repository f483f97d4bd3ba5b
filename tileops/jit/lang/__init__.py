"""The vocabulary of kernels: explicit vectors, memory formats, maths and tiles, for bodies written in Numba.

A vector has `lanes()` float32 lanes: 16 with AVX-512, 8 with AVX2, 4 otherwise. The number belongs to the
target of the compile, so read it (or ``lang.LANES``) *inside* the factory, never when a module is imported.
Operators broadcast scalars and stay float32; comparisons give masks; tails are masked loads and stores.
Addresses are int64. Nothing here depends on the vectoriser or on fast-math, so NaN rules are exact and
results do not depend on the number of threads.

**Rows.** A factory returns ``body(begin, end, tid, *args)``; loads and stores are made in the factory by
format::

    def row_sums(dtype):
        ld, ldm, st1 = lang.load(dtype), lang.load_masked(dtype), lang.store_scalar(dtype)
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
                st1(out + row * size, lang.hsum(acc))

        return body

Scalars of a body follow Numba's rules: write ``np.float32(0.5)``, for ``0.5 * s`` is float64. On vectors
plain numbers are fine.

**Elementwise.** The function of one element runs once on tracer values. `elementwise_block` interleaves
several vectors operation by operation, which hides latency::

    def silu_and_mul(dtype, unroll):
        block, masked = lang.elementwise_block(lambda x, y: lang.silu(x) * y, [dtype, dtype], dtype, unroll)
        step, lanes = unroll * lang.lanes(), lang.lanes()

        def body(begin, end, tid, x, y, out):
            i = begin
            while i + step <= end:
                block((x, y), out, i)
                i += step
            while i < end:
                masked((x, y), out, i, end)
                i += lanes

        return body

**Tiles.** Register blocks are written by Python loops over a `TileBuilder`, not unrolled by hand. Python
values known in the factory are constants::

    def dot_rows(rows):
        @lang.tile("K: i64, a: i64, lda: i64, b: i64, out: i64")
        def tile(t, K, a, lda, b, out):
            def step(k, acc):
                y = t.load("f32", b + k * 4)
                return [t.fma(t.load("f32", a + lda * r + k * 4), y, acc[r]) for r in range(rows)]

            sums = t.loop(0, K, t.LANES, [t.vconst(0.0)] * rows, step)      # K: a multiple of LANES
            for r in range(rows):
                t.store_scalar("f32", out + 4 * r, lang.hsum(sums[r]))

        def body(begin, end, tid, K, a, lda, b, out):
            for block in range(begin, end):
                tile(K, a + block * rows * lda, lda, b, out + block * rows * 4)

        return body

Words work on tracer values and in Numba bodies alike. `traced(function, n)` makes a new word out of a Python
function.
"""

from __future__ import annotations

from typing import Any

from tileops.jit.lang.angles import cos, sin
from tileops.jit.lang.arith import (
    abs_,
    any_true,
    as_float,
    as_int,
    ceil,
    copysign,
    first,
    floor,
    fma,
    fma_exact,
    iota,
    isplat,
    ldexp,
    max_nan,
    maximum,
    maxq,
    min_nan,
    minimum,
    minq,
    reciprocal_lp,
    rint,
    rsqrt_exact,
    select,
    shift_right_logical,
    sign,
    splat,
    sqrt,
    tail_mask,
    to_float,
    to_int,
    trunc,
    zeros,
)
from tileops.jit.lang.context import compiling_for, lanes, target
from tileops.jit.lang.crosslane import (
    group_reduce,
    hmax,
    hmax_nan,
    hmin,
    hsum,
    reduce16,
    reduce_transpose,
    shuffle,
    transpose,
)
from tileops.jit.lang.maths import (
    elu,
    erf,
    exp,
    exp2,
    exp2_fast,
    exp2_lp,
    exp_fast,
    exp_half,
    exp_lp,
    expm1,
    floor_divide,
    gelu,
    gelu_lp,
    gelu_tanh,
    gelu_tanh_bf16,
    gelu_tanh_lp,
    hardsigmoid,
    hardswish,
    log,
    log1p,
    low_precision,
    mish,
    mish_bf16,
    mish_lp,
    polynomial,
    power,
    power_lp,
    quotient_f16,
    reciprocal,
    remainder,
    round_decimals,
    rsqrt,
    selu,
    sigmoid,
    sigmoid_bf16,
    sigmoid_lp,
    silu,
    silu_bf16,
    silu_lp,
    softplus,
    tanh,
    tanh_lp,
)
from tileops.jit.lang.memory import (
    alloca_words,
    gather_words,
    itemsize,
    load,
    load_f64,
    load_i32,
    load_i64,
    load_masked,
    load_scalar,
    load_splat,
    load_words,
    load_words_masked,
    prefetch,
    store,
    store_fence,
    store_i32,
    store_i64,
    store_masked,
    store_scalar,
    store_words,
    store_words_masked,
)
from tileops.jit.lang.random import low_word, philox
from tileops.jit.lang.tile import TileBuilder, tile
from tileops.jit.lang.tracing import elementwise_block, traced
from tileops.jit.lang.values import Lockstep, Value, is_float, is_mask
from tileops.jit.lang.words import Word, composite, word


def __getattr__(name: str) -> Any:
    if name == "LANES":
        return lanes()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "LANES",
    "Lockstep",
    "TileBuilder",
    "Value",
    "Word",
    "abs_",
    "alloca_words",
    "any_true",
    "as_float",
    "as_int",
    "ceil",
    "compiling_for",
    "composite",
    "copysign",
    "cos",
    "elementwise_block",
    "elu",
    "erf",
    "exp",
    "exp2",
    "exp2_fast",
    "exp2_lp",
    "exp_fast",
    "exp_half",
    "exp_lp",
    "expm1",
    "first",
    "floor",
    "floor_divide",
    "fma",
    "fma_exact",
    "gather_words",
    "gelu",
    "gelu_lp",
    "gelu_tanh",
    "gelu_tanh_bf16",
    "gelu_tanh_lp",
    "group_reduce",
    "hardsigmoid",
    "hardswish",
    "hmax",
    "hmax_nan",
    "hmin",
    "hsum",
    "iota",
    "is_float",
    "is_mask",
    "isplat",
    "itemsize",
    "lanes",
    "ldexp",
    "load",
    "load_f64",
    "load_i32",
    "load_i64",
    "load_masked",
    "load_scalar",
    "load_splat",
    "load_words",
    "load_words_masked",
    "log",
    "log1p",
    "low_precision",
    "low_word",
    "max_nan",
    "maximum",
    "maxq",
    "min_nan",
    "minimum",
    "minq",
    "mish",
    "mish_bf16",
    "mish_lp",
    "philox",
    "polynomial",
    "power",
    "power_lp",
    "prefetch",
    "quotient_f16",
    "reciprocal",
    "reciprocal_lp",
    "reduce16",
    "reduce_transpose",
    "remainder",
    "rint",
    "round_decimals",
    "rsqrt",
    "rsqrt_exact",
    "select",
    "selu",
    "shift_right_logical",
    "shuffle",
    "sigmoid",
    "sigmoid_bf16",
    "sigmoid_lp",
    "sign",
    "silu",
    "silu_bf16",
    "silu_lp",
    "sin",
    "softplus",
    "splat",
    "sqrt",
    "store",
    "store_fence",
    "store_i32",
    "store_i64",
    "store_masked",
    "store_scalar",
    "store_words",
    "store_words_masked",
    "tail_mask",
    "tanh",
    "tanh_lp",
    "target",
    "tile",
    "to_float",
    "to_int",
    "traced",
    "transpose",
    "trunc",
    "word",
    "zeros",
]  # fmt: skip
