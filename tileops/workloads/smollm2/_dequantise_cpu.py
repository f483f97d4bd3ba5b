"""Device side of reading quantised weights: blocks of 32 elements to rows of a storage format.

Dequantising with PyTorch passes float32 intermediates through memory several times; this reads a block and writes its
elements. Values are computed in float32 with PyTorch's roundings, and rounded once to the storage format.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tileops.jit import lang

#: Bytes of a block by storage type.
BLOCK_BYTES = {"q4_1": 20, "q8_0": 34}


def rows(kind: str, dtype: str) -> Callable[..., None]:
    """Body: unit `u` is row `u` of the file, `blocks` long.

    Args:
        kind: ``"q4_1"``: float16 scale d, float16 minimum m, 16 bytes whose low, then high nibbles are q, w = d q + m;
            ``"q8_0"``: float16 scale d, 32 signed bytes q, w = d q.
        dtype: storage format of the result.

    Rows come in groups of `group`, in which the even ones go to the first half and the odd ones to the second: the
    pairs of rotary embeddings (2i, 2i + 1) of the file become pairs (i, i + group / 2). A group of 1 moves nothing.
    """
    size = lang.itemsize(dtype)
    block_bytes = BLOCK_BYTES[kind]

    @lang.tile("source: i64, target: i64, blocks: i64")
    def row(t: Any, source: Any, target: Any, blocks: Any) -> None:
        lanes = t.LANES
        shifts = t.iconst([8 * (lane % 4) for lane in range(lanes)])

        def bytes_from(address: Any) -> list[Any]:
            """The 16 bytes at `address`, each at the bottom of a lane, with its neighbours above it."""
            words = t.load_words(address, lanes=4)
            return [
                t.shuffle(words, words, [(first + lane) // 4 for lane in range(lanes)]) >> shifts
                for first in range(0, 16, lanes)
            ]

        def block(i: Any, _: Any) -> None:
            at, to = source + i * block_bytes, target + i * (32 * size)
            scale = t.load_splat("f16", at)
            if kind == "q4_1":
                least, packed = t.load_splat("f16", at + 2), bytes_from(at + 4)
                quants = [lang.to_float(part & 15) for part in packed]
                quants += [lang.to_float((part >> 4) & 15) for part in packed]
                values = [scale * q + least for q in quants]
            else:
                # Adding 128 by flipping the highest bit makes signed bytes unsigned.
                parts = bytes_from(at + 2) + bytes_from(at + 18)
                values = [scale * (lang.to_float((part ^ 128) & 255) - 128.0) for part in parts]
            t.store_group(dtype, [to + j * (lanes * size) for j in range(len(values))], values)

        t.loop(0, blocks, 1, (), block)

    def body(begin, end, tid, source, target, blocks, group):
        half = (group + 1) // 2
        for u in range(begin, end):
            within = u % group
            place = u - within + within // 2 + within % 2 * half
            row(source + u * blocks * block_bytes, target + place * blocks * 32 * size, blocks)

    return body
