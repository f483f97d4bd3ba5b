"""LLVM IR for the primitives of the vocabulary, and the kinds of values that it knows.

`Emitter` writes instructions that exist on every target, and falls back to exact integer or multi-instruction
forms where an instruction is missing (fused multiply-add, rounding and half precision on old x86), so that no
kernel ever calls a mathematical library. A device with other instructions (CUDA) subclasses it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir

from tileops.jit.cpu.target import CpuTarget


class BFloat(ir.Type):
    """LLVM's ``bfloat``, which llvmlite lacks. (A subclass of ``HalfType`` would silently print ``half``.)"""

    null = "0.0"
    intrinsic_name = "bf16"

    def __str__(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


I1, I8, I16, I32, I64 = (ir.IntType(width) for width in (1, 8, 16, 32, 64))
F16, F32, F64, BF16 = ir.HalfType(), ir.FloatType(), ir.DoubleType(), BFloat()
POINTER = ir.PointerType()
VOID = ir.VoidType()

ELEMENTS: dict[str, ir.Type] = {
    "b1": I1,
    "i8": I8,
    "i16": I16,
    "i32": I32,
    "i64": I64,
    "f16": F16,
    "f32": F32,
    "f64": F64,
}


@dataclass(frozen=True)
class Kind:
    """The kind of a value: an element type and a number of lanes, 0 for a scalar."""

    element: str
    lanes: int = 0

    @property
    def ir(self) -> ir.Type:
        """The LLVM type."""
        return ir_type(self.element, self.lanes)

    @property
    def is_float(self) -> bool:
        return self.element[0] == "f"

    @property
    def is_vector(self) -> bool:
        return self.lanes > 0

    def of(self, element: str) -> Kind:
        """The kind with as many lanes of `element`."""
        return Kind(element, self.lanes)

    def __str__(self) -> str:
        return f"<{self.lanes} x {self.element}>" if self.lanes else self.element


@functools.cache
def ir_type(element: str, lanes: int = 0) -> ir.Type:
    """LLVM type of `lanes` elements (0: a scalar)."""
    return ir.VectorType(ELEMENTS[element], lanes) if lanes else ELEMENTS[element]


def constant(kind: Kind, value: float | int | bool) -> ir.Constant:
    """`value` in every lane, rounded to the element type."""
    if kind.element == "f32":
        scalar: Any = float(np.float32(value))
    elif kind.is_float:
        scalar = float(value)
    else:
        scalar = int(value)
    return ir.Constant(kind.ir, [scalar] * kind.lanes if kind.lanes else scalar)


def constants(element: str, values: Sequence[float | int | bool]) -> ir.Constant:
    """A vector constant."""
    return ir.Constant(ir_type(element, len(values)), list(values))


class Emitter:
    """Writes instructions at the end of a block of an `ir.IRBuilder`, for one CPU target.

    Attributes:
        forms: name of a word -> the function to run instead of the word's own, where a device has better
        instructions.
    """

    forms: Mapping[str, Callable[..., Any]] = {}

    def __init__(self, builder: ir.IRBuilder, target: CpuTarget) -> None:
        self.builder = builder
        self.target = target

    @property
    def lanes(self) -> int:
        """float32 lanes of a vector."""
        return self.target.lanes

    # -- calls ---------------------------------------------------------------------------------------------

    def call(self, name: str, result: ir.Type, args: Sequence[ir.Value]) -> ir.Value:
        """Calls the function or LLVM intrinsic `name`, declaring it where needed."""
        module = self.builder.module
        function = module.globals.get(name)
        if function is None:
            function = ir.Function(module, ir.FunctionType(result, [arg.type for arg in args]), name)
        return self.builder.call(function, args)

    def intrinsic(self, name: str, *args: ir.Value) -> ir.Value:
        """``llvm.<name>.<type of the first argument>``, whose result has that type too."""
        return self.call(f"llvm.{name}.{_suffix(args[0].type)}", args[0].type, args)

    # -- scalars and lanes -----------------------------------------------------------------------------------

    def splat(self, scalar: ir.Value, lanes: int) -> ir.Value:
        """`scalar` in every lane."""
        vector = ir.VectorType(scalar.type, lanes)
        if isinstance(scalar, ir.Constant) and not isinstance(scalar.constant, str | type(ir.Undefined)):
            return ir.Constant(vector, [scalar.constant] * lanes)
        undefined = ir.Constant(vector, ir.Undefined)
        inserted = self.builder.insert_element(undefined, scalar, I32(0))
        return self.builder.shuffle_vector(inserted, undefined, constants("i32", [0] * lanes))

    def shuffle(self, x: ir.Value, y: ir.Value, indices: Sequence[int]) -> ir.Value:
        """Lanes of `x` (``0 .. n - 1``) and `y` (``n ..``) picked by `indices`."""
        return self.builder.shuffle_vector(x, y, constants("i32", indices))

    def extract(self, x: ir.Value, lane: int) -> ir.Value:
        return self.builder.extract_element(x, I32(lane))

    # -- float32 arithmetic ----------------------------------------------------------------------------------

    def fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """``a * b + c``, fused where the target has the instruction, else rounded twice."""
        if self.target.has_fma:
            return self.intrinsic("fma", a, b, c)
        return self.builder.fadd(self.builder.fmul(a, b), c)

    def fma_exact(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """``a * b + c`` as if fused, on every target (through float64, where there is no instruction).

        For error-free transformations; the detour may round a tie differently, by half an ulp of the result.
        """
        if self.target.has_fma:
            return self.fma(a, b, c)
        build, wide = self.builder, _kind(a.type).of("f64").ir
        a, b, c = (build.fpext(value, wide) for value in (a, b, c))
        return build.fptrunc(build.fadd(build.fmul(a, b), c), _kind(a.type).of("f32").ir)

    def sqrt(self, x: ir.Value) -> ir.Value:
        return self.intrinsic("sqrt", x)

    def abs(self, x: ir.Value) -> ir.Value:
        return self.intrinsic("fabs", x)

    def copysign(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.intrinsic("copysign", x, y)

    def rint(self, x: ir.Value) -> ir.Value:
        """Nearest integer, ties to even."""
        if self.target.has_sse41:
            return self.intrinsic("rint", x)
        b, kind = self.builder, _kind(x.type)
        size = self.abs(x)
        shift = constant(kind, 2.0**23)
        rounded = b.fsub(b.fadd(size, shift), shift)
        has_fraction = b.fcmp_ordered("<", size, shift)
        return self.copysign(b.select(has_fraction, rounded, size), x)

    def floor(self, x: ir.Value) -> ir.Value:
        if self.target.has_sse41:
            return self.intrinsic("floor", x)
        b, kind = self.builder, _kind(x.type)
        nearest = self.rint(x)
        step = b.select(b.fcmp_ordered(">", nearest, x), constant(kind, 1.0), constant(kind, 0.0))
        return self.copysign(b.fsub(nearest, step), x)

    def ceil(self, x: ir.Value) -> ir.Value:
        if self.target.has_sse41:
            return self.intrinsic("ceil", x)
        return self.builder.fneg(self.floor(self.builder.fneg(x)))

    def trunc(self, x: ir.Value) -> ir.Value:
        if self.target.has_sse41:
            return self.intrinsic("trunc", x)
        return self.copysign(self.floor(self.abs(x)), x)

    def ldexp(self, x: ir.Value, n: ir.Value) -> ir.Value:
        """``x * 2**n`` rounded once, for ``0.5 <= |x| < 4`` and ``-252 <= n <= 252``."""
        b, ints = self.builder, _kind(x.type).of("i32")
        if self.target.has_avx512 and ints.lanes == 16:
            return self.call("llvm.ldexp.v16f32.v16i32", x.type, (x, n))
        # Two factors that are normal numbers: the first product is exact, the second rounds.
        half = b.ashr(n, constant(ints, 1))
        return b.fmul(b.fmul(x, self._exp2_int(half, x.type)), self._exp2_int(b.sub(n, half), x.type))

    def reciprocal_lp(self, x: ir.Value) -> ir.Value:
        """``1 / x`` to a relative error of 2**-14, for normal `x` with a normal reciprocal, and NaN."""
        if _kind(x.type).lanes == 16:
            name = "llvm.x86.avx512.rcp14.ps.512"
            return self.call(name, x.type, (x, ir.Constant(x.type, None), ir.Constant(I16, -1)))
        return self.builder.fdiv(constant(_kind(x.type), 1.0), x)

    def rsqrt_lp(self, x: ir.Value) -> ir.Value | None:
        """``1 / sqrt(x)`` to a relative error of 2**-14, subnormals and special values included; None where there is
        no instruction for it.
        """
        if _kind(x.type).lanes == 16:
            name = "llvm.x86.avx512.rsqrt14.ps.512"
            return self.call(name, x.type, (x, ir.Constant(x.type, None), ir.Constant(I16, -1)))
        return None

    def split_exponent(self, x: ir.Value) -> tuple[ir.Value, ir.Value]:
        """``(m, e)`` with ``x = m * 2**e`` and ``0.75 <= m < 1.5``, on 16 lanes (AVX-512).

        The exponent of 0 is -inf, that of infinities inf, that of NaN NaN; m is NaN for negative numbers.
        """
        rest = (ir.Constant(x.type, ir.Undefined), I16(-1), I32(4))
        from_three_quarters, negative_is_nan = 3, 2 << 2
        name = "llvm.x86.avx512.mask.getmant.ps.512"
        m = self.call(name, x.type, (x, I32(from_three_quarters | negative_is_nan), *rest))
        name = "llvm.x86.avx512.mask.getexp.ps.512"
        exponents = (self.call(name, x.type, (value, *rest)) for value in (x, m))
        return m, self.builder.fsub(*exponents)

    def scale_exp2(self, x: ir.Value, n: ir.Value, n_bits: ir.Value) -> ir.Value:
        """``x * 2**n`` rounded once, as `ldexp`.

        Args:
            x: float32, ``0.5 <= |x| < 4``.
            n: integral float32.
            n_bits: the same as int32.
        """
        return self.scale_floor(x, n) if _kind(x.type).lanes == 16 else self.ldexp(x, n_bits)

    def fraction(self, x: ir.Value) -> ir.Value:
        """``x - floor(x)``, 0 of infinities, on 16 lanes (AVX-512)."""
        down, rest = 1, (ir.Constant(x.type, ir.Undefined), I16(-1), I32(4))
        return self.call("llvm.x86.avx512.mask.reduce.ps.512", x.type, (x, I32(down), *rest))

    def scale_floor(self, x: ir.Value, n: ir.Value) -> ir.Value:
        """``x * 2**floor(n)`` rounded once, for any numbers, on 16 lanes (AVX-512)."""
        rest = (ir.Constant(x.type, ir.Undefined), I16(-1), I32(4))
        return self.call("llvm.x86.avx512.mask.scalef.ps.512", x.type, (x, n, *rest))

    def _exp2_int(self, n: ir.Value, result: ir.Type) -> ir.Value:
        b, ints = self.builder, _kind(n.type)
        return b.bitcast(b.shl(b.add(n, constant(ints, 127)), constant(ints, 23)), result)

    # -- conversions of storage formats ----------------------------------------------------------------------

    def widen_bf16(self, bits: ir.Value) -> ir.Value:
        """bfloat16 bit patterns (i16) to float32."""
        b, ints = self.builder, _kind(bits.type).of("i32")
        return b.bitcast(b.shl(b.zext(bits, ints.ir), constant(ints, 16)), ints.of("f32").ir)

    def narrow_bf16(self, x: ir.Value) -> ir.Value:
        """float32 to bfloat16 bits (i16): nearest, ties to even; subnormals kept; NaN gives 0x7fc0."""
        b, ints = self.builder, _kind(x.type).of("i32")
        bits = b.bitcast(x, ints.ir)
        odd = b.and_(b.lshr(bits, constant(ints, 16)), constant(ints, 1))
        rounded = b.add(bits, b.add(odd, constant(ints, 0x7FFF)))
        rounded = b.select(b.fcmp_unordered("uno", x, x), constant(ints, 0x7FC00000), rounded)
        return b.trunc(b.lshr(rounded, constant(ints, 16)), ints.of("i16").ir)

    def narrow_bf16_group(self, xs: Sequence[ir.Value]) -> list[ir.Value]:
        """`narrow_bf16` of several vectors.

        The conversion instruction flushes subnormals, so it is used behind one test of them all; NaN keeps
        its upper bits.
        """
        if not (self.target.has_avx512bf16 and all(_kind(x.type).lanes == 16 for x in xs)):
            return [self.narrow_bf16(x) for x in xs]
        b = self.builder
        # One instruction narrows two vectors in the time of one.
        groups = [xs[start : start + 2] for start in range(0, len(xs), 2)]
        fast = [self._narrow_quickly(group) for group in groups]
        name, subnormal = "llvm.x86.avx512.fpclass.ps.512", I32(0x20)
        tests = [self.call(name, ir_type("b1", 16), (x, subnormal)) for x in xs]
        found = functools.reduce(b.or_, tests)
        before = b.block
        slow, done = b.append_basic_block("subnormal"), b.append_basic_block("narrowed")
        b.cbranch(b.icmp_unsigned("!=", b.bitcast(found, I16), I16(0)), slow, done).set_weights([1, 1 << 20])
        b.position_at_end(slow)
        exact = [[self.narrow_bf16(x) for x in group] for group in groups]
        careful = [group[0] if len(group) == 1 else self.shuffle(group[0], group[1], range(32)) for group in exact]
        b.branch(done)
        after = b.block
        b.position_at_end(done)
        phis = [b.phi(value.type) for value in fast]
        for phi, *values in zip(phis, fast, careful, strict=True):
            for value, block in zip(values, (before, after), strict=True):
                phi.add_incoming(value, block)
        return [
            phi if phi.type.count == 16 else self.shuffle(phi, phi, range(at, at + 16))
            for phi in phis
            for at in range(0, phi.type.count, 16)
        ]

    def _narrow_quickly(self, xs: Sequence[ir.Value]) -> ir.Value:
        """The bfloat16 bits of one or two vectors of 16, those of the first in the lower lanes."""
        if len(xs) == 1:
            narrowed = self.builder.fptrunc(xs[0], ir.VectorType(BF16, 16))
        else:
            name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
            narrowed = self.call(name, ir.VectorType(BF16, 32), (xs[1], xs[0]))
        return self.builder.bitcast(narrowed, ir_type("i16", narrowed.type.count))

    def widen_f16(self, bits: ir.Value) -> ir.Value:
        """float16 bit patterns (i16) to float32, exactly."""
        b = self.builder
        kind = _kind(bits.type)
        if self.target.has_f16c:
            return b.fpext(b.bitcast(bits, kind.of("f16").ir), kind.of("f32").ir)
        ints, floats = kind.of("i32"), kind.of("f32")
        word = b.zext(bits, ints.ir)
        sign = b.shl(b.and_(word, constant(ints, 0x8000)), constant(ints, 16))
        size = b.and_(word, constant(ints, 0x7FFF))
        shifted = b.shl(size, constant(ints, 13))
        # Multiplying by 2**112 repairs the exponent bias and normalises subnormals; inf and NaN need the top
        # exponent.
        scaled = b.bitcast(b.fmul(b.bitcast(shifted, floats.ir), constant(floats, 2.0**112)), ints.ir)
        special = b.icmp_unsigned(">=", size, constant(ints, 0x7C00))
        scaled = b.select(special, b.or_(shifted, constant(ints, 0x7F800000)), scaled)
        return b.bitcast(b.or_(scaled, sign), floats.ir)

    def narrow_f16(self, x: ir.Value) -> ir.Value:
        """float32 to float16 bit patterns (i16): nearest, ties to even, with subnormals and infinities."""
        b = self.builder
        kind = _kind(x.type)
        if self.target.has_f16c:
            return b.bitcast(b.fptrunc(x, kind.of("f16").ir), kind.of("i16").ir)
        ints, floats = kind.of("i32"), kind.of("f32")
        word = b.bitcast(x, ints.ir)
        sign = b.and_(word, constant(ints, 0x80000000))
        size = b.xor(word, sign)
        # Subnormal results: adding 0.5 aligns the mantissa so that the addition itself rounds to a multiple
        # of 2**-24.
        magic = constant(floats, 0.5)
        small = b.bitcast(b.fadd(b.bitcast(size, floats.ir), magic), ints.ir)
        small = b.sub(small, constant(ints, 0x3F000000))
        odd = b.and_(b.lshr(size, constant(ints, 13)), constant(ints, 1))
        normal = b.add(size, b.add(odd, constant(ints, ((15 - 127) << 23) + 0xFFF)))
        normal = b.lshr(normal, constant(ints, 13))
        value = b.select(b.icmp_signed("<", size, constant(ints, 113 << 23)), small, normal)
        value = b.select(b.icmp_signed(">=", size, constant(ints, 0x47800000)), constant(ints, 0x7C00), value)
        value = b.select(b.icmp_signed(">", size, constant(ints, 0x7F800000)), constant(ints, 0x7E00), value)
        return b.trunc(b.or_(value, b.lshr(sign, constant(ints, 16))), ints.of("i16").ir)

    # -- memory ----------------------------------------------------------------------------------------------

    def address(self, address: ir.Value) -> ir.Value:
        """The pointer of an i64 address."""
        return self.builder.inttoptr(address, POINTER)

    def load(self, kind: Kind, address: ir.Value, mask: ir.Value | None = None) -> ir.Value:
        """Loads with element alignment; lanes outside `mask` are 0 and are not touched."""
        pointer = self.address(address)
        align = _itemsize(kind.element)
        if mask is None:
            return self.builder.load(pointer, align=align, typ=kind.ir)
        name = f"llvm.masked.load.{_suffix(kind.ir)}.p0"
        return self.call(name, kind.ir, (pointer, I32(align), mask, ir.Constant(kind.ir, None)))

    def store(
        self, address: ir.Value, value: ir.Value, mask: ir.Value | None = None, *, streaming: bool = False
    ) -> None:
        """Stores with element alignment; memory of lanes outside `mask` is not touched.

        With `streaming` and without a mask: past the caches, to an address that is a multiple of the vector's size.
        """
        pointer = self.address(address)
        kind = _kind(value.type)
        align = _itemsize(kind.element)
        if mask is None and streaming:
            stored = self.builder.store(value, pointer, align=align * max(kind.lanes, 1))
            stored.set_metadata("nontemporal", self.builder.module.add_metadata([I32(1)]))
        elif mask is None:
            self.builder.store(value, pointer, align=align)
        else:
            name = f"llvm.masked.store.{_suffix(value.type)}.p0"
            self.call(name, VOID, (value, pointer, I32(align), mask))

    def prefetch(self, address: ir.Value, *, write: bool = False, locality: int = 3) -> None:
        """Hints that the cache line at `address` will be read (or written)."""
        args = (self.address(address), I32(int(write)), I32(locality), I32(1))
        self.call("llvm.prefetch.p0", VOID, args)

    # -- pairs of bfloat16 -----------------------------------------------------------------------------------

    def dot_bf16(self, acc: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        """``acc + a.lo * b.lo + a.hi * b.hi`` per lane; `a` and `b` are i32 words of two bfloat16 each."""
        build, lanes = self.builder, _kind(acc.type).lanes
        if self.target.has_avx512bf16 and lanes in (4, 8, 16):
            pairs = ir.VectorType(BF16, 2 * lanes)
            name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}"
            return self.call(name, acc.type, (acc, build.bitcast(a, pairs), build.bitcast(b, pairs)))
        ints, floats = _kind(a.type), _kind(acc.type)
        upper, sixteen = constant(ints, 0xFFFF0000), constant(ints, 16)

        def halves(word: ir.Value) -> tuple[ir.Value, ir.Value]:
            low, high = build.shl(word, sixteen), build.and_(word, upper)
            return build.bitcast(low, floats.ir), build.bitcast(high, floats.ir)

        (a_low, a_high), (b_low, b_high) = halves(a), halves(b)
        return self.fma(a_low, b_low, self.fma(a_high, b_high, acc))


@functools.cache
def _suffix(type_: ir.Type) -> str:
    """The mangled type in the name of an overloaded intrinsic."""
    if isinstance(type_, ir.VectorType):
        return f"v{type_.count}{_suffix(type_.element)}"
    if isinstance(type_, ir.IntType):
        return f"i{type_.width}"
    return {F16: "f16", F32: "f32", F64: "f64"}[type_]


@functools.cache
def _kind(type_: ir.Type) -> Kind:
    """The kind of an LLVM type."""
    lanes = type_.count if isinstance(type_, ir.VectorType) else 0
    element = type_.element if lanes else type_
    return Kind(next(name for name, scalar in ELEMENTS.items() if scalar == element), lanes)


def kind_of(value: ir.Value) -> Kind:
    """The kind of an LLVM value."""
    return _kind(value.type)


def _itemsize(element: str) -> int:
    return max(1, ELEMENTS[element].width // 8) if element[0] in "bi" else int(element[1:]) // 8
