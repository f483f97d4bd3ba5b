"""How a rotary embedding carries a model beyond the sequences that it was trained on.

Fast pairs, which turn many times within the original length, keep their frequency; slow ones are stretched so that the
longest sequence turns them no further than training did. The methods differ in where the one becomes the other, and in
whether the turned vectors are also made longer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Scaling:
    """What becomes of the frequencies ``g = base ** (-2 i / rotary_dim)`` of the pairs i, in radians per position::

        g * (floor + (1 - floor) * weight),   weight = clamp(by_frequency * g + by_pair * i + offset, 0, 1)

    Attributes:
        floor: factor of a frequency whose weight is 0.
        by_frequency, by_pair, offset: how the weight grows with frequency and number of a pair.
        amplitude: factor of cosines and sines.
    """

    floor: float = 1.0
    by_frequency: float = 0.0
    by_pair: float = 0.0
    offset: float = 0.0
    amplitude: float = 1.0


#: The frequencies as they are.
PLAIN = Scaling()


def llama31(
    scale_factor: float, low_freq_factor: float, high_freq_factor: float, original_max_position: int
) -> Scaling:
    """Llama 3.1: pairs that turn more than `high_freq_factor` times within the original length keep their frequency,
    those that turn less than `low_freq_factor` times are slowed down by `scale_factor`, linear between.
    """
    span = high_freq_factor - low_freq_factor
    return Scaling(
        floor=1.0 / scale_factor,
        by_frequency=original_max_position / (2.0 * math.pi * span),
        offset=-low_freq_factor / span,
    )


def yarn(
    rotary_dim: int,
    base: float,
    scale: float,
    original_max_position: int,
    beta_fast: float,
    beta_slow: float,
    attn_factor: float,
) -> Scaling:
    """YaRN (Peng et al., 2023): linear in the number of the pair between those that turn `beta_fast` and `beta_slow`
    times within the original length, both rounded outwards to whole pairs.
    """

    def pair_turning(times: float) -> float:
        return rotary_dim * math.log(original_max_position / (times * 2.0 * math.pi)) / (2.0 * math.log(base))

    low = max(math.floor(pair_turning(beta_fast)), 0)
    high: float = min(math.ceil(pair_turning(beta_slow)), rotary_dim - 1)
    if high == low:
        high += 0.001  # as the reference does: a step instead of a division by zero
    return Scaling(
        floor=1.0 / scale,
        by_pair=-1.0 / (high - low),
        offset=1.0 + low / (high - low),
        amplitude=attn_factor * (0.1 * math.log(scale) + 1.0 if scale > 1.0 else 1.0),
    )


def long_rope(scale: float, original_max_position: int) -> Scaling:
    """LongRoPE (Ding et al., 2024): the frequencies are divided by factors that come as a tensor; what remains is the
    length of the turned vectors.
    """
    longer = math.sqrt(1.0 + math.log(scale) / math.log(original_max_position)) if scale > 1.0 else 1.0
    return Scaling(amplitude=longer)
