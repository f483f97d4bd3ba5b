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
    return _kept(word, x, limit, scale)


def dropout_in_fours(counter: Any, x: Any, limit: Any, scale: Any, seed_low: Any, seed_high: Any) -> Any:
    words = lang.philox(lang.low_word(counter), lang.low_word(counter >> 32), seed_low, seed_high)
    return _kept(lang.Lockstep(_in_order(*words)), x, limit, scale)


def _kept(word: Any, x: Any, limit: Any, scale: Any) -> Any:
    return lang.select((word ^ -0x80000000) < limit, x * scale, 0.0)


def _in_order(*words: Any) -> list[Any]:
    """First the four words of the first lane, then those of the second: in four vectors."""
    lanes = words[0].kind.lanes
    half = lanes // 2
    pairs = [
        [lang.shuffle(x, y, [at + k // 2 + lanes * (k % 2) for k in range(lanes)]) for x, y in (words[:2], words[2:])]
        for at in (0, half)
    ]
    fours = [2 * (k // 4) + k % 2 + lanes * (k // 2 % 2) for k in range(lanes)]
    return [lang.shuffle(x, y, [at + lane for lane in fours]) for x, y in pairs for at in (0, half)]


def undropped(number: Any, x: Any) -> Any:
    return x
