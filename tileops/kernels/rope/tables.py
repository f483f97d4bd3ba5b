"""Tables of cosines and sines for rotary position embeddings, shared by all kernels of a process.

Angles are computed in float64, so that a position of a million is as exact as position one, and stored in
float32. A table covers the positions met so far and grows by doubling. Calls with positions so far out that it would
take too much memory get rows of their own.
"""

from __future__ import annotations

import functools
import threading
from typing import NamedTuple

import torch

from tileops.kernels.rope.scaling import PLAIN, Scaling

#: Positions of a new table that is not asked for more.
FIRST_LENGTH = 1024
#: Bytes that a table grows to for the sake of single positions. Attention to keys before a position that needs more
#: takes so long that computing its angles again in every layer does not show.
LARGEST = 64 << 20
#: Rows of a table that are computed at a time, to bound the float64 temporaries.
_TOGETHER = 4096


class Rows(NamedTuple):
    """One state of a table. `tensor` owns the memory: hold it while `address` is in use.

    Attributes:
        tensor: float32 ``[length, width]``, one row per position.
        address: of its first element.
        length: positions covered.
    """

    tensor: torch.Tensor
    address: int
    length: int


class RotaryTable:
    """Cosines and sines of ``position * base ** (-2 i / rotary_dim)`` for all pairs i of a row.

    A row is ``[cos_0 .. cos_h-1, sin_0 .. sin_h-1]``, h = rotary_dim / 2, whatever the layout of the pairs.

    Safe in several threads: a caller works with the `Rows` that it got, whatever is added meanwhile.

    Args:
        rotary_dim: elements of a row.
        base: base of the frequencies.
        scaling: what becomes of the frequencies, and of cosines and sines.
        factors: the frequency of pair i is also divided by factor i; None for ones.
    """

    def __init__(
        self, rotary_dim: int, base: float, scaling: Scaling = PLAIN, factors: tuple[float, ...] | None = None
    ) -> None:
        pair = torch.arange(rotary_dim // 2, dtype=torch.float64, device="cpu")
        plain = base ** (-2.0 * pair / max(rotary_dim, 1))
        weight = scaling.by_frequency * plain + scaling.by_pair * pair + scaling.offset
        frequencies = plain * (scaling.floor + (1.0 - scaling.floor) * weight.clamp(0.0, 1.0))
        if factors is not None:
            frequencies /= torch.tensor(factors, dtype=torch.float64, device="cpu")
        self._frequencies = frequencies
        self._amplitude = scaling.amplitude
        self._width = rotary_dim
        self._lock = threading.Lock()
        self.rows = self._state(self._compute(0, FIRST_LENGTH))

    def at_least(self, length: int) -> Rows:
        """The table with positions 0 .. `length` - 1 covered."""
        rows = self.rows
        if rows.length >= length:
            return rows
        with self._lock:
            rows = self.rows
            if rows.length < length:
                covered = rows.length
                while covered < length:
                    covered *= 2
                self.rows = self._state(torch.cat((rows.tensor, self._compute(rows.length, covered))))
            return self.rows

    def holds(self, length: int) -> bool:
        """Whether positions 0 .. `length` - 1 fit into a table of a sensible size."""
        return length <= max(self.rows.length, LARGEST // max(1, 4 * self._width))

    def rows_of(self, positions: torch.Tensor) -> Rows:
        """A row for each of these positions, computed now.

        Args:
            positions: ``[N]``, integers.
        """
        with torch.inference_mode(False), torch.no_grad():
            rows = torch.empty((len(positions), self._width), dtype=torch.float32, device="cpu")
            for some, out in zip(positions.split(_TOGETHER), rows.split(_TOGETHER), strict=True):
                angles = some.double()[:, None] * self._frequencies
                out.copy_(torch.cat((angles.cos(), angles.sin()), dim=1) * self._amplitude)
            return self._state(rows)

    def _compute(self, start: int, stop: int) -> torch.Tensor:
        return self.rows_of(torch.arange(start, stop, device="cpu")).tensor

    @staticmethod
    def _state(tensor: torch.Tensor) -> Rows:
        return Rows(tensor, tensor.data_ptr(), tensor.shape[0])


@functools.lru_cache(maxsize=64)
def rotary_table(
    rotary_dim: int, base: float, scaling: Scaling = PLAIN, factors: tuple[float, ...] | None = None
) -> RotaryTable:
    """The table of these frequencies; one per process."""
    return RotaryTable(rotary_dim, base, scaling, factors)
