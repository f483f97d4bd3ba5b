"""Bodies that do nothing but reach a limit of the machine: streaming memory, and multiply-adds in
registers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tileops.jit import lang

#: Accumulators: enough to hide the latency of a multiply-add on every x86 core.
CHAINS = 12
#: Multiply-adds of every accumulator in one unit.
STEPS = 4096


def stream() -> Callable[..., None]:
    """One unit reads `read` bytes and writes `written` bytes, both multiples of 64, each in one linear
    stream.
    """

    @lang.tile("source:i64, read:i64, target:i64, written:i64")
    def block(t: Any, source: Any, read: Any, target: Any, written: Any) -> None:
        step = 4 * t.LANES  # bytes of a vector

        def add(i: Any, sums: list[Any]) -> list[Any]:
            return [total + t.load("f32", source + i + k * step) for k, total in enumerate(sums)]

        chains = 64 // step
        sums = t.loop(0, read, chains * step, [t.vconst(0.0)] * chains, add)
        while len(sums) > 1:
            sums = [left + right for left, right in zip(sums[::2], sums[1::2], strict=True)]
        t.loop(0, written, step, body=lambda i, _: t.store("f32", target + i, sums[0]))
        # A read that nothing depends on would be removed.
        t.when(lang.hsum(sums[0]) == 1.25e-21, lambda: t.store_scalar("f32", source, lang.hsum(sums[0])))

    def body(begin, end, tid, source, read, target, written):
        for unit in range(begin, end):
            block(source + unit * read, read, target + unit * written, written)

    return body


def multiply_add(*, dtype: str) -> Callable[..., None]:
    """One unit is CHAINS x STEPS vector multiply-adds: float32, or pairs of bfloat16 (``dot_bf16``)."""

    @lang.tile("seed:f32", returns="f32")
    def chains(t: Any, seed: Any) -> Any:
        start = t.splat(seed)
        words = lang.as_int(start)

        def step(_: Any, sums: list[Any]) -> list[Any]:
            if dtype == "bf16":
                return [t.dot_bf16(total, words, words) for total in sums]
            return [lang.fma(total, start, start) for total in sums]

        sums = t.loop(0, STEPS, 1, [start + float(k) for k in range(CHAINS)], step)
        total = sums[0]
        for other in sums[1:]:
            total = total + other
        return lang.hsum(total)

    store = lang.store_scalar("f32")

    def body(begin, end, tid, seed, out):
        for unit in range(begin, end):
            store(out + unit * 4, chains(seed))

    return body


def matrix_multiply_add() -> Callable[..., None]:
    """One unit is STEPS times four products of AMX tiles of bfloat16, 16 x 32 by 32 x 16 each."""

    @lang.tile("data:i64, out:i64")
    def products(t: Any, data: Any, out: Any) -> None:
        t.amx_config()
        for tile in range(4, 8):
            t.amx_load(tile, data, 64)

        def step(_: Any, carried: list[Any]) -> None:
            for accumulator in range(4):
                t.amx_dot_bf16(accumulator, 4 + accumulator // 2, 6 + accumulator % 2)

        t.loop(0, STEPS, body=step)
        for accumulator in range(4):
            t.amx_store(accumulator, out + accumulator * 1024, 64)
        t.amx_release()

    def body(begin, end, tid, data, out):
        for unit in range(begin, end):
            products(data, out + unit * 4096)

    return body
