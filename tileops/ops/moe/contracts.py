"""How the rows of a grouped matrix product are laid out: the Python side of ``MGroupedLayout`` in `types.yaml`.

Rows of all experts lie in one tensor, either one expert after the other (`ContiguousLayoutSpec`) or each expert in a
block of its own with room for `max_m` rows (`MaskedLayoutSpec`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar


class ContiguousPacking(Enum):
    """Whether an expert's rows start right after the last expert's, or at a multiple of the alignment."""

    TIGHT = "tight"
    ALIGNED = "aligned"


class ContiguousMetadata(Enum):
    """What tells the experts' rows apart: the end of each expert's rows, or the expert of each row."""

    PHYSICAL_PSUM = "physical_psum"
    PER_ROW = "per_row"


@dataclass(frozen=True)
class ContiguousLayoutSpec:
    """Experts' rows one after the other in ``[rows, ...]``.

    Args:
        packing: whether experts start at multiples of `alignment`.
        metadata_kind: what the metadata tensor holds.
        alignment: rows; 1 exactly where `packing` is tight.

    Raises:
        ValueError: alignment and packing contradict each other.
    """

    packing: ContiguousPacking
    metadata_kind: ContiguousMetadata
    alignment: int = 1
    kind: ClassVar[str] = "contiguous"

    def __post_init__(self) -> None:
        if self.alignment < 1 or (self.packing is ContiguousPacking.TIGHT) != (self.alignment == 1):
            raise ValueError(f"{self.packing.value} packing does not go with an alignment of {self.alignment}")


@dataclass(frozen=True)
class MaskedLayoutSpec:
    """A block of `max_m` rows per expert in ``[experts, max_m, ...]``, of which some are used.

    Args:
        max_m: rows of a block.

    Raises:
        ValueError: `max_m` is negative.
    """

    max_m: int
    kind: ClassVar[str] = "masked"

    def __post_init__(self) -> None:
        if self.max_m < 0:
            raise ValueError(f"max_m must not be negative, got {self.max_m}")
