"""Tiles: blocks of straight-line and loop code, written by Python loops instead of unrolled source text.

A tile is an ordinary Python function that gets a `TileBuilder` and tracer values. It becomes one function of
the kernel, called from Numba bodies with scalars. Python loops unroll; `TileBuilder.loop` makes a loop of the
machine.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from llvmlite import ir

from tileops.jit.lang import arith, context, crosslane, memory
from tileops.jit.lang.emitter import VOID, Emitter, Kind, constant
from tileops.jit.lang.values import Lockstep, Value, as_kind, common, i64
from tileops.jit.lang.words import Word, numba_type


class TileBuilder:
    """What a tile function writes with; every method emits code at the current place.

    Vectors have `LANES` lanes unless said otherwise. Arithmetic on values uses Python operators, and every
    word of `tileops.jit.lang` accepts the values as well.
    """

    def __init__(self) -> None:
        self.LANES = context.emitter().lanes

    @property
    def _builder(self) -> ir.IRBuilder:
        return context.emitter().builder

    # -- constants -----------------------------------------------------------------------------------------

    def const(self, value: int) -> Value:
        """A scalar i64."""
        return as_kind(value, Kind("i64"))

    def vconst(self, value: float | Sequence[float], lanes: int | None = None) -> Value:
        """A float32 vector: one number in every lane, or one number per lane."""
        if isinstance(value, Sequence):
            return Value(ir.Constant(Kind("f32", len(value)).ir, [float(item) for item in value]))
        return as_kind(value, Kind("f32", lanes or self.LANES))

    def iconst(self, value: int | Sequence[int], lanes: int | None = None) -> Value:
        """An int32 vector: one number in every lane, or one number per lane."""
        if isinstance(value, Sequence):
            return Value(ir.Constant(Kind("i32", len(value)).ir, list(value)))
        return as_kind(value, Kind("i32", lanes or self.LANES))

    def splat(self, value: Value, lanes: int | None = None) -> Value:
        """A scalar in every lane; its element type stays (i64 becomes i32)."""
        element = "i32" if value.kind.element == "i64" else value.kind.element
        return as_kind(value, Kind(element, lanes or self.LANES))

    # -- memory --------------------------------------------------------------------------------------------

    def load(self, dtype: str, addr: Value, mask: Value | None = None, lanes: int | None = None) -> Value:
        """Loads elements of a storage format as float32 lanes; lanes outside `mask` are 0."""
        return memory.load_as(dtype, addr, lanes or self.LANES, mask)

    def store(
        self, dtype: str, addr: Value, value: Value, mask: Value | None = None, *, streaming: bool = False
    ) -> None:
        """Stores float32 lanes rounded to a storage format; for `streaming` see `store_group`."""
        memory.store_as(dtype, addr, value, mask, streaming=streaming)

    def store_group(
        self, dtype: str, addrs: Sequence[Value], values: Sequence[Value], *, streaming: bool = False
    ) -> None:
        """Stores several vectors, rounded to a storage format; cheaper than one by one for bfloat16. With `streaming`
        past the caches; see `memory.store_group`.
        """
        memory.store_group(dtype, addrs, values, streaming=streaming)

    def load_scalar(self, dtype: str, addr: Value) -> Value:
        """One element as a float32 scalar."""
        return memory.load_as(dtype, addr, 0)

    def store_scalar(self, dtype: str, addr: Value, value: Value) -> None:
        """One float32 scalar, rounded to a storage format."""
        memory.store_as(dtype, addr, as_kind(value, Kind("f32")))

    def load_splat(self, dtype: str, addr: Value, lanes: int | None = None) -> Value:
        """One element in every lane."""
        one = memory.load_as(dtype, addr, 0)
        return self.spread(one.kind.element, one, lanes or self.LANES)

    def load_scalar_word(self, element: str, addr: Value, lanes: int) -> Value:
        """A scalar of eight bytes in every lane: float32 in the lower half, or int64 cut to lanes of `element`."""
        if element == "f32":
            return self.load_splat("f32", addr, lanes)
        word = memory.load_i64(addr)
        return self.spread(element, word != 0 if element == "b1" else word, lanes)

    def spread(self, element: str, value: Value | float, lanes: int) -> Value:
        """`value` as lanes of `element`: a vector of that kind stays, a scalar or number is broadcast."""
        return as_kind(value, Kind(element, lanes))

    def numbers(self, first: Value, count: int, lanes: int) -> Any:
        """The int64 numbers from `first` on, in `count` vectors side by side."""
        build, kind = self._builder, Kind("i64", lanes)
        base = self.spread("i64", first, lanes).ir
        members = [
            Value(build.add(base, ir.Constant(kind.ir, list(range(u * lanes, (u + 1) * lanes))))) for u in range(count)
        ]
        return Lockstep(members) if count > 1 else members[0]

    def narrow_group(self, dtype: str, values: Sequence[Value]) -> list[Value]:
        """Vectors rounded to a storage format, for `store_words`; cheaper than one by one for bfloat16."""
        return memory.narrow_group(dtype, values)

    def store_narrowed(self, dtype: str, addr: Value, values: Sequence[Value]) -> None:
        """Stores what `narrow_group` made of vectors, one after another from `addr` on."""
        memory.store_narrowed(dtype, addr, values)

    def load_words(self, addr: Value, mask: Value | None = None, lanes: int | None = None) -> Value:
        """Raw 32-bit words, as int32 lanes; lanes outside `mask` are 0."""
        kind = Kind("i32", lanes or self.LANES)
        return Value(context.emitter().load(kind, i64(addr).ir, None if mask is None else mask.ir))

    def store_words(self, addr: Value, value: Value, mask: Value | None = None, *, streaming: bool = False) -> None:
        """Stores lanes, or a scalar, unchanged; for `streaming` see `store_group`."""
        context.emitter().store(i64(addr).ir, value.ir, None if mask is None else mask.ir, streaming=streaming)

    def load_integers(self, element: str, addr: Value, mask: Value | None = None, lanes: int | None = None) -> Value:
        """Raw ``"i8"``, ``"i16"``, ``"i32"`` or ``"i64"`` elements as lanes of that width; ``lanes=0``: one.

        Arithmetic on them wraps. `store_words` stores them.
        """
        kind = Kind(element, self.LANES if lanes is None else lanes)
        return Value(context.emitter().load(kind, i64(addr).ir, None if mask is None else mask.ir))

    def splat_integer(self, element: str, addr: Value, lanes: int) -> Value:
        """One such element in every lane."""
        return Value(context.emitter().splat(self.load_integers(element, addr, lanes=0).ir, lanes))

    def load_halves(self, addr: Value, mask: Value | None = None, lanes: int | None = None) -> Value:
        """Raw 16-bit elements, zero-extended to int32 lanes; lanes outside `mask` are 0."""
        kind = Kind("i16", lanes or self.LANES)
        bits = context.emitter().load(kind, i64(addr).ir, None if mask is None else mask.ir)
        return Value(self._builder.zext(bits, kind.of("i32").ir))

    def load_splat_word(self, addr: Value, lanes: int | None = None) -> Value:
        """One 32-bit word (for instance a pair of bfloat16) in every lane."""
        return self.splat(Value(context.emitter().load(Kind("i32"), i64(addr).ir)), lanes)

    def load_i64(self, addr: Value) -> Value:
        return memory.load_i64(addr)

    def load_i32(self, addr: Value) -> Value:
        return memory.load_i32(addr)

    def store_i64(self, addr: Value, value: Value) -> None:
        memory.store_i64(addr, value)

    def prefetch(self, addr: Value, *, write: bool = False, locality: int = 3) -> None:
        """Hints that the cache line at `addr` will be used."""
        context.emitter().prefetch(i64(addr).ir, write=write, locality=locality)

    def alloca(self, nbytes: int) -> Value:
        """The address of `nbytes` on the stack, 64-byte aligned."""
        return memory.alloca_words(-(-nbytes // 8)).function()

    # -- arithmetic ----------------------------------------------------------------------------------------

    def fma(self, a: Any, b: Any, c: Any) -> Value:
        """``a * b + c``."""
        return arith.fma(a, b, c)

    def dot_bf16(self, acc: Value, a: Value, b: Value) -> Value:
        """``acc + a.lo * b.lo + a.hi * b.hi`` per lane; `a`, `b` are words of two bfloat16."""
        return Value(context.emitter().dot_bf16(acc.ir, a.ir, b.ir), acc.kind)

    def min(self, a: Value, b: Value | int) -> Value:
        """The smaller; of vectors as `lang.minq`."""
        return self._extreme(a, b, "<")

    def max(self, a: Value, b: Value | int) -> Value:
        """The larger; of vectors as `lang.maxq`."""
        return self._extreme(a, b, ">")

    def _extreme(self, a: Any, b: Any, relation: str) -> Value:
        a, b = common(a, b)
        compare = self._builder.fcmp_ordered if a.kind.is_float else self._builder.icmp_signed
        return Value(self._builder.select(compare(relation, a.ir, b.ir), a.ir, b.ir), a.kind)

    def select(self, mask: Value, a: Any, b: Any) -> Value:
        """Per lane `a` where `mask` is true, else `b`."""
        return arith.select(mask, a, b)

    def select_value(self, cond: Value, a: Any, b: Any) -> Value:
        """`a` if the scalar condition is true, else `b` (both are computed)."""
        a, b = common(a, b)
        return Value(self._builder.select(cond.ir, a.ir, b.ir), a.kind)

    # -- lanes ---------------------------------------------------------------------------------------------

    def mask_lt(self, n: Value | int, lanes: int | None = None, start: int = 0) -> Value:
        """The mask of lanes with ``start + lane < n``."""
        return arith.mask_below(n, lanes or self.LANES, start)

    def shuffle(self, x: Value, y: Value, indices: Sequence[int]) -> Value:
        """Lanes of `x` (``0 .. n - 1``) and `y` (``n ..``) picked by `indices`."""
        return crosslane.shuffle(x, y, indices)

    def transpose(self, rows: Sequence[Value]) -> list[Value]:
        """See `lang.transpose`."""
        return crosslane.transpose(rows)

    def reduce_transpose(self, vectors: Sequence[Value]) -> Value:
        """See `lang.reduce_transpose`."""
        return crosslane.reduce_transpose(vectors)

    def bitcast(self, value: Value, element: str) -> Value:
        """The same bits as lanes of another element type (``"i32"``, ``"f32"``, ``"i16"``, ...)."""
        bits = value.kind.lanes * _width(value.kind.element)
        kind = Kind(element, bits // _width(element))
        return Value(self._builder.bitcast(value.ir, kind.ir), kind)

    # -- control flow --------------------------------------------------------------------------------------

    def loop(
        self,
        start: Value | int,
        stop: Value | int,
        step: int | Value = 1,
        carried: Sequence[Value] = (),
        body: Callable[..., Sequence[Value] | None] | None = None,
    ) -> list[Value]:
        """``for i in range(start, stop, step)`` with values carried from step to step.

        Args:
            start: first index, scalar.
            stop: the loop ends before this.
            step: positive.
            carried: the values on entry.
            body: ``body(i, carried)`` returns the values of the next step, of the same kinds.

        Returns:
            The carried values after the last step (those on entry if there was none).
        """
        if body is None:
            raise TypeError("loop needs a body")
        build = self._builder
        first, last, step = i64(start), i64(stop), i64(step)
        before = build.block
        head = build.append_basic_block("loop")
        done = build.append_basic_block("done")
        enters = build.icmp_signed("<", first.ir, last.ir)
        build.cbranch(enters, head, done)
        build.position_at_end(head)
        index = build.phi(first.ir.type)
        index.add_incoming(first.ir, before)
        phis = []
        for value in carried:
            phi = build.phi(value.ir.type)
            phi.add_incoming(value.ir, before)
            phis.append(phi)
        inside = [Value(phi, value.kind) for phi, value in zip(phis, carried, strict=True)]
        after = list(body(Value(index), inside) or ())
        if len(after) != len(inside):
            raise TypeError(f"the loop carries {len(inside)} values, but its body returned {len(after)}")
        after = [as_kind(value, old.kind) for value, old in zip(after, inside, strict=True)]
        following = build.add(index, step.ir)
        latch = build.block
        index.add_incoming(following, latch)
        for phi, value in zip(phis, after, strict=True):
            phi.add_incoming(value.ir, latch)
        build.cbranch(build.icmp_signed("<", following, last.ir), head, done)
        build.position_at_end(done)
        results = []
        for value, new in zip(carried, after, strict=True):
            merged = build.phi(value.ir.type)
            merged.add_incoming(value.ir, before)
            merged.add_incoming(new.ir, latch)
            results.append(Value(merged, value.kind))
        return results

    def when(
        self,
        cond: Value | bool,
        then: Callable[[], Any],
        orelse: Callable[[], Any] | None = None,
    ) -> list[Value]:
        """Runs `then` if the scalar condition holds, else `orelse`.

        Either both return the same number of values (of the same kinds), which are merged and returned, or
        neither returns any (for stores).
        """
        if isinstance(cond, bool):
            chosen = then if cond else orelse
            return _values(chosen() if chosen else None)
        build = self._builder
        yes, no = build.append_basic_block("then"), build.append_basic_block("else")
        end = build.append_basic_block("end")
        build.cbranch(cond.ir, yes, no)
        ends, results = [], []
        for block, branch in ((yes, then), (no, orelse)):
            build.position_at_end(block)
            results.append(_values(branch() if branch else None))
            ends.append(build.block)
            build.branch(end)
        build.position_at_end(end)
        if len(results[0]) != len(results[1]):
            raise TypeError(f"one branch returned {len(results[0])} values, the other {len(results[1])}")
        merged = []
        for pair in zip(*results, strict=True):
            phi = build.phi(pair[0].ir.type)
            for value, block in zip(pair, ends, strict=True):
                phi.add_incoming(value.ir, block)
            merged.append(Value(phi, pair[0].kind))
        return merged

    def __getattr__(self, name: str) -> Any:
        # The AMX instructions, x86 tile registers, are a module of their own.
        if name.startswith("amx_"):
            module = importlib.import_module("tileops.jit.lang.amx")
            return functools.partial(getattr(module, name.removeprefix("amx_")), self)
        raise AttributeError(name)


def _values(result: Any) -> list[Value]:
    if result is None:
        return []
    return [result] if isinstance(result, Value) else list(result)


def _width(element: str) -> int:
    return int(element[1:])


def _parse(signature: str) -> list[tuple[str, Kind]]:
    parameters = []
    for item in filter(None, (part.strip() for part in signature.split(","))):
        match = re.fullmatch(r"(\w+)\s*:\s*(i64|f32|f64|vec|ivec|mask)", item)
        if match is None:
            raise ValueError(f"parameter {item!r}: expected 'name: i64|f32|f64|vec|ivec|mask'")
        parameters.append((match[1], _named(match[2])))
    return parameters


def _named(name: str) -> Kind:
    vectors = {"vec": "f32", "ivec": "i32", "mask": "b1"}
    return Kind(vectors[name], context.lanes()) if name in vectors else Kind(name)


def tile(signature: str, *, returns: str = "void", inline: bool | None = None) -> Callable[[Callable[..., Any]], Word]:
    """Decorator: makes a word of a tile function, to be called from Numba bodies.

    Args:
        signature: the parameters, ``"K: i64, a: i64, x: f32"``; kinds are ``i64``, ``f32``, ``f64``, ``vec``,
            ``ivec`` and ``mask``.
        returns: ``"void"`` or one of these kinds.
        inline: True forces the code into every caller, False keeps it a function that they call; otherwise LLVM
            decides.

    Apply it inside the factory of a kernel: the function may use what is known there, by closure.
    """

    def decorate(function: Callable[..., Any]) -> Word:
        parameters = _parse(signature)
        kinds = [kind for _, kind in parameters]
        result = None if returns == "void" else _named(returns)

        def call(*args: Any) -> Value | None:
            emit = context.emitter()
            callee = _define(emit, function, kinds, result, inline)
            given = [as_kind(arg, kind) for arg, kind in zip(args, kinds, strict=True)]
            value = emit.builder.call(callee, [arg.ir for arg in given])
            return None if result is None else Value(value, result)

        functools.update_wrapper(call, function)
        numba_result = None if result is None else numba_type(result)
        return Word(call, parameters=[numba_type(kind) for kind in kinds], returns=numba_result)

    return decorate


def _define(
    emit: Emitter, function: Callable[..., Any], kinds: Sequence[Kind], result: Kind | None, inline: bool | None
) -> ir.Function:
    """The LLVM function of a tile in the module being built, emitted on first use."""
    module = emit.builder.module
    tiles: dict[Any, ir.Function] = module.__dict__.setdefault("tileops_tiles", {})
    if function in tiles:
        return tiles[function]
    type_ = ir.FunctionType(VOID if result is None else result.ir, [kind.ir for kind in kinds])
    callee = ir.Function(module, type_, f"tile.{function.__name__}.{len(tiles)}")
    callee.linkage = "internal"
    callee.attributes.add("nounwind")
    if inline is not None:
        callee.attributes.add("alwaysinline" if inline else "noinline")
    tiles[function] = callee
    builder = ir.IRBuilder(callee.append_basic_block("entry"))
    with _rejecting_foreign_values(function), context.emitting(Emitter(builder, emit.target)):
        value = function(TileBuilder(), *(Value(arg, kind) for arg, kind in zip(callee.args, kinds, strict=True)))
        if result is None:
            builder.ret_void()
        else:
            builder.ret(as_kind(value, result).ir)
    return callee


@contextlib.contextmanager
def _rejecting_foreign_values(function: Callable[..., Any]) -> Iterator[None]:
    try:
        yield
    except TypeError as error:
        error.add_note(f"in the tile {function.__qualname__!r}")
        raise


__all__ = ["TileBuilder", "constant", "tile"]
