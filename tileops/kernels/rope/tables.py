"""Tables of cosines and sines for rotary position embeddings, shared by all kernels of a process.

Angles are computed in float64, so that a position of a million is as exact as position one, and stored in
float32. A table covers the positions met so far and grows by doubling.
"""

from __future__ import annotations

import functools
import threading
from typing import NamedTuple

import torch

#: Positions of a new table that is not asked for more.
FIRST_LENGTH = 1024


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
    """

    def __init__(self, rotary_dim: int, base: float) -> None:
        pair = torch.arange(rotary_dim // 2, dtype=torch.float64, device="cpu")
        self._frequencies = base ** (-2.0 * pair / max(rotary_dim, 1))
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

    def _compute(self, start: int, stop: int) -> torch.Tensor:
        with torch.inference_mode(False), torch.no_grad():
            angles = torch.arange(start, stop, dtype=torch.float64, device="cpu")[:, None] * self._frequencies
            return torch.cat((angles.cos(), angles.sin()), dim=1).float()

    @staticmethod
    def _state(tensor: torch.Tensor) -> Rows:
        return Rows(tensor, tensor.data_ptr(), tensor.shape[0])


@functools.lru_cache(maxsize=64)
def rotary_table(rotary_dim: int, base: float) -> RotaryTable:
    """The table of these frequencies; one per process."""
    return RotaryTable(rotary_dim, base)
