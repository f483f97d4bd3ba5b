"""Strips: the packed elements of a tensor that one thread holds in registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from tileops.jit.lang.cuda_emitter import CudaEmitter
from tileops.jit.lang.cuda_function import device_function, items, types
from tileops.jit.lang.emitter import I16, I32, I64
from tileops.jit.lang.memory import itemsize
from tileops.jit.lang.values import Value

_ACCESS = {1: "b8", 2: "b16", 4: "b32", 8: "v2.b32", 16: "v4.b32"}


@dataclass(frozen=True)
class Strip:
    """One thread's share of a tensor: `vectors` accesses of `width` bytes each.

    Attributes:
        dtype: storage format of an element: "f32", "bf16", "f16", "i8" .. "i64", "u8" or "b1".
        width: bytes of one access: 16, 8, 4, 2 or 1, at least one element. Addresses are multiples of it.
        vectors: accesses.
    """

    dtype: str
    width: int
    vectors: int = 1

    def __post_init__(self) -> None:
        if self.width not in _ACCESS or self.width < itemsize(self.dtype) or self.vectors < 1:
            raise ValueError(f"{self}: width is 1, 2, 4, 8 or 16 bytes and at least one element")

    @classmethod
    def of(cls, dtype: str, elements: int) -> Strip:
        """`elements` neighbours, a power of two, in accesses as wide as possible."""
        size = elements * itemsize(dtype)
        return cls(dtype, min(size, 16), max(size // 16, 1))

    @property
    def elements(self) -> int:
        """Elements of the whole strip."""
        return self.width // itemsize(self.dtype) * self.vectors

    @property
    def words(self) -> int:
        """32-bit registers of one access."""
        return max(1, self.width // 4)

    @property
    def type(self) -> Any:
        """The Numba type of a loaded strip."""
        return types.UniTuple(types.uint32, self.words * self.vectors)

    @property
    def load(self) -> Any:
        """``load(address)``: a strip of one vector, through the read-only path (memory that no thread
        writes).
        """
        self._one_vector("load")
        return device_function(lambda emitter, address: self._load(emitter, address), [types.int64], self.type)

    @property
    def load_below(self) -> Any:
        """``load_below(address, step, left)``: vector j from ``address + j * step`` where ``j * step <
        left``; the others are zeros and not touched. Read-only path, as `load`.
        """
        return self._load_below(pinned=False)

    @property
    def fetch_below(self) -> Any:
        """`load_below` that stays where it stands: the compiler neither moves it out of a loop, where what is
        unpacked from it would fill registers, nor behind a barrier, where its latency would show.
        """
        return self._load_below(pinned=True)

    @property
    def store(self) -> Any:
        """``store(address, strip)``: a strip of one vector."""
        self._one_vector("store")

        def emit(emitter: CudaEmitter, address: ir.Value, strip: ir.Value) -> None:
            self._store(emitter, address, items(emitter, strip, self.words))

        return device_function(emit, [types.int64, self.type], types.void)

    @property
    def store_below(self) -> Any:
        """``store_below(address, step, left, strip)``: the counterpart of `load_below`."""

        def emit(emitter: CudaEmitter, address: ir.Value, step: ir.Value, left: ir.Value, strip: ir.Value) -> None:
            words = items(emitter, strip, self.words * self.vectors)
            for j, (here, inside) in enumerate(self._places(emitter, address, step, left)):
                self._store(emitter, here, words[j * self.words : (j + 1) * self.words], inside)

        return device_function(emit, [types.int64] * 3 + [self.type], types.void)

    def _load_below(self, *, pinned: bool) -> Any:
        def emit(emitter: CudaEmitter, address: ir.Value, step: ir.Value, left: ir.Value) -> list[ir.Value]:
            words = []
            for here, inside in self._places(emitter, address, step, left):
                words += self._load(emitter, here, inside, pinned=pinned)
            return words

        return device_function(emit, [types.int64] * 3, self.type)

    def _one_vector(self, what: str) -> None:
        if self.vectors != 1:
            raise ValueError(f"{what} is for a strip of one vector; use {what}_below for {self.vectors}")

    def _places(
        self, emitter: CudaEmitter, address: ir.Value, step: ir.Value, left: ir.Value
    ) -> list[tuple[ir.Value, ir.Value]]:
        b = emitter.builder
        places = []
        for j in range(self.vectors):
            offset = b.mul(step, I64(j)) if j else I64(0)
            places.append((b.add(address, offset), b.zext(b.icmp_signed("<", offset, left), I32)))
        return places

    # -- for other words: on LLVM values -------------------------------------------------------------------

    def read(self, emitter: CudaEmitter, address: ir.Value, *, shared: bool = False) -> list[ir.Value]:
        """Packed words of the whole strip, its vectors one behind the other.

        Args:
            emitter: of the code being traced.
            address: of the first element.
            shared: this launch may write the memory, so that the read-only path is no option.
        """
        starts = (emitter.builder.add(address, I64(j * self.width)) for j in range(self.vectors))
        return [word for start in starts for word in self._load(emitter, start, shared=shared)]

    def write(self, emitter: CudaEmitter, address: ir.Value, words: Sequence[ir.Value]) -> None:
        """The counterpart of `read`."""
        for j in range(self.vectors):
            start = emitter.builder.add(address, I64(j * self.width))
            self._store(emitter, start, words[j * self.words : (j + 1) * self.words])

    def spread(self, emitter: CudaEmitter, element: Sequence[ir.Value]) -> list[ir.Value]:
        """Packed words of a strip whose elements all equal the one whose packed words are given."""
        copies = {1: 0x01010101, 2: 0x00010001}.get(itemsize(self.dtype))
        if copies is None:
            return list(element) * (self.words * self.vectors // len(element))
        return [emitter.builder.mul(element[0], I32(copies))] * (self.words * self.vectors)

    def _load(
        self,
        emitter: CudaEmitter,
        address: ir.Value,
        inside: ir.Value | None = None,
        *,
        pinned: bool = False,
        shared: bool = False,
    ) -> list[ir.Value]:
        """Packed words of one vector; zeros where `inside` (an i32 truth value) is 0."""
        n = self.words
        names = ",".join(f"${i}" for i in range(n))
        target = names if n == 1 else f"{{{names}}}"
        access = f"ld.global.{'' if shared else 'nc.'}{_ACCESS[self.width]} {target}, [${n}];"
        narrow = self.width < 4
        kinds: list[ir.Type] = [I16] if narrow else [I32] * n
        if inside is None:
            words = emitter.ptx(access, kinds, [address], effect=pinned or shared)
        else:
            bits = 16 if narrow else 32
            zeros = " ".join(f"mov.b{bits} ${i}, 0;" for i in range(n))
            text = f"{{ .reg .pred p; setp.ne.b32 p, ${n + 1}, 0; {zeros} @p {access} }}"
            words = emitter.ptx(text, kinds, [address, inside], early=True, effect=pinned)
        return [emitter.builder.zext(word, I32) for word in words] if narrow else words

    def _store(
        self, emitter: CudaEmitter, address: ir.Value, words: Sequence[ir.Value], inside: ir.Value | None = None
    ) -> None:
        n = self.words
        if self.width < 4:
            words = [emitter.builder.trunc(words[0], I16)]
        names = ",".join(f"${i + 1}" for i in range(n))
        source = names if n == 1 else f"{{{names}}}"
        access = f"st.global.{_ACCESS[self.width]} [$0], {source};"
        if inside is None:
            emitter.ptx(access, [], [address, *words], effect=True)
        else:
            text = f"{{ .reg .pred p; setp.ne.b32 p, ${n + 1}, 0; @p {access} }}"
            emitter.ptx(text, [], [address, *words, inside], effect=True)

    def elements_of(self, emitter: CudaEmitter, words: Sequence[ir.Value]) -> list[ir.Value]:
        """The elements of packed words in the kind that bodies compute with, in the order of memory."""
        per_group = self._elements_per_group()
        group = max(1, itemsize(self.dtype) // 4)
        return [
            element
            for i in range(0, len(words), group)
            for element in emitter.unpack(self.dtype, words[i : i + group], per_group)
        ]

    def unpack(self, emitter: CudaEmitter, strip: ir.Value) -> list[ir.Value]:
        """The elements of a loaded strip, in the order of memory."""
        return self.elements_of(emitter, items(emitter, strip, self.words * self.vectors))

    def pack(self, emitter: CudaEmitter, elements: Sequence[ir.Value]) -> list[ir.Value]:
        """Packed words of elements in the kind that bodies compute with."""
        per_group = self._elements_per_group()
        return [
            word
            for i in range(0, len(elements), per_group)
            for word in emitter.pack(self.dtype, elements[i : i + per_group])
        ]

    def _elements_per_group(self) -> int:
        """Elements of one word, or of the two words of one element."""
        return max(1, min(self.width, 4) // itemsize(self.dtype))


def strip_map(function: Callable[..., Any], inputs: Sequence[Strip], output: Strip, scalars: int = 0) -> Any:
    """`function` over the elements of strips.

    Args:
        function: scalar function over the vocabulary: one element of each input strip, then the scalars.
        inputs: strips with as many elements as `output`.
        output: strip of the result.
        scalars: number of float32 scalars that every element gets.

    Returns:
        A device function ``(*strips, scalars) -> strip``; `scalars` is a tuple (empty where there are none).
    """

    def emit(emitter: CudaEmitter, *args: ir.Value) -> list[ir.Value]:
        *strips, packed = args
        columns = [strip.unpack(emitter, arg) for strip, arg in zip(inputs, strips, strict=True)]
        shared = [Value(item) for item in items(emitter, packed, scalars)]
        results = [function(*(Value(item) for item in row), *shared).ir for row in zip(*columns, strict=True)]
        return output.pack(emitter, results)

    emit.__name__ = f"map_{getattr(function, '__name__', 'function').strip('_')}"
    scalar_type = types.UniTuple(types.float32, scalars) if scalars else types.Tuple(())
    return device_function(emit, [*(strip.type for strip in inputs), scalar_type], output.type)


def strip_fold(function: Callable[..., Any], inputs: Sequence[Strip]) -> Any:
    """``fold(total, *strips) -> total``: ``total = function(total, element, ...)`` over the elements in
    order.
    """

    def emit(emitter: CudaEmitter, total: ir.Value, *args: ir.Value) -> ir.Value:
        columns = [strip.unpack(emitter, arg) for strip, arg in zip(inputs, args, strict=True)]
        for row in zip(*columns, strict=True):
            total = function(Value(total), *(Value(element) for element in row)).ir
        return total

    emit.__name__ = f"fold_{getattr(function, '__name__', 'function').strip('_')}"
    return device_function(emit, [types.float32, *(strip.type for strip in inputs)], types.float32)


__all__ = ["Strip", "strip_fold", "strip_map"]
