"""Device side of the rotary position embeddings on the CPU. `rope_cpu` and `tables` explain the arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tileops.jit import lang


def _neox(source: str, output: str) -> Any:
    """A tile that turns the first `rotary_dim` elements of one head vector, pairs (i, i + rotary_dim / 2)."""
    size, output_size = lang.itemsize(source), lang.itemsize(output)

    @lang.tile("x:i64, out:i64, turns:i64, rotary_dim:i64")
    def turn(t: Any, x: Any, out: Any, turns: Any, rotary_dim: Any) -> None:
        half = rotary_dim // 2
        whole = half // t.LANES * t.LANES

        def pairs(i: Any, mask: Any = None) -> None:
            cos, sin = t.load("f32", turns + i * 4, mask), t.load("f32", turns + (half + i) * 4, mask)
            first, second = t.load(source, x + i * size, mask), t.load(source, x + (half + i) * size, mask)
            turned = [lang.fma(first, cos, -(second * sin)), lang.fma(second, cos, first * sin)]
            addresses = [out + i * output_size, out + (half + i) * output_size]
            if mask is None:
                t.store_group(output, addresses, turned)
            else:
                for address, value in zip(addresses, turned, strict=True):
                    t.store(output, address, value, mask)

        t.loop(0, whole, t.LANES, body=lambda i, _: pairs(i))
        t.loop(whole, half, t.LANES, body=lambda i, _: pairs(i, t.mask_lt(half - i)))

    return turn


def _interleaved(source: str, output: str) -> Any:
    """A tile that turns one head vector, pairs (2i, 2i + 1): each element times its cosine, plus its
    partner times the sine, which is negative for the first of a pair.
    """
    size, output_size = lang.itemsize(source), lang.itemsize(output)

    @lang.tile("x:i64, out:i64, turns:i64, rotary_dim:i64")
    def turn(t: Any, x: Any, out: Any, turns: Any, rotary_dim: Any) -> None:
        half = rotary_dim // 2
        whole = rotary_dim // t.LANES * t.LANES
        swapped = [lane ^ 1 for lane in range(t.LANES)]
        twice = [lane // 2 for lane in range(t.LANES)]
        signs = t.vconst([-1.0, 1.0] * (t.LANES // 2))

        def of_pairs(table: Any, pair: Any, masked: bool) -> Any:
            """Values of LANES / 2 pairs, each in both lanes of its pair."""
            lanes = t.LANES // 2
            mask = t.mask_lt(half - pair, lanes) if masked else None
            values = t.load("f32", table + pair * 4, mask, lanes)
            return t.shuffle(values, values, twice)

        def elements(i: Any, mask: Any = None) -> None:
            cos = of_pairs(turns, i // 2, mask is not None)
            sin = of_pairs(turns + half * 4, i // 2, mask is not None) * signs
            value = t.load(source, x + i * size, mask)
            turned = lang.fma(value, cos, t.shuffle(value, value, swapped) * sin)
            if mask is None:
                t.store_group(output, [out + i * output_size], [turned])
            else:
                t.store(output, out + i * output_size, turned, mask)

        t.loop(0, whole, t.LANES, body=lambda i, _: elements(i))
        t.loop(whole, rotary_dim, t.LANES, body=lambda i, _: elements(i, t.mask_lt(rotary_dim - i)))

    return turn


def _copy(source: str, output: str) -> Any:
    """A tile that copies elements ``start .. stop - 1`` of one head vector."""
    size, output_size = lang.itemsize(source), lang.itemsize(output)

    @lang.tile("x:i64, out:i64, start:i64, stop:i64")
    def copy(t: Any, x: Any, out: Any, start: Any, stop: Any) -> None:
        whole = start + (stop - start) // t.LANES * t.LANES

        def elements(i: Any, mask: Any = None) -> None:
            t.store(output, out + i * output_size, t.load(source, x + i * size, mask), mask)

        t.loop(start, whole, t.LANES, body=lambda i, _: elements(i))
        t.loop(whole, stop, t.LANES, body=lambda i, _: elements(i, t.mask_lt(stop - i)))

    return copy


def _gather(source: str) -> Any:
    """A tile that copies one head vector with a step between its elements into float32 scratch."""

    @lang.tile("x:i64, n:i64, step:i64, target:i64")
    def gather(t: Any, x: Any, n: Any, step: Any, target: Any) -> None:
        t.loop(0, n, body=lambda i, _: t.store_scalar("f32", target + i * 4, t.load_scalar(source, x + i * step)))

    return gather


def _position(positions: str) -> Any:
    """A tile: the position of token `unit`, from its place in the sequence or from its id."""

    @lang.tile("unit:i64, place:i64, ids:i64, id_step:i64", returns="i64", inline=True)
    def position(t: Any, unit: Any, place: Any, ids: Any, id_step: Any) -> Any:
        if positions == "sequence":
            return place
        address = ids + unit * id_step
        return t.load_i64(address) if positions == "i64" else t.load_i32(address)

    return position


def tokens(*, dtype: str, layout: str, positions: str, gathered: bool) -> Callable[..., None]:
    """One unit is a token: all its head vectors turn by the same angles.

    Args:
        dtype: storage format of input and output.
        layout: "neox" or "interleaved".
        positions: "sequence", or the format of the position ids.
        gathered: head vectors have a step between their elements.
    """
    source = "f32" if gathered else dtype
    turn = (_neox if layout == "neox" else _interleaved)(source, dtype)
    copy, gather, position = _copy(source, dtype), _gather(dtype), _position(positions)
    item = lang.itemsize(dtype)
    checked = positions != "sequence"
    load_i64, store_i64 = lang.load_i64, lang.store_i64

    def body(begin, end, tid, geometry, turns, ids, x, output, scratch, guard):
        seq_len, heads, dim = load_i64(geometry), load_i64(geometry + 8), load_i64(geometry + 16)
        rotary_dim = load_i64(geometry + 24)
        batch_step, seq_step = load_i64(geometry + 32), load_i64(geometry + 40)
        head_step, step = load_i64(geometry + 48), load_i64(geometry + 56)
        id_step = load_i64(geometry + 64)
        own = scratch + tid * dim * 4
        limit = load_i64(guard + 8) if checked else 0
        batch = begin // seq_len
        place = begin - batch * seq_len
        for unit in range(begin, end):
            at = position(unit, place, ids, id_step)
            if checked and (at < 0 or at >= limit):
                store_i64(guard, 1)
                return
            angles = turns + at * rotary_dim * 4
            vector = x + batch * batch_step + place * seq_step
            target = output + unit * heads * dim * item
            for _ in range(heads):
                if gathered:
                    gather(vector, dim, step, own)
                    turn(own, target, angles, rotary_dim)
                    copy(own, target, rotary_dim, dim)
                else:
                    turn(vector, target, angles, rotary_dim)
                    copy(vector, target, rotary_dim, dim)
                vector += head_step
                target += dim * item
            place += 1
            if place == seq_len:
                place = 0
                batch += 1

    return body
