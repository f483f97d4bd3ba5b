"""AMX tiles: eight matrix registers of 16 rows of 64 bytes, and products of bfloat16 pairs into float32.

Tiles call these as ``t.amx_config()``, ``t.amx_load(4, addr, stride)`` and so on; tiles of the machine are
named by constants 0 to 7. A thread configures the registers once, uses them, and releases them before the
body ends, so that later context switches need not save them. Only for targets with ``has_amx``.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from tileops.jit.lang import context
from tileops.jit.lang.emitter import I8, VOID
from tileops.jit.lang.values import Value, i64

TILES = 8
ROWS = 16
ROW_BYTES = 64
TILE_BYTES = ROWS * ROW_BYTES


def _call(name: str, *args: ir.Value) -> None:
    context.emitter().call(f"llvm.x86.{name}", VOID, args)


def _tile(index: int) -> ir.Constant:
    if not 0 <= index < TILES:
        raise ValueError(f"tile {index}: AMX has tiles 0 to {TILES - 1}")
    return I8(index)


def _address(addr: Value) -> ir.Value:
    return context.emitter().address(i64(addr).ir)


def config(t: Any) -> None:
    """Makes all eight registers full tiles (palette 1), and clears them."""
    place = t.alloca(64)
    columns = 0x0001_0001_0001_0001 * ROW_BYTES
    rows = 0x0101_0101_0101_0101 * ROWS
    # Palette and start row; 16-bit row lengths of tiles 0-7 from byte 16 on; 8-bit row counts from byte 48
    # on.
    for byte, word in {0: 1, 8: 0, 16: columns, 24: columns, 32: 0, 40: 0, 48: rows, 56: 0}.items():
        t.store_i64(place + byte, t.const(word))
    _call("ldtilecfg", _address(place))


def release(t: Any) -> None:
    """Returns the registers to their initial state."""
    _call("tilerelease")


def zero(t: Any, index: int) -> None:
    """Clears a tile."""
    _call("tilezero", _tile(index))


def load(t: Any, index: int, addr: Value, stride: Value | int, *, stream: bool = False) -> None:
    """Loads 16 rows of 64 bytes, `stride` bytes apart.

    Args:
        t: the tile builder.
        index: the register.
        addr: first row.
        stride: bytes from row to row.
        stream: hints that the data are read once: they should not displace others in the first-level cache.
    """
    _call("tileloaddt164" if stream else "tileloadd64", _tile(index), _address(addr), i64(stride).ir)


def store(t: Any, index: int, addr: Value, stride: Value | int) -> None:
    """Stores 16 rows of 64 bytes, `stride` bytes apart."""
    _call("tilestored64", _tile(index), _address(addr), i64(stride).ir)


def dot_bf16(t: Any, accumulator: int, left: int, right: int) -> None:
    """``accumulator += left @ right``.

    ``left`` holds 16 rows of 32 bfloat16; ``right`` holds 16 rows (pairs of k) of 16 columns of two bfloat16;
    the accumulator 16 rows of 16 float32. Subnormal inputs count as zero and subnormal sums become zero.
    """
    _call("tdpbf16ps", _tile(accumulator), _tile(left), _tile(right))


__all__ = ["ROWS", "ROW_BYTES", "TILES", "TILE_BYTES", "config", "dot_bf16", "load", "release", "store", "zero"]
