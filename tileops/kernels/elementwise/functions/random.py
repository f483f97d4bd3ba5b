"""Random choices: functions that get the number of their element first."""

from __future__ import annotations

from typing import Any

from tileops.jit import lang


def dropout(number: Any, x: Any, limit: Any, scale: Any, seed_low: Any, seed_high: Any) -> Any:
    """Keeps an element whose random word, read as unsigned, is below ``limit + 2**31``.

    Word ``n % 4`` of the counter ``n // 4`` belongs to element n.
    """
    block = number >> 2
    words = lang.philox(lang.low_word(block), lang.low_word(block >> 32), seed_low, seed_high)
    place = lang.low_word(number) & 3
    lower = lang.select(place == 0, words[0], words[1])
    word = lang.select(place < 2, lower, lang.select(place == 2, words[2], words[3]))
    return lang.select((word ^ -0x80000000) < limit, x * scale, 0.0)


def undropped(number: Any, x: Any) -> Any:
    return x
