"""LLVM IR of the vocabulary for NVIDIA GPUs: scalars where the CPU has vectors.

NVVM accepts the LLVM 7 subset of intrinsics, and some of those (`ldexp`) end in an error, so everything that
has a PTX instruction of its own is written as that instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llvmlite import ir

from tileops.jit.lang.emitter import F32, I16, I32, I64, VOID, Emitter, Kind, constant

_REGISTERS = {I16: "h", I32: "r", I64: "l", F32: "f", ir.DoubleType(): "d"}


class CudaEmitter(Emitter):
    """Writes scalar instructions for NVVM."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        super().__init__(builder, None)  # type: ignore[arg-type]  # no CPU target: every use is overridden
        # NVVM's LLVM is older than the instruction `fneg`; it reads -0.0 - x as a negation.
        builder.fneg = lambda x: builder.fsub(ir.Constant(x.type, -0.0), x)

    @property
    def forms(self) -> Mapping[str, Callable[..., Any]]:  # type: ignore[override]
        """Exponentials and quotients by the GPU's own instructions."""
        from tileops.jit.lang.cuda_maths import FORMS

        return FORMS

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

    def unpack(self, dtype: str, word: ir.Value, count: int) -> list[ir.Value]:
        """The `count` elements of a 32-bit word, low half first, as float32."""
        b = self.builder
        if dtype == "f32":
            return [b.bitcast(word, F32)]
        if dtype == "bf16":
            halves = [b.shl(word, I32(16)), b.and_(word, I32(0xFFFF0000))]
            return [b.bitcast(half, F32) for half in halves[:count]]
        halves = [b.trunc(word, I16), b.trunc(b.lshr(word, I32(16)), I16)]
        return [self.widen_f16(half) for half in halves[:count]]

    def pack(self, dtype: str, elements: Sequence[ir.Value]) -> ir.Value:
        """One or two float32 values as the elements of a 32-bit word, rounded to nearest even."""
        b = self.builder
        if dtype == "f32":
            return b.bitcast(elements[0], I32)
        if len(elements) == 2:
            return self.ptx(f"cvt.rn.{dtype}x2.f32 $0, $2, $1;", [I32], elements)[0]
        narrow = self.narrow_bf16 if dtype == "bf16" else self.narrow_f16
        return b.zext(narrow(elements[0]), I32)
