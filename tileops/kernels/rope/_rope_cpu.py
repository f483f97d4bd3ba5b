"""Device side of the rotary position embeddings on the CPU. `rope_cpu` and `tables` explain the arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tileops.jit import lang
from tileops.kernels.rope.rope_cpu import STREAMED

#: Head vectors turned side by side: they share what is loaded of the table.
_HEADS = 4


@dataclass(frozen=True)
class _Turn:
    """Turns some head vectors of a token by its angles.

    Attributes:
        source, output: storage formats.
        heads: head vectors.
        streaming: whole vectors are stored past the caches.
        tails: head vectors may end within a vector.
    """

    source: str
    output: str
    heads: int = 1
    streaming: bool = False
    tails: bool = False

    def neox(self, t: Any, x: Any, x_step: Any, out: Any, out_step: Any, turns: Any, rotary_dim: Any) -> None:
        """Pairs (i, i + rotary_dim / 2)."""
        size, out_size = lang.itemsize(self.source), lang.itemsize(self.output)
        half = rotary_dim // 2

        def pairs(i: Any, mask: Any) -> None:
            cos, sin = t.load("f32", turns + i * 4, mask), t.load("f32", turns + (half + i) * 4, mask)
            stored: list[tuple[Any, Any]] = []
            for head in range(self.heads):
                source, target = x + x_step * head, out + out_step * head
                first = t.load(self.source, source + i * size, mask)
                second = t.load(self.source, source + (half + i) * size, mask)
                stored.append((target + i * out_size, lang.fma(first, cos, -(second * sin))))
                stored.append((target + (half + i) * out_size, lang.fma(second, cos, first * sin)))
            self._store(t, stored, mask)

        self._sweep(t, 0, half, pairs)

    def interleaved(
        self, t: Any, x: Any, x_step: Any, out: Any, out_step: Any, turns: Any, rotary_dim: Any, ahead: Any
    ) -> None:
        """Pairs (2i, 2i + 1): each element times its cosine, plus its partner times the sine, which is negative for
        the first of a pair. `ahead` is how many bytes later what will soon be read lies.
        """
        size, out_size = lang.itemsize(self.source), lang.itemsize(self.output)
        half = rotary_dim // 2
        swapped = [lane ^ 1 for lane in range(t.LANES)]
        twice = [lane // 2 for lane in range(t.LANES)]
        signs = t.vconst([-1.0, 1.0] * (t.LANES // 2))

        def of_pairs(table: Any, pair: Any, masked: bool) -> Any:
            """Values of LANES / 2 pairs, each in both lanes of its pair."""
            lanes = t.LANES // 2
            mask = t.mask_lt(half - pair, lanes) if masked else None
            values = t.load("f32", table + pair * 4, mask, lanes)
            return t.shuffle(values, values, twice)

        def elements(i: Any, mask: Any) -> None:
            cos = of_pairs(turns, i // 2, mask is not None)
            sin = of_pairs(turns + half * 4, i // 2, mask is not None) * signs
            stored: list[tuple[Any, Any]] = []
            for head in range(self.heads):
                if self.heads > 1:  # so many rows side by side are more than the hardware foresees
                    t.prefetch(x + x_step * head + i * size + ahead)
                value = t.load(self.source, x + x_step * head + i * size, mask)
                turned = lang.fma(value, cos, t.shuffle(value, value, swapped) * sin)
                stored.append((out + out_step * head + i * out_size, turned))
            self._store(t, stored, mask)

        self._sweep(t, 0, rotary_dim, elements)

    def copy(self, t: Any, x: Any, out: Any, start: Any, stop: Any) -> None:
        """Elements ``start .. stop - 1`` of one head vector, which do not turn."""
        size, out_size = lang.itemsize(self.source), lang.itemsize(self.output)

        def elements(i: Any, mask: Any) -> None:
            t.store(self.output, out + i * out_size, t.load(self.source, x + i * size, mask), mask)

        self._sweep(t, start, stop, elements)

    def _store(self, t: Any, places: Sequence[tuple[Any, Any]], mask: Any) -> None:
        """Stores ``(address, value)`` pairs: whole vectors together, which is cheaper for bfloat16."""
        if mask is None:
            addresses, values = zip(*places, strict=True)
            t.store_group(self.output, addresses, values, streaming=self.streaming)
        else:
            for address, value in places:
                t.store(self.output, address, value, mask)

    def _sweep(self, t: Any, start: Any, stop: Any, step: Callable[[Any, Any], None]) -> None:
        """``step(first element of a vector, mask)`` over elements ``start .. stop - 1``."""
        whole = start + (stop - start) // t.LANES * t.LANES
        t.loop(start, whole, t.LANES, body=lambda i, _: step(i, None))
        if self.tails:
            t.when(whole < stop, lambda: step(whole, t.mask_lt(stop - whole)))


def _rotation(dtype: str, layout: str, *, gathered: bool, partial: bool) -> Any:
    """A tile that turns the first `rotary_dim` elements of head vectors and, if `partial`, copies those up to `dim`."""
    source = "f32" if gathered else dtype
    single = _Turn(source, dtype, tails=True)
    several = _Turn(source, dtype, _HEADS)
    past_caches = _Turn(source, dtype, streaming=True)

    @lang.tile(
        "x:i64, x_step:i64, out:i64, out_step:i64, turns:i64, rotary_dim:i64, dim:i64, heads:i64, streaming:i64, "
        "ahead:i64"
    )
    def rotate(
        t: Any, x: Any, x_step: Any, out: Any, out_step: Any, turns: Any, rotary_dim: Any, dim: Any, heads: Any,
        streaming: Any, ahead: Any,
    ) -> None:  # fmt: skip
        def each(start: Any, stop: Any, turn: _Turn) -> None:
            def heads_from(head: Any, _: Any) -> None:
                places = x + head * x_step, x_step, out + head * out_step, out_step
                if layout == "neox":
                    turn.neox(t, *places, turns, rotary_dim)
                else:
                    turn.interleaved(t, *places, turns, rotary_dim, ahead)

            t.loop(start, stop, turn.heads, body=heads_from)

        def in_caches() -> None:
            run = rotary_dim // 2 if layout == "neox" else rotary_dim
            whole = t.select_value(run % t.LANES == 0, heads // _HEADS * _HEADS, t.const(0))
            each(0, whole, several)
            each(whole, heads, single)

        def rest(head: Any, _: Any) -> None:
            single.copy(t, x + head * x_step, out + head * out_step, rotary_dim, dim)

        if gathered:
            each(0, heads, single)
        elif dtype in STREAMED:
            t.when(streaming != 0, lambda: each(0, heads, past_caches), in_caches)
        else:
            in_caches()
        if partial:
            t.when(rotary_dim < dim, lambda: t.loop(0, heads, body=rest))

    return rotate


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
    checked = positions != "sequence"
    rotate = _rotation(dtype, layout, gathered=gathered, partial=checked)
    gather, position = _gather(dtype), _position(positions)
    item = lang.itemsize(dtype)
    load_i64, store_i64, store_fence = lang.load_i64, lang.store_i64, lang.store_fence

    def body(begin, end, tid, geometry, turns, ids, x, output, scratch, guard):
        seq_len, heads, dim = load_i64(geometry), load_i64(geometry + 8), load_i64(geometry + 16)
        rotary_dim = load_i64(geometry + 24)
        batch_step, seq_step = load_i64(geometry + 32), load_i64(geometry + 40)
        head_step, step = load_i64(geometry + 48), load_i64(geometry + 56)
        id_step = load_i64(geometry + 64)
        streaming = 1 if load_i64(geometry + 72) != 0 and output & 63 == 0 else 0
        row = dim * item
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
            target = output + unit * heads * row
            if gathered:
                for _ in range(heads):
                    gather(vector, dim, step, own)
                    rotate(own, 0, target, row, angles, rotary_dim, dim, 1, 0, 0)
                    vector += head_step
                    target += row
            else:
                rotate(vector, head_step, target, row, angles, rotary_dim, dim, heads, streaming, seq_step)
            place += 1
            if place == seq_len:
                place = 0
                batch += 1
        if streaming:
            store_fence()

    return body
