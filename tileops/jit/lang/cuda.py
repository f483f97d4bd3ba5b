"""The vocabulary of CUDA kernel bodies.

A body is a Numba function of int64 addresses, int64 sizes and float scalars:

    def kernel(x, out, count, scale):
        i = lang.block_index() * BLOCK + lang.thread_index()
        while i < count:
            store(out + i * WIDTH, scaled(load(x + i * WIDTH), (scale,)))
            i += lang.grid_size() * BLOCK

with, in its factory, ``strip = Strip("bf16", 16)``, ``load = strip.load`` and ``scaled = strip_map(fn,
[strip], strip, 1)``. A `Strip` is one thread's share of a tensor: vectors of 1 to 16 bytes that travel as packed
32-bit words and are unpacked to what is computed with only inside `strip_map` and `strip_fold`, which run the same
scalar functions that the CPU's kernels are made from. `pointwise` is a whole elementwise step of one thread.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from tileops.jit.lang.cuda_emitter import COMPUTED, CudaEmitter
from tileops.jit.lang.cuda_function import device_function, traced, types
from tileops.jit.lang.cuda_pointwise import along, pointwise, walk, walk_from
from tileops.jit.lang.cuda_strips import Strip, strip_fold, strip_map
from tileops.jit.lang.emitter import F32, I32, I64
from tileops.jit.lang.memory import itemsize

WARP = 32
#: Bytes of an element by storage format.
ITEMSIZE = {dtype: itemsize(dtype) for dtype in COMPUTED}


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


# -- integers -----------------------------------------------------------------------------------------------


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
    "along",
    "barrier",
    "block_index",
    "block_size",
    "block_sum",
    "device_function",
    "divide",
    "grid_size",
    "load_i32",
    "load_i64",
    "pointwise",
    "rsqrt",
    "strip_fold",
    "strip_map",
    "thread_index",
    "traced",
    "walk",
    "walk_from",
    "warp_sum",
]
