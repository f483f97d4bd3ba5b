"""Kernel factories for the tests of `tileops.jit`; imported when they are compiled, in this or another process."""

from __future__ import annotations

import numpy as np

from tileops.jit import lang


def maths(names, dtype="f32"):
    """Every named function of the vocabulary on the same inputs: ``x, outs`` of `len(names)` rows of `n`."""
    ld, ldm, stm = lang.load("f32"), lang.load_masked("f32"), lang.store_masked(dtype)
    size, lanes = lang.itemsize(dtype), lang.lanes()

    def all_of(x):
        return tuple(getattr(lang, name)(x) for name in names)

    def store_all(out, n, i, mask, x):
        for row, y in enumerate(all_of(x)):
            stm(out + (n * row + i) * size, y, mask)

    word = lang.traced(store_all, 5)

    def body(begin, end, tid, x, out, n):
        for i in range(begin, end, lanes):
            mask = lang.tail_mask(end - i)
            word(out, n, i, mask, ldm(x + i * 4, mask))

    return body
