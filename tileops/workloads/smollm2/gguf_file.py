"""Reading a GGUF file: metadata, tensor table, and dequantisation.

The value types and block layouts come from the ``gguf`` package. Its ``GGUFReader`` builds a NumPy array for
each of the 98,000 strings of a tokenizer, which takes two seconds; parsing the same bytes with ``struct``
takes 50 ms.
"""

from __future__ import annotations

import mmap
import os
import struct
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

from tileops import jit
from tileops.errors import TileOpsError
from tileops.jit.program import Program


class GGUFError(TileOpsError, ValueError):
    """A file is not GGUF, or damaged."""


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

    def __init__(self, data: mmap.mmap) -> None:
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
        return self.data[start : self.offset].decode()

    def strings(self, count: int) -> list[str]:
        """A tokenizer has a hundred thousand of them, hence the locals."""
        data, offset, length_at, found = self.data, self.offset, struct.Struct("<Q").unpack_from, []
        for _ in range(count):
            start = offset + 8
            offset = start + length_at(data, offset)[0]
            found.append(data[start:offset].decode())
        self.offset = offset
        return found

    def value(self, kind: GGUFValueType) -> Any:
        if kind == GGUFValueType.STRING:
            return self.string()
        if kind == GGUFValueType.ARRAY:
            item, count = GGUFValueType(self.scalar("I")), self.scalar("Q")
            if item in _SCALARS:
                return self.scalars(_SCALARS[item], count)
            if item == GGUFValueType.STRING:
                return self.strings(count)
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
        GGUFError: the file is not GGUF, of an unknown version, or truncated.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        if os.path.getsize(path) == 0:
            raise GGUFError(f"{path}: the file is empty")
        with open(path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        try:
            self._read_header(_Cursor(self._map))
        except (struct.error, ValueError) as error:
            raise GGUFError(f"{path}: not a GGUF file, or a damaged one: {error}") from None

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
        output = torch.empty(self.tensors[name].shape, dtype=dtype)
        self.read_into(name, output)
        return output

    def read_into(self, name: str, output: torch.Tensor, rotary_dim: int = 1) -> None:
        """Dequantises one tensor into memory that exists.

        Args:
            name: name in `tensors`.
            output: contiguous tensor of the tensor's shape, float32, bfloat16 or float16.
            rotary_dim: rows come in groups of this many whose rotary pairs (2i, 2i + 1) are to become pairs
                (i, i + rotary_dim / 2); 1 keeps their order. Quantised matrices only.

        Raises:
            KeyError: no such tensor.
            ValueError: its storage type is not F32, F16, Q4_1 or Q8_0, or `output` does not fit.
        """
        info = self.tensors[name]
        if tuple(output.shape) != info.shape or not output.is_contiguous():
            raise ValueError(f"{name}: the tensor is {list(info.shape)}, the output {list(output.shape)}")
        per_block, block_bytes = GGML_QUANT_SIZES[info.kind]
        size = info.numel // per_block * block_bytes
        raw = torch.frombuffer(self._map, dtype=torch.uint8, count=size, offset=info.offset)
        if info.kind in _PLAIN:
            output.copy_(raw.clone().view(_PLAIN[info.kind]).reshape(info.shape))
            return
        if info.kind not in _QUANTISED:
            known = ", ".join(kind.name for kind in (*_PLAIN, *_QUANTISED))
            raise ValueError(f"{name}: storage type {info.kind.name} is not supported (only {known})")
        program = Program.of(
            f"{_dequantise}:rows", ["ptr", "ptr", "i64", "i64"], kind=_QUANTISED[info.kind], dtype=_SHORT[output.dtype]
        )
        *_, columns = info.shape
        jit.get_entry(program).launch(
            jit.parallel.threads(info.numel * _DEQUANTISE_NS), info.numel // columns,
            raw.data_ptr(), output.data_ptr(), columns // per_block, rotary_dim,
        )  # fmt: skip


_dequantise = "tileops.workloads.smollm2._dequantise_cpu"
#: Nanoseconds that one thread takes for an element.
_DEQUANTISE_NS = 0.5
_SHORT = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
_PLAIN = {GGMLQuantizationType.F32: torch.float32, GGMLQuantizationType.F16: torch.float16}
_QUANTISED = {GGMLQuantizationType.Q4_1: "q4_1", GGMLQuantizationType.Q8_0: "q8_0"}
