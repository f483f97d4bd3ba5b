"""Attention of a few queries on the CPU: what runs on the device.

Time goes into reading keys and values once. The keys are cut into chunks, chunks go to threads, and the results
of the chunks are merged in a fixed order (Dao et al., "Flash-Decoding", 2023). Within a chunk, blocks of keys
small enough for the translation cache are visited by all heads before the next block, with an online softmax.
Vectors run along head_dim; query heads of a group share every key and value that is loaded.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

from tileops.jit import lang
from tileops.kernels.attention import _panels
from tileops.kernels.attention._panels import ROW_BYTES

_LOG2E = math.log2(math.e)

#: Modes of a launch: chunks into partial results, the merge of partial results, or (on one thread) both.
CHUNKS, MERGE, BOTH = 0, 1, 2
#: Layouts of keys and values: whole tokens with little between them, whole heads, or neither.
TOKENS, HEADS, SPARSE = 0, 1, 2
#: Bytes before the output of a partial result: its maximum and its sum.
FACTS_BYTES = 64
#: Bytes of partial results and scratch up to which a serial launch needs no memory from its caller.
STACK_BYTES = 16384

lesser = lang.traced(lambda a, b: lang.select(a < b, a, b), 2)
greater = lang.traced(lambda a, b: lang.select(a > b, a, b), 2)


def attend(dtype: str, out_dtype: str, form: str, head_dim: int, heads: int):
    """Body over (batch entry, chunk of keys); to merge, over (batch entry, key/value head).

    Args:
        dtype: storage format of q, k and v, whose head vectors are contiguous.
        out_dtype: storage format of o.
        form: "pairs" takes scores from words of two bfloat16, "floats" from float32.
        head_dim: elements of a head vector, even for 16-bit formats.
        heads: query heads of a group that are computed together.

    `geometry` is ``B, S_q, S_kv, H_kv, group, chunks, keys per chunk, keys per block, window_left, window_right``
    (-1 for all, the causal limit folded into window_right), the byte steps of q, k and v over B, S, H, and the layout.
    `partial` has a record per batch entry, chunk, key/value head and query, the group padded to a multiple of
    `heads`: maximum, sum and unscaled output. `scratch` is per thread. Both are 0 where the stack suffices.
    """
    load_i64 = lang.load_i64
    st1, ld1 = lang.store_scalar("f32"), lang.load_scalar("f32")
    size, out_size = lang.itemsize(dtype), lang.itemsize(out_dtype)
    padded = padded_head_dim(head_dim, lang.lanes())
    copy_row, fill_row = _panels.copy_row(dtype, form, dense=True), _panels.fill_row()
    store_row = _panels.store_row(out_dtype)
    ahead = _ahead(head_dim * size)
    score, cap_scores, largest = _scores(dtype, form, head_dim, heads), _cap_scores(), _largest()
    soften, weighted_values = _soften(dtype), _weighted_values(dtype, head_dim, heads)
    decay_of = lang.traced(lambda old, new: lang.exp2_fast(old - new), 2)
    merge = _merge(dtype, padded)
    stack = lang.alloca_words(STACK_BYTES // 8)
    query_bytes = padded * (2 if form == "pairs" else 4)
    record = FACTS_BYTES + padded * 4
    LOG2E = _LOG2E

    def body(begin, end, tid, mode, scale, cap, q, k, v, o, partial, scratch, scratch_bytes, geometry):
        B, S_q, S_kv = load_i64(geometry), load_i64(geometry + 8), load_i64(geometry + 16)
        H_kv, group, chunks = load_i64(geometry + 24), load_i64(geometry + 32), load_i64(geometry + 40)
        chunk, block = load_i64(geometry + 48), load_i64(geometry + 56)
        left, right = load_i64(geometry + 64), load_i64(geometry + 72)
        q_b, q_s, q_h = load_i64(geometry + 80), load_i64(geometry + 88), load_i64(geometry + 96)
        k_b, k_s, k_h = load_i64(geometry + 104), load_i64(geometry + 112), load_i64(geometry + 120)
        v_b, v_s, v_h = load_i64(geometry + 128), load_i64(geometry + 136), load_i64(geometry + 144)
        layout = load_i64(geometry + 152)
        shift = S_kv - S_q
        columns = (group + heads - 1) // heads * heads
        head_queries = S_q * columns
        chunk_step = H_kv * head_queries * record
        row = block * 4
        work = scratch + tid * scratch_bytes
        if partial == 0:
            partial = stack()
            work = partial + B * chunks * chunk_step
        scores = work
        queries = scores + heads * row

        for unit in range(begin, end if mode != MERGE else begin):
            batch, start = unit // chunks, unit % chunks * chunk
            stop = lesser(start + chunk, S_kv)
            records = partial + unit * chunk_step
            for i in range(H_kv * head_queries):
                head, s, g = i // head_queries, i // columns % S_q, i % columns
                to = queries + i * query_bytes
                if g < group:
                    from_head = q + batch * q_b + s * q_s + (head * group + g) * q_h
                    copy_row(from_head, size, head_dim, padded, to, ROW_BYTES, 0, 0)
                else:
                    fill_row(query_bytes // 4, to, ROW_BYTES)
                st1(records + i * record, -math.inf)
                st1(records + i * record + 4, 0.0)
                fill_row(padded, records + i * record + FACTS_BYTES, ROW_BYTES)
            batch_keys, batch_values = k + batch * k_b, v + batch * v_b
            interleaved = layout == TOKENS and -k_s < v - k < k_s
            for head in range(H_kv):
                ahead(layout, head, H_kv, batch_keys, k_s, k_h, start, lesser(start + block, stop))
                if not interleaved:
                    ahead(layout, head, H_kv, batch_values, v_s, v_h, start, lesser(start + block, stop))
            for first in range(start, stop, block):
                last = lesser(first + block, stop)
                after = lesser(last + block, stop)
                for head in range(H_kv):
                    ahead(layout, head, H_kv, batch_keys, k_s, k_h, last, after)
                    if not interleaved:
                        ahead(layout, head, H_kv, batch_values, v_s, v_h, last, after)
                    head_keys = batch_keys + head * k_h
                    head_values = batch_values + head * v_h
                    for s in range(S_q):
                        low, high = first, last
                        if left >= 0:
                            low = greater(low, s + shift - left)
                        if right >= 0:
                            high = lesser(high, s + shift + right + 1)
                        count = high - low
                        if count <= 0:
                            continue
                        keys, values = head_keys + low * k_s, head_values + low * v_s
                        for g in range(0, columns, heads):
                            i = (head * S_q + s) * columns + g
                            query = queries + i * query_bytes
                            out = records + i * record
                            score(count, keys, k_s, query, scores, row, scale * LOG2E)
                            for h in range(heads):
                                if cap > 0.0:
                                    cap_scores(count, scores + h * row, cap * LOG2E)
                                old = ld1(out + h * record)
                                peak = lang.maxq(largest(count, scores + h * row), old)
                                base = 0.0 if peak == -math.inf else peak
                                decay = decay_of(old, base)
                                total = soften(count, scores + h * row, base)
                                st1(out + h * record, peak)
                                st1(out + h * record + 4, lang.fma(ld1(out + h * record + 4), decay, total))
                                st1(out + h * record + 8, decay)
                            weighted_values(count, values, v_s, scores, row, out + FACTS_BYTES, record)
        if mode != CHUNKS:
            for unit in range(begin if mode == MERGE else 0, end if mode == MERGE else B * H_kv):
                batch, head = unit // H_kv, unit % H_kv
                records = partial + batch * chunks * chunk_step + head * head_queries * record
                for i in range(S_q * group):
                    s, g = i // group, i % group
                    merged = records + (s * columns + g) * record
                    merge(chunks, merged, chunk_step)
                    to = ((batch * S_q + s) * H_kv + head) * group + g
                    store_row(merged + FACTS_BYTES, head_dim, o + to * head_dim * out_size)

    return body


def padded_head_dim(head_dim: int, lanes: int) -> int:
    """Elements of a head vector in scratch: whole vectors, also of words that are pairs."""
    return -(-head_dim // (2 * lanes)) * 2 * lanes


def _scores(dtype: str, form: str, head_dim: int, heads: int):
    """``score(n, keys, step, queries, scores, row, scale)``: scaled scores of `heads` queries.

    The `n` keys are `step` bytes apart, queries follow each other in scratch, scores of one query are a row; up
    to the next whole vector they are -inf.
    """
    lanes = lang.lanes()
    pairs = form == "pairs"
    size, per_vector = lang.itemsize(dtype), lanes * (2 if pairs else 1)
    vectors = -(-head_dim // per_vector)
    query_bytes = padded_head_dim(head_dim, lanes) * (2 if pairs else 4)
    together = 4 if lanes == 16 else 2  # keys whose sums are in registers at once

    def load_key(t, addr, vector):
        left = head_dim - vector * per_vector
        place = addr + vector * per_vector * size
        mask = None if left >= per_vector else t.mask_lt(left // 2 if pairs else left)
        return t.load_words(place, mask) if pairs else t.load(dtype, place, mask)

    def fold(t, vectors, distance):
        """Halves the number of vectors, and the lanes over which each of them still has to be summed."""
        low = [j if not j & distance else lanes + (j ^ distance) for j in range(lanes)]
        high = [j | distance if not j & distance else lanes + j for j in range(lanes)]
        paired = zip(vectors[::2], vectors[1::2], strict=True)
        return [t.shuffle(x, y, low) + t.shuffle(x, y, high) for x, y in paired]

    @lang.tile("n: i64, keys: i64, step: i64, queries: i64, scores: i64, row: i64, scale: f32")
    def score(t, n, keys, step, queries, scores, row, scale):
        scales = t.splat(scale)

        def block(i, _):
            rows = [keys + step * t.min(i + r, n - 1) for r in range(lanes)]
            partial: list[list[Any]] = [[] for _ in range(heads)]
            for first in range(0, lanes, together):
                sums = [[t.vconst(0.0)] * together for _ in range(heads)]
                for vector in range(vectors):
                    key = [load_key(t, rows[first + r], vector) for r in range(together)]
                    for h in range(heads):
                        place = queries + h * query_bytes + vector * lanes * 4
                        query = t.load_words(place) if pairs else t.load("f32", place)
                        for r in range(together):
                            add = t.dot_bf16 if pairs else lambda acc, a, b: t.fma(a, b, acc)
                            sums[h][r] = add(sums[h][r], query, key[r])
                for h in range(heads):
                    distance = 1
                    while len(sums[h]) > 1:
                        sums[h] = fold(t, sums[h], distance)
                        distance *= 2
                    partial[h] += sums[h]
            for h in range(heads):
                distance = together
                while len(partial[h]) > 1:
                    partial[h] = fold(t, partial[h], distance)
                    distance *= 2
                value = t.select(t.mask_lt(n - i), partial[h][0] * scales, -math.inf)
                t.store("f32", scores + row * h + i * 4, value)

        t.loop(0, n, lanes, (), block)

    return score


def _ahead(head_bytes: int):
    """``ahead(layout, head, heads, rows, step, head_step, first, last)``: asks for rows ``first .. last - 1`` of keys.

    Called for each head in turn. Memory answers fastest when asked for one line after the other: where the heads of a
    token are neighbours, a head asks for its share of all their lines.
    """
    fetch = _fetch()

    @lang.tile("layout: i64, head: i64, heads: i64, rows: i64, step: i64, head_step: i64, first: i64, last: i64")
    def ahead(t, layout, head, heads, rows, step, head_step, first, last):
        count, begin = last - first, rows + step * first
        tokens, whole = layout == TOKENS, layout != SPARSE
        share = t.select_value(tokens, (count * step + (heads - 1)) // heads, count * step)
        address = begin + head * t.select_value(tokens, share, head_step)
        fetch(address, t.select_value(whole, 1, count), step, t.select_value(whole, share, head_bytes))

    return ahead


def _fetch():
    """``fetch(address, rows, step, nbytes)``: asks for rows of `nbytes` that lie `step` bytes apart."""

    @lang.tile("address: i64, rows: i64, step: i64, nbytes: i64")
    def fetch(t, address, rows, step, nbytes):
        def line(place, _):
            t.prefetch(place, locality=2)

        def row(i, _):
            start = address + step * i
            t.loop(start, start + nbytes, 64, (), line)

        t.loop(0, rows, 1, (), row)

    return fetch


def _cap_scores():
    """``cap_scores(n, scores, cap)``: ``cap * tanh(score / cap)``; -inf beyond the last score stays."""

    @lang.tile("n: i64, scores: i64, cap: f32")
    def cap_scores(t, n, scores, cap):
        outer = t.splat(cap)
        inner = 1.0 / outer

        def step(i, _):
            capped = lang.tanh(t.load("f32", scores + i * 4) * inner) * outer
            t.store("f32", scores + i * 4, t.select(t.mask_lt(n - i), capped, -math.inf))

        t.loop(0, n, t.LANES, (), step)

    return cap_scores


def _largest():
    """``largest(n, scores)``; NaN is passed over (the weights bring it back), -inf if there is none."""

    @lang.tile("n: i64, scores: i64", returns="f32")
    def largest(t, n, scores):
        def step(i, best):
            return [t.max(t.load("f32", scores + i * 4), best[0])]

        (best,) = t.loop(0, n, t.LANES, [t.vconst(-math.inf)], step)
        return lang.hmax(best)

    return largest


def _soften(dtype: str):
    """``soften(n, scores, base)``: scores become weights ``2 ** (score - base)``; returns their sum."""
    exp2 = lang.exp2_lp if dtype == "bf16" else lang.exp2_fast

    @lang.tile("n: i64, scores: i64, base: f32", returns="f32")
    def soften(t, n, scores, base):
        shift = t.splat(base)

        def step(i, total):
            weight = exp2(t.load("f32", scores + i * 4) - shift)
            t.store("f32", scores + i * 4, weight)
            return [total[0] + weight]

        (total,) = t.loop(0, n, t.LANES, [t.vconst(0.0)], step)
        return lang.hsum(total)

    return soften


def _weighted_values(dtype: str, head_dim: int, heads: int):
    """``add(n, values, step, weights, row, out, out_row)``: ``out = decay * out + weights @ values``.

    For `heads` queries; their outputs follow the facts of a record, the third of which is the decay.
    """
    lanes = lang.lanes()
    size = lang.itemsize(dtype)
    words = dtype == "bf16"  # a word gives two vectors by a shift and a mask: the even and the odd elements
    vectors = -(-head_dim // (2 * lanes)) * 2
    budget = 20 if lanes == 16 else 8  # accumulators; the other registers hold values and weights
    group = max(2, min(8, budget // heads // 2 * 2))  # vectors of accumulators for each query

    def load_value(t, addr, vector):
        """Two vectors from `vector` (even) on; lanes from head_dim on are 0."""
        left = head_dim - vector * lanes
        place = addr + vector * lanes * size
        if words:
            word = t.load_words(place, None if left >= 2 * lanes else t.mask_lt(left // 2))
            return [lang.as_float(word << 16), lang.as_float(word & -0x10000)]
        masks = [None if left >= end else t.mask_lt(left - end + lanes) for end in (lanes, 2 * lanes)]
        return [t.load(dtype, place + i * lanes * size, masks[i]) for i in range(2)]

    @lang.tile("n: i64, values: i64, step: i64, weights: i64, row: i64, out: i64, out_row: i64")
    def add(t, n, values, step, weights, row, out, out_row):
        decays = [t.load_splat("f32", out + out_row * h - FACTS_BYTES + 8) for h in range(heads)]
        for start in range(0, vectors, group):
            mine = range(start, min(start + group, vectors), 2)

            def key(i, sums, mine=mine):
                place = values + step * i
                parts = [part for vector in mine for part in load_value(t, place, vector)]
                new = []
                for h in range(heads):
                    weight = t.load_splat("f32", weights + row * h + i * 4)
                    old = sums[h * len(parts) : (h + 1) * len(parts)]
                    new += [t.fma(weight, part, total) for part, total in zip(parts, old, strict=True)]
                return new

            places = [
                [out + out_row * h + (vector + i) * (lanes * 4) for vector in mine for i in range(2)]
                for h in range(heads)
            ]
            old = [t.load("f32", place) * decays[h] for h in range(heads) for place in places[h]]
            sums = t.loop(0, n, 1, old, key)
            for place, value in zip(itertools.chain(*places), sums, strict=True):
                t.store("f32", place, value)

    return add


def _merge(dtype: str, padded: int):
    """``merge(chunks, records, step)``: turns the first of the records of one query, `step` bytes apart, into its
    output, elements in their order.
    """

    @lang.tile("chunks: i64, records: i64, step: i64")
    def merge(t, chunks, records, step):
        def larger(c, best):
            return [t.max(t.load_scalar("f32", records + step * c), best[0])]

        (peak,) = t.loop(0, chunks, 1, [t.load_scalar("f32", records)], larger)
        base = t.splat(t.select_value(peak == -math.inf, 0.0, peak))

        def share(c):
            return lang.exp2_fast(t.load_splat("f32", records + step * c) - base)

        def summed(c, total):
            return [t.fma(share(c), t.load_splat("f32", records + step * c + 4), total[0])]

        (total,) = t.loop(0, chunks, 1, [t.vconst(0.0)], summed)
        factor = t.select(total == 0.0, 0.0, 1.0 / total)
        for start in range(0, padded, 8 * t.LANES):
            places = range(start, min(start + 8 * t.LANES, padded), t.LANES)

            def outputs(c, sums, places=places):
                weight, record = share(c), records + step * c + FACTS_BYTES
                loaded = [t.load("f32", record + place * 4) for place in places]
                return [t.fma(weight, x, total) for x, total in zip(loaded, sums, strict=True)]

            values = t.loop(0, chunks, 1, [t.vconst(0.0)] * len(places), outputs)
            values = [value * factor for value in values]
            if dtype == "bf16":  # see `_weighted_values`
                pairs = zip(values[::2], values[1::2], strict=True)
                values = [half for even, odd in pairs for half in _interleaved(t, even, odd)]
            for place, value in zip(places, values, strict=True):
                t.store("f32", records + FACTS_BYTES + place * 4, value)

    return merge


def _interleaved(t, even, odd):
    """Two vectors of the elements of `even` and `odd` by turns."""
    order = [i // 2 + i % 2 * t.LANES for i in range(2 * t.LANES)]
    return [t.shuffle(even, odd, half) for half in (order[: t.LANES], order[t.LANES :])]
