"""LLVM IR of the vocabulary for NVIDIA GPUs: scalars where the CPU has vectors.

NVVM accepts the LLVM 7 subset of intrinsics, and some of those (`ldexp`) end in an error, so everything that
has a PTX instruction of its own is written as that instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llvmlite import ir

from tileops.jit.lang.emitter import F32, I8, I16, I32, I64, VOID, Emitter, Kind, constant

#: Storage format -> the kind that its elements are computed with in.
COMPUTED = {
    **{"f32": "f32", "bf16": "f32", "f16": "f32", "b1": "b1"},
    **{"u8": "i16", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64"},
}
_REGISTERS = {I16: "h", I32: "r", I64: "l", F32: "f", ir.DoubleType(): "d"}


class CudaEmitter(Emitter):
    """Writes scalar instructions for NVVM.

    Attributes:
        halves: results are rounded to 16 bits, so that shorter forms of some words will do.
    """

    halves = False

    def __init__(self, builder: ir.IRBuilder) -> None:
        super().__init__(builder, None)  # type: ignore[arg-type]  # no CPU target: every use is overridden
        # NVVM's LLVM is older than the instruction `fneg`; it reads -0.0 - x as a negation.
        builder.fneg = lambda x: builder.fsub(ir.Constant(x.type, -0.0), x)

    @property
    def forms(self) -> Mapping[str, Callable[..., Any]]:  # type: ignore[override]
        """Exponentials and quotients by the GPU's own instructions."""
        from tileops.jit.lang.cuda_maths import FORMS, HALF_FORMS

        return HALF_FORMS if self.halves else FORMS

    @property
    def lanes(self) -> int:
        """A value is a scalar."""
        return 0

    # -- inline PTX ------------------------------------------------------------------------------------------

    def ptx(
        self,
        text: str,
        results: Sequence[ir.Type],
        args: Sequence[ir.Value],
        *,
        effect: bool = False,
        early: bool = False,
    ) -> list[ir.Value]:
        """Inline PTX; ``$0 ...`` are the results, then the arguments.

        Args:
            text: instructions.
            results: LLVM types of the results.
            args: values; integers of 16, 32 and 64 bits, float32, float64.
            effect: it touches memory or other threads: neither removed, moved nor merged.
            early: results are written before the last argument is read.
        """
        marker = "=&" if early else "="
        parts = [marker + _REGISTERS[kind] for kind in results] + [_REGISTERS[arg.type] for arg in args]
        if effect:
            parts.append("~{memory}")
        result = VOID if not results else results[0] if len(results) == 1 else ir.LiteralStructType(list(results))
        asm = ir.InlineAsm(
            ir.FunctionType(result, [arg.type for arg in args]), text, ",".join(parts), side_effect=effect
        )
        value = self.builder.call(asm, args, attrs=("convergent", "nounwind") if effect else ("nounwind",))
        if len(results) < 2:
            return [value] if results else []
        return [self.builder.extract_value(value, i) for i in range(len(results))]

    def unary_ptx(self, instruction: str, x: ir.Value) -> ir.Value:
        """A float32 instruction of one operand, such as ``ex2.approx.ftz.f32``."""
        return self.ptx(f"{instruction} $0, $1;", [F32], [x])[0]

    # -- float32 arithmetic ----------------------------------------------------------------------------------

    def splat(self, scalar: ir.Value, lanes: int) -> ir.Value:
        return scalar

    def fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        return self.builder.fma(a, b, c)

    def fma_exact(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        return self.fma(a, b, c)

    def reciprocal_lp(self, x: ir.Value) -> ir.Value:
        return self.unary_ptx("rcp.approx.ftz.f32", x)

    def rsqrt_lp(self, x: ir.Value) -> ir.Value | None:
        return self.unary_ptx("rsqrt.approx.f32", x)

    def sqrt(self, x: ir.Value) -> ir.Value:
        return self.unary_ptx("sqrt.rn.f32", x)

    def rint(self, x: ir.Value) -> ir.Value:
        return self.unary_ptx("cvt.rni.f32.f32", x)

    def floor(self, x: ir.Value) -> ir.Value:
        return self.unary_ptx("cvt.rmi.f32.f32", x)

    def ceil(self, x: ir.Value) -> ir.Value:
        return self.unary_ptx("cvt.rpi.f32.f32", x)

    def trunc(self, x: ir.Value) -> ir.Value:
        return self.unary_ptx("cvt.rzi.f32.f32", x)

    def copysign(self, x: ir.Value, y: ir.Value) -> ir.Value:
        return self.ptx("copysign.f32 $0, $2, $1;", [F32], [x, y])[0]

    def abs(self, x: ir.Value) -> ir.Value:
        return self.unary_ptx("abs.f32", x)

    def ldexp(self, x: ir.Value, n: ir.Value) -> ir.Value:
        b, ints = self.builder, Kind("i32")
        half = b.ashr(n, constant(ints, 1))
        return b.fmul(b.fmul(x, self._exp2_int(half, x.type)), self._exp2_int(b.sub(n, half), x.type))

    # -- conversions of storage formats ----------------------------------------------------------------------

    def widen_f16(self, bits: ir.Value) -> ir.Value:
        return self.ptx("cvt.f32.f16 $0, $1;", [F32], [bits])[0]

    def narrow_f16(self, x: ir.Value) -> ir.Value:
        return self.ptx("cvt.rn.f16.f32 $0, $1;", [I16], [x])[0]

    def narrow_bf16(self, x: ir.Value) -> ir.Value:
        return self.ptx("cvt.rn.bf16.f32 $0, $1;", [I16], [x])[0]

    def unpack(self, dtype: str, words: Sequence[ir.Value], count: int) -> list[ir.Value]:
        """The first `count` elements of a 32-bit word, low bits first, in the kind of `COMPUTED`; the one element of
        two words for 64-bit formats.
        """
        b, word = self.builder, words[0]
        if dtype == "f32":
            return [b.bitcast(word, F32)]
        if dtype == "i32":
            return [word]
        if dtype == "i64":
            low, high = (b.zext(half, I64) for half in words)
            return [b.or_(low, b.shl(high, I64(32)))]
        if dtype == "bf16":
            halves = [b.shl(word, I32(16)), b.and_(word, I32(0xFFFF0000))]
            return [b.bitcast(half, F32) for half in halves[:count]]
        if dtype == "b1":
            return [b.icmp_unsigned("!=", b.and_(word, I32(0xFF << 8 * k)), I32(0)) for k in range(count)]
        size = 8 if dtype in ("i8", "u8") else 16
        parts = [b.lshr(word, I32(size * k)) if k else word for k in range(count)]
        if dtype == "u8":
            return [b.and_(b.trunc(part, I16), I16(0xFF)) for part in parts]
        if dtype == "i8":
            return [b.trunc(part, I8) for part in parts]
        narrow = [b.trunc(part, I16) for part in parts]
        return narrow if dtype == "i16" else [self.widen_f16(half) for half in narrow]

    def pack(self, dtype: str, elements: Sequence[ir.Value]) -> list[ir.Value]:
        """The inverse of `unpack`: floats are rounded to nearest even, "u8" keeps the low bits."""
        b = self.builder
        if dtype == "f32":
            return [b.bitcast(elements[0], I32)]
        if dtype == "i32":
            return [elements[0]]
        if dtype == "i64":
            return [b.trunc(elements[0], I32), b.trunc(b.lshr(elements[0], I64(32)), I32)]
        if dtype in ("bf16", "f16"):
            if len(elements) == 2:
                return self.ptx(f"cvt.rn.{dtype}x2.f32 $0, $2, $1;", [I32], elements)
            narrow = self.narrow_bf16 if dtype == "bf16" else self.narrow_f16
            return [b.zext(narrow(elements[0]), I32)]
        size = 16 if dtype == "i16" else 8
        word = I32(0)
        for k, element in enumerate(elements):
            if dtype == "u8":
                element = b.trunc(element, I8)
            part = b.zext(element, I32)
            word = b.or_(word, b.shl(part, I32(size * k))) if k else part
        return [word]
