"""The vocabulary of CUDA kernel bodies.

A body is a Numba function of int64 addresses, int64 sizes and float scalars:

    def kernel(x, out, count, scale):
        i = lang.block_index() * BLOCK + lang.thread_index()
        while i < count:
            store(out + i * WIDTH, scaled(load(x + i * WIDTH), (scale,)))
            i += lang.grid_size() * BLOCK

with, in its factory, ``strip = Strip("bf16", 16)``, ``load = strip.load`` and ``scaled = strip_map(fn,
[strip], strip, 1)``. A `Strip` is one thread's share of a tensor: vectors of 2, 4, 8 or 16 bytes that travel
as packed 32-bit words and are unpacked to float32 only inside `strip_map` and `strip_fold`, which run the
same scalar functions that the CPU's kernels are made from.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from tileops.jit import _numba_cuda
from tileops.jit.lang import context
from tileops.jit.lang.cuda_emitter import CudaEmitter
from tileops.jit.lang.emitter import F32, I32, I64
from tileops.jit.lang.values import Value

types, _intrinsic = _numba_cuda.intrinsic_tools()

WARP = 32
ITEMSIZE = {"f32": 4, "bf16": 2, "f16": 2}


def device_function(emit: Callable[..., Any], parameters: Sequence[Any], result: Any) -> Any:
    """A function for CUDA bodies out of one that emits IR.

    Args:
        emit: ``emit(emitter, *values)`` of LLVM values; returns a value, a list of values for a tuple, or
            None.
        parameters: Numba types of the parameters; arguments are converted to them.
        result: Numba type of the result.
    """

    def typed(*_args: Any) -> Any:
        def generate(numba_context: Any, builder: ir.IRBuilder, signature: Any, args: Sequence[ir.Value]) -> Any:
            emitter = CudaEmitter(builder)
            with context.emitting(emitter):
                value = emit(emitter, *args)
            if value is None:
                return numba_context.get_dummy_value()
            if isinstance(value, list):
                return numba_context.make_tuple(builder, signature.return_type, value)
            return value

        return result(*parameters), generate

    names = [f"a{i}" for i in range(len(parameters))]
    typed.__name__ = getattr(emit, "__name__", "device_function").strip("_")
    typed.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("typing_context", *names)]
    )
    return _intrinsic(typed)


def traced(function: Callable[..., Any], arity: int) -> Any:
    """`function`, written over the vocabulary, as a device function of `arity` float32 scalars."""

    def emit(_emitter: CudaEmitter, *args: ir.Value) -> Any:
        result = function(*(Value(arg) for arg in args))
        return [item.ir for item in result] if isinstance(result, tuple) else result.ir

    emit.__name__ = getattr(function, "__name__", "traced")
    return device_function(emit, [types.float32] * arity, types.float32)


# -- where a thread is ---------------------------------------------------------------------------------------


def _special(register: str) -> Any:
    def emit(emitter: CudaEmitter) -> ir.Value:
        word = emitter.call(f"llvm.nvvm.read.ptx.sreg.{register}", I32, ())
        return emitter.builder.zext(word, I64)

    emit.__name__ = register.replace(".", "_")
    return device_function(emit, [], types.int64)


#: Number of the thread in its block and of the block in the grid; threads of a block, blocks of the grid.
#: int64.
thread_index = _special("tid.x")
block_index = _special("ctaid.x")
block_size = _special("ntid.x")
grid_size = _special("nctaid.x")


def _rsqrt(emitter: CudaEmitter, x: ir.Value) -> ir.Value:
    return emitter.unary_ptx("rsqrt.approx.f32", x)


#: ``1 / sqrt(x)`` to 2 units in the last place, in one instruction; `rsqrt_exact` is two calls on a GPU.
rsqrt = device_function(_rsqrt, [types.float32], types.float32)


def _barrier(emitter: CudaEmitter) -> None:
    emitter.ptx("bar.sync 0;", [], [], effect=True)


#: Waits for all threads of the block; what they wrote to shared memory is visible afterwards.
barrier = device_function(_barrier, [], types.void)


# -- reductions ----------------------------------------------------------------------------------------------


def _warp_sum(emitter: CudaEmitter, value: ir.Value) -> ir.Value:
    for distance in (16, 8, 4, 2, 1):
        text = f"shfl.sync.bfly.b32 $0, $1, {distance}, 31, -1;"
        (other,) = emitter.ptx(text, [F32], [value], effect=True)
        value = emitter.builder.fadd(value, other)
    return value


#: Sum over the 32 threads of a warp, the same bits in all of them (a butterfly: the order never depends on
#: timing).
warp_sum = device_function(_warp_sum, [types.float32], types.float32)


def block_sum(block: int) -> Any:
    """``sum(value)`` over a block of `block` threads, the same bits in all of them.

    Every thread of the block must call it. It ends with a barrier, so calls may follow each other.
    """
    warps = block // WARP
    if warps == 1:
        return warp_sum

    def emit(emitter: CudaEmitter, value: ir.Value) -> ir.Value:
        b = emitter.builder
        base = _shared_base(emitter, f"tileops_block_sum_{warps}", 4 * warps)
        thread = emitter.call("llvm.nvvm.read.ptx.sreg.tid.x", I32, ())
        lane, warp = b.and_(thread, I32(WARP - 1)), b.lshr(thread, I32(5))
        value = _warp_sum(emitter, value)
        with b.if_then(b.icmp_unsigned("==", lane, I32(0))):
            slot = b.add(base, b.shl(warp, I32(2)))
            emitter.ptx("st.shared.f32 [$0], $1;", [], [slot, value], effect=True)
        _barrier(emitter)
        # Every warp adds the partial sums itself, in one butterfly: no second broadcast is needed.
        inside = b.zext(b.icmp_unsigned("<", lane, I32(warps)), I32)
        slot = b.add(base, b.shl(lane, I32(2)))
        text = "{ .reg .pred p; setp.ne.b32 p, $2, 0; mov.b32 $0, 0; @p ld.shared.b32 $0, [$1]; }"
        (word,) = emitter.ptx(text, [I32], [slot, inside], effect=True, early=True)
        total = _warp_sum(emitter, b.bitcast(word, F32))
        _barrier(emitter)
        return total

    emit.__name__ = f"block_sum_{block}"
    return device_function(emit, [types.float32], types.float32)


def _shared_base(emitter: CudaEmitter, name: str, size: int) -> ir.Value:
    """Address in shared memory of a static array of `size` bytes."""
    module = emitter.builder.module
    array = module.globals.get(name)
    if array is None:
        array = ir.GlobalVariable(module, ir.ArrayType(ir.IntType(8), size), name, addrspace=3)
        array.linkage = "internal"
        array.initializer = ir.Constant(array.value_type, ir.Undefined)
        array.align = 16
    return emitter.builder.ptrtoint(array, I32)


# -- strips: packed elements in registers --------------------------------------------------------------------


@dataclass(frozen=True)
class Strip:
    """One thread's share of a tensor: `vectors` accesses of `width` bytes each.

    Attributes:
        dtype: short name of the element type: "f32", "bf16" or "f16".
        width: bytes of one access: 16, 8, 4 or 2, at least one element. Addresses are multiples of it.
        vectors: accesses.
    """

    dtype: str
    width: int
    vectors: int = 1

    def __post_init__(self) -> None:
        if self.width not in (2, 4, 8, 16) or self.width < ITEMSIZE[self.dtype] or self.vectors < 1:
            raise ValueError(f"{self}: width is 2, 4, 8 or 16 bytes and at least one element")

    @property
    def elements(self) -> int:
        """Elements of the whole strip."""
        return self.width // ITEMSIZE[self.dtype] * self.vectors

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
        return device_function(lambda emitter, address: self._load(emitter, address, None), [types.int64], self.type)

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
            self._store(emitter, address, _unpack_tuple(emitter, strip, self.words), None)

        return device_function(emit, [types.int64, self.type], types.void)

    @property
    def store_below(self) -> Any:
        """``store_below(address, step, left, strip)``: the counterpart of `load_below`."""

        def emit(emitter: CudaEmitter, address: ir.Value, step: ir.Value, left: ir.Value, strip: ir.Value) -> None:
            words = _unpack_tuple(emitter, strip, self.words * self.vectors)
            for j, (here, inside) in enumerate(self._places(emitter, address, step, left)):
                self._store(emitter, here, words[j * self.words : (j + 1) * self.words], inside)

        return device_function(emit, [types.int64] * 3 + [self.type], types.void)

    @property
    def broadcast(self) -> Any:
        """``broadcast(element)``: a strip whose elements all equal the one of a strip of a single element."""
        single = Strip(self.dtype, ITEMSIZE[self.dtype])

        def emit(emitter: CudaEmitter, element: ir.Value) -> list[ir.Value]:
            return self.pack(emitter, single.unpack(emitter, element) * self.elements)

        return device_function(emit, [single.type], self.type)

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

    def _load(
        self, emitter: CudaEmitter, address: ir.Value, inside: ir.Value | None, *, pinned: bool = False
    ) -> list[ir.Value]:
        """Packed words of one vector; zeros where `inside` (an i32 truth value) is 0."""
        n = self.words
        names = ",".join(f"${i}" for i in range(n))
        target = names if n == 1 else f"{{{names}}}"
        access = f"ld.global.nc.{_access(self.width)} {target}, [${n}];"
        kinds: list[ir.Type] = [ir.IntType(16)] if self.width == 2 else [I32] * n
        if inside is None:
            words = emitter.ptx(access, kinds, [address])
        else:
            bits = 16 if self.width == 2 else 32
            zeros = " ".join(f"mov.b{bits} ${i}, 0;" for i in range(n))
            text = f"{{ .reg .pred p; setp.ne.b32 p, ${n + 1}, 0; {zeros} @p {access} }}"
            words = emitter.ptx(text, kinds, [address, inside], early=True, effect=pinned)
        return [emitter.builder.zext(word, I32) for word in words] if self.width == 2 else words

    def _store(
        self, emitter: CudaEmitter, address: ir.Value, words: Sequence[ir.Value], inside: ir.Value | None
    ) -> None:
        n = self.words
        if self.width == 2:
            words = [emitter.builder.trunc(words[0], ir.IntType(16))]
        names = ",".join(f"${i + 1}" for i in range(n))
        source = names if n == 1 else f"{{{names}}}"
        access = f"st.global.{_access(self.width)} [$0], {source};"
        if inside is None:
            emitter.ptx(access, [], [address, *words], effect=True)
        else:
            text = f"{{ .reg .pred p; setp.ne.b32 p, ${n + 1}, 0; @p {access} }}"
            emitter.ptx(text, [], [address, *words, inside], effect=True)

    def unpack(self, emitter: CudaEmitter, strip: ir.Value) -> list[ir.Value]:
        """The float32 elements of a loaded strip, in the order of memory."""
        per_word = min(self.elements, 4 // ITEMSIZE[self.dtype])
        if self.width == 2:
            per_word = 1
        words = _unpack_tuple(emitter, strip, self.words * self.vectors)
        return [element for word in words for element in emitter.unpack(self.dtype, word, per_word)]

    def pack(self, emitter: CudaEmitter, elements: Sequence[ir.Value]) -> list[ir.Value]:
        """Packed words of float32 elements."""
        per_word = 1 if self.width == 2 else 4 // ITEMSIZE[self.dtype]
        return [emitter.pack(self.dtype, elements[i : i + per_word]) for i in range(0, len(elements), per_word)]


def _access(width: int) -> str:
    return {2: "b16", 4: "b32", 8: "v2.b32", 16: "v4.b32"}[width]


def _unpack_tuple(emitter: CudaEmitter, strip: ir.Value, count: int) -> list[ir.Value]:
    return [emitter.builder.extract_value(strip, i) for i in range(count)]


def strip_map(function: Callable[..., Any], inputs: Sequence[Strip], output: Strip, scalars: int = 0) -> Any:
    """`function` over the elements of strips.

    Args:
        function: scalar function over the vocabulary: one float32 of each input strip, then the scalars.
        inputs: strips with as many elements as `output`.
        output: strip of the result.
        scalars: number of float32 scalars that every element gets.

    Returns:
        A device function ``(*strips, scalars) -> strip``; `scalars` is a tuple (empty where there are none).
    """

    def emit(emitter: CudaEmitter, *args: ir.Value) -> list[ir.Value]:
        *strips, packed = args
        columns = [strip.unpack(emitter, arg) for strip, arg in zip(inputs, strips, strict=True)]
        shared = [Value(item) for item in _unpack_tuple(emitter, packed, scalars)]
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


def walk(axes: int, operands: int) -> Any:
    """Where the element number `index` of a strided iteration lies in each operand.

    Returns:
        A device function ``(index, geometry) -> (offset, ...)``; `geometry` is a tuple of int64: for each
        axis, the innermost first, its size and the step in bytes of every operand. Surplus axes have size 1.
    """
    width = 1 + operands

    def emit(emitter: CudaEmitter, index: ir.Value, geometry: ir.Value) -> list[ir.Value]:
        b = emitter.builder
        offsets = [I64(0)] * operands
        for axis in range(axes):
            size, *steps = (b.extract_value(geometry, axis * width + k) for k in range(width))
            if axis == axes - 1:
                coordinate = index
            else:
                # Indices are never negative, and unsigned division is the cheaper one.
                quotient = b.udiv(index, size)
                coordinate = b.sub(index, b.mul(quotient, size))
                index = quotient
            offsets = [b.add(offset, b.mul(coordinate, step)) for offset, step in zip(offsets, steps, strict=True)]
        return offsets

    emit.__name__ = f"walk_{axes}_{operands}"
    parameters = [types.int64, types.UniTuple(types.int64, axes * width)]
    return device_function(emit, parameters, types.UniTuple(types.int64, operands))


def _divide(emitter: CudaEmitter, dividend: ir.Value, divisor: ir.Value) -> list[ir.Value]:
    quotient = emitter.builder.udiv(dividend, divisor)
    return [quotient, emitter.builder.sub(dividend, emitter.builder.mul(quotient, divisor))]


#: ``divide(dividend, divisor) -> (quotient, remainder)`` of int64 that are not negative (Python's ``//``
#: costs twice).
divide = device_function(_divide, [types.int64, types.int64], types.UniTuple(types.int64, 2))


def _load_integer(width: int) -> Any:
    def emit(emitter: CudaEmitter, address: ir.Value) -> ir.Value:
        kind = I32 if width == 4 else I64
        (word,) = emitter.ptx(f"ld.global.nc.b{8 * width} $0, [$1];", [kind], [address])
        return emitter.builder.sext(word, I64) if width == 4 else word

    emit.__name__ = f"load_i{8 * width}"
    return device_function(emit, [types.int64], types.int64)


#: ``load(address) -> int64`` of a signed integer in memory that no thread writes.
load_i32 = _load_integer(4)
load_i64 = _load_integer(8)

__all__ = [
    "ITEMSIZE",
    "Strip",
    "barrier",
    "block_index",
    "block_size",
    "block_sum",
    "device_function",
    "divide",
    "grid_size",
    "load_i32",
    "load_i64",
    "rsqrt",
    "strip_fold",
    "strip_map",
    "thread_index",
    "traced",
    "walk",
    "warp_sum",
]
