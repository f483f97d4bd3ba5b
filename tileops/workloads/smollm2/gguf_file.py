"""Reading a GGUF file: metadata, tensor table, and dequantisation with torch.

The value types and block layouts come from the ``gguf`` package. Its ``GGUFReader`` builds a NumPy array for
each of the 98,000 strings of a tokenizer, which takes two seconds; parsing the same bytes with ``struct``
takes 50 ms.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch
from gguf.constants import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGUF_MAGIC,
    GGMLQuantizationType,
    GGUFValueType,
)

_SCALARS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}
_BLOCK = 32  # elements of a Q4_1 or Q8_0 block


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies in the file.

    Attributes:
        shape: shape in PyTorch's order, that is ``[out_features, in_features]`` for a matrix.
        kind: storage type.
        offset: first byte, from the start of the file.
    """

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count


class _Cursor:
    """A position in the mapped file."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.offset = 0

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self.data, self.offset)
        self.offset += struct.calcsize(code)
        return value

    def scalars(self, code: str, count: int) -> list[Any]:
        layout = f"<{count}{code}"
        values = list(struct.unpack_from(layout, self.data, self.offset))
        self.offset += struct.calcsize(layout)
        return values

    def string(self) -> str:
        length = self.scalar("Q")
        start, self.offset = self.offset, self.offset + length
        return str(self.data[start : self.offset], "utf-8")

    def value(self, kind: GGUFValueType) -> Any:
        if kind == GGUFValueType.STRING:
            return self.string()
        if kind == GGUFValueType.ARRAY:
            item, count = GGUFValueType(self.scalar("I")), self.scalar("Q")
            if item in _SCALARS:
                return self.scalars(_SCALARS[item], count)
            return [self.value(item) for _ in range(count)]
        return self.scalar(_SCALARS[kind])


class GGUFFile:
    """A GGUF file, mapped into memory.

    Args:
        path: the file; little-endian, version 2 or 3.

    Attributes:
        metadata: every key of the file with its Python value.
        tensors: `TensorInfo` by name.

    Raises:
        ValueError: the file is not GGUF, of an unknown version, or truncated.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        if os.path.getsize(path) == 0:
            raise ValueError(f"{path}: the file is empty")
        with open(path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        try:
            self._read_header(_Cursor(memoryview(self._map)))
        except (struct.error, ValueError) as error:
            raise ValueError(f"{path}: not a GGUF file, or a damaged one: {error}") from None

    def _read_header(self, cursor: _Cursor) -> None:
        magic, version = cursor.scalar("I"), cursor.scalar("I")
        if magic != GGUF_MAGIC or version not in (2, 3):
            raise ValueError(f"expected little-endian GGUF of version 2 or 3, got magic {magic:#x}, version {version}")
        tensor_count, key_count = cursor.scalar("Q"), cursor.scalar("Q")
        for _ in range(key_count):
            key = cursor.string()
            self.metadata[key] = cursor.value(GGUFValueType(cursor.scalar("I")))
        table = []
        for _ in range(tensor_count):
            name = cursor.string()
            shape = tuple(reversed(cursor.scalars("Q", cursor.scalar("I"))))
            table.append((name, shape, GGMLQuantizationType(cursor.scalar("I")), cursor.scalar("Q")))
        alignment = self.metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
        base = -(-cursor.offset // alignment) * alignment
        self.tensors = {name: TensorInfo(shape, kind, base + offset) for name, shape, kind, offset in table}

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """Dequantises one tensor.

        Args:
            name: name in `tensors`.
            dtype: floating dtype of the result. Values are computed in float32 and rounded once.

        Returns:
            A new contiguous tensor of the tensor's shape.

        Raises:
            KeyError: no such tensor.
            ValueError: its storage type is not F32, F16, Q4_1 or Q8_0.
        """
        info = self.tensors[name]
        if info.kind not in _DEQUANTIZE:
            known = ", ".join(kind.name for kind in _DEQUANTIZE)
            raise ValueError(f"{name}: storage type {info.kind.name} is not supported (only {known})")
        per_block, block_bytes = GGML_QUANT_SIZES[info.kind]
        size = info.numel // per_block * block_bytes
        raw = torch.frombuffer(self._map, dtype=torch.uint8, count=size, offset=info.offset)
        return _DEQUANTIZE[info.kind](raw).to(dtype).reshape(info.shape)


def _float32(raw: torch.Tensor) -> torch.Tensor:
    # A new tensor: `.to(float32)` alone would return a view of the mapped file.
    return raw.clone().view(torch.float32)


def _float16(raw: torch.Tensor) -> torch.Tensor:
    return raw.clone().view(torch.float16).float()


def _q4_1(raw: torch.Tensor) -> torch.Tensor:
    """Blocks of float16 scale d, float16 minimum m and 16 bytes whose low, then high nibbles are q: w = d q
    + m."""
    blocks = raw.view(-1, 4 + _BLOCK // 2)
    scales = blocks[:, :4].contiguous().view(torch.float16).float()
    packed = blocks[:, 4:]
    quants = torch.cat([packed & 15, packed >> 4], dim=1)
    return scales[:, :1] * quants + scales[:, 1:]


def _q8_0(raw: torch.Tensor) -> torch.Tensor:
    """Blocks of float16 scale d and 32 signed bytes q: w = d q."""
    blocks = raw.view(-1, 2 + _BLOCK)
    scales = blocks[:, :2].contiguous().view(torch.float16).float()
    return scales * blocks[:, 2:].contiguous().view(torch.int8)


_DEQUANTIZE: dict[GGMLQuantizationType, Callable[[torch.Tensor], torch.Tensor]] = {
    GGMLQuantizationType.F32: _float32,
    GGMLQuantizationType.F16: _float16,
    GGMLQuantizationType.Q4_1: _q4_1,
    GGMLQuantizationType.Q8_0: _q8_0,
}
