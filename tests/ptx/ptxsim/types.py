"""PTX types as NumPy types, and the errors of the interpreter."""

from __future__ import annotations

import ml_dtypes
import numpy as np

#: PTX type -> NumPy type. Bit types are unsigned; f16 and bf16 registers hold their bits in b16.
PTX_TYPES: dict[str, np.dtype] = {
    name: np.dtype(kind)
    for name, kind in {
        "pred": np.bool_,
        "b8": np.uint8, "u8": np.uint8, "s8": np.int8,
        "b16": np.uint16, "u16": np.uint16, "s16": np.int16,
        "b32": np.uint32, "u32": np.uint32, "s32": np.int32,
        "b64": np.uint64, "u64": np.uint64, "s64": np.int64,
        "f16": np.float16, "bf16": ml_dtypes.bfloat16,
        "f32": np.float32, "f64": np.float64,
    }.items()
}  # fmt: skip

UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


class PtxError(Exception):
    """The program cannot be parsed or holds an instruction that is not modelled."""


class SimError(PtxError):
    """The program did something wrong while it ran; the message names instruction, block and thread."""


def bits_of(kind: str) -> int:
    """Bits of a PTX type."""
    return PTX_TYPES[kind].itemsize * 8


def is_float(kind: str) -> bool:
    """True for f16, bf16, f32, f64."""
    return kind in ("f16", "bf16", "f32", "f64")
