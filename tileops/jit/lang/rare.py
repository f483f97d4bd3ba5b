"""Slow paths that run only where some lane needs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from tileops.jit.lang import context
from tileops.jit.lang.arith import any_true, select
from tileops.jit.lang.emitter import Emitter, Kind
from tileops.jit.lang.values import Lockstep, Value


def replace_where(rare: Any, usual: Sequence[Any], function: Callable[..., Sequence[Value]], *args: Any) -> list[Any]:
    """The values `usual`, with those of ``function(*args)`` in the lanes where the mask `rare` is true.

    `function` takes single values; it is emitted behind one branch for all members, which is taken only if there are
    such lanes. What it computes in the other lanes is ignored. Of vectors it becomes a function of the module that
    every place calls: a copy in each would be most of what a kernel takes to compile.
    """
    lockstep = isinstance(rare, Lockstep)
    count = len(rare.members) if lockstep else 1

    def member(value: Any, index: int) -> Any:
        return value.members[index] if isinstance(value, Lockstep) else value

    masks = [member(rare, i) for i in range(count)]
    build = context.emitter().builder
    needed = any_true(masks[0]).ir
    for mask in masks[1:]:
        needed = build.or_(needed, any_true(mask).ir)
    before = build.block
    slow, done = build.append_basic_block("rare"), build.append_basic_block("usual")
    build.cbranch(needed, slow, done).set_weights([1, 1 << 20])
    build.position_at_end(slow)
    columns = []  # by member: the value without and with the slow path
    for i, mask in enumerate(masks):
        old = [member(value, i) for value in usual]
        given = [member(arg, i) for arg in args]
        new = _called(function, given, [one.kind for one in old]) if mask.kind.is_vector else function(*given)
        columns.append([(one, select(mask, other, one)) for one, other in zip(old, new, strict=True)])
    build.branch(done)
    after = build.block
    build.position_at_end(done)
    results: list[list[Value]] = [[] for _ in usual]
    for row in columns:
        for found, (one, other) in zip(results, row, strict=True):
            phi = build.phi(one.kind.ir)
            phi.add_incoming(one.ir, before)
            phi.add_incoming(other.ir, after)
            found.append(Value(phi, one.kind))
    return [Lockstep(found) if lockstep else found[0] for found in results]


def _called(function: Callable[..., Sequence[Value]], args: Sequence[Value], results: Sequence[Kind]) -> list[Value]:
    """``function(*args)``, whose results have the kinds `results`, by a call of its code."""
    emit = context.emitter()
    build, kinds = emit.builder, tuple(arg.kind for arg in args)
    known: dict[Any, ir.Function] = build.module.__dict__.setdefault("tileops_rare", {})
    callee = known.get((function, kinds))
    if callee is None:
        together = ir.LiteralStructType([kind.ir for kind in results])
        type_ = ir.FunctionType(together, [kind.ir for kind in kinds])
        callee = ir.Function(build.module, type_, f"rare.{function.__name__}.{len(known)}")
        callee.linkage = "internal"
        for attribute in ("nounwind", "noinline", "cold"):
            callee.attributes.add(attribute)
        known[function, kinds] = callee
        inner = ir.IRBuilder(callee.append_basic_block("entry"))
        with context.emitting(Emitter(inner, emit.target)):
            values = function(*(Value(arg, kind) for arg, kind in zip(callee.args, kinds, strict=True)))
        packed = ir.Constant(together, ir.Undefined)
        for place, value in enumerate(values):
            packed = inner.insert_value(packed, value.ir, place)
        inner.ret(packed)
    answer = build.call(callee, [arg.ir for arg in args])
    return [Value(build.extract_value(answer, place), kind) for place, kind in enumerate(results)]


def repeat_while(
    condition: Callable[[Value], Value], start: Value, step: Callable[[Value], Value], name: str = "again"
) -> Value:
    """`step` applied to `start` once, and again while `condition` is true in some lane."""
    build = context.emitter().builder
    before = build.block
    loop, done = build.append_basic_block(name), build.append_basic_block("done")
    build.branch(loop)
    build.position_at_end(loop)
    phi = build.phi(start.kind.ir)
    phi.add_incoming(start.ir, before)
    result = step(Value(phi, start.kind))
    build.cbranch(any_true(condition(result)).ir, loop, done)
    phi.add_incoming(result.ir, build.block)
    build.position_at_end(done)
    return result


__all__ = ["repeat_while", "replace_where"]
