"""Attention of a few queries on the CPU: what runs on the device.

Time goes into reading keys and values once. The keys are cut into chunks, chunks go to threads, and the results
of the chunks are merged in a fixed order (Dao et al., "Flash-Decoding", 2023). Vectors run along head_dim; the
query heads of a group share every key and value that is loaded.
"""

from __future__ import annotations

import math

from tileops.jit import lang
from tileops.kernels.attention import _panels
from tileops.kernels.attention._panels import ROW_BYTES

_LOG2E = math.log2(math.e)

#: Modes of a launch: chunks into partial results, the merge of partial results, or both.
CHUNKS, MERGE, BOTH = 0, 1, 2
#: Bytes before the output of a partial result: its maximum and its sum.
FACTS_BYTES = 64

lesser = lang.traced(lambda a, b: lang.select(a < b, a, b), 2)
greater = lang.traced(lambda a, b: lang.select(a > b, a, b), 2)


def attend(dtype: str, out_dtype: str, form: str, head_dim: int, heads: int):
    """Body over (batch entry, chunk of keys, key/value head); in other modes over (batch entry, key/value head).

    Args:
        dtype: storage format of q, k and v, whose head vectors are contiguous.
        out_dtype: storage format of o.
        form: "pairs" takes scores from words of two bfloat16, "floats" from float32.
        head_dim: elements of a head vector, even for 16-bit formats.
        heads: query heads that are computed together, at most the group.

    `geometry` is ``S_q, S_kv, H_kv, group, chunks, keys per chunk, window_left, window_right`` (-1 for all, the
    causal limit folded into window_right) and the byte steps of q, k and v over B, S, H. `partial` has a record
    per batch entry, chunk, key/value head and query: maximum, sum and unscaled output. `scratch` is per thread.
    """
    load_i64, splat = lang.load_i64, lang.splat
    st1 = lang.store_scalar("f32")
    size, out_size = lang.itemsize(dtype), lang.itemsize(out_dtype)
    padded = padded_head_dim(head_dim, lang.lanes())
    copy_row = _panels.copy_row(dtype, form, dense=True)
    store_row = _panels.store_row(out_dtype)
    score, cap_scores, largest = _scores(dtype, form, head_dim, heads), _cap_scores(), _largest()
    soften, weighted_values = _soften(dtype), _weighted_values(dtype, head_dim, heads)
    merge = _merge(padded)
    query_bytes = padded * (2 if form == "pairs" else 4)
    record = FACTS_BYTES + padded * 4
    LOG2E = _LOG2E

    def body(begin, end, tid, mode, scale, cap, q, k, v, o, partial, scratch, scratch_bytes, geometry):
        S_q, S_kv = load_i64(geometry), load_i64(geometry + 8)
        H_kv, group = load_i64(geometry + 16), load_i64(geometry + 24)
        chunks, chunk = load_i64(geometry + 32), load_i64(geometry + 40)
        left, right = load_i64(geometry + 48), load_i64(geometry + 56)
        q_b, q_s, q_h = load_i64(geometry + 64), load_i64(geometry + 72), load_i64(geometry + 80)
        k_b, k_s, k_h = load_i64(geometry + 88), load_i64(geometry + 96), load_i64(geometry + 104)
        v_b, v_s, v_h = load_i64(geometry + 112), load_i64(geometry + 120), load_i64(geometry + 128)
        shift = S_kv - S_q
        queries = S_q * group
        chunk_step = H_kv * queries * record
        row = chunk * 4
        scores = scratch + tid * scratch_bytes
        query = scores + heads * row
        merged = query + heads * query_bytes

        for unit in range(begin, end):
            head = unit % H_kv
            batch = unit // H_kv
            first_chunk, last_chunk = 0, chunks
            if mode == CHUNKS:
                first_chunk = batch % chunks
                last_chunk = first_chunk + 1
                batch = batch // chunks
            records = partial + batch * chunks * chunk_step + head * queries * record
            if mode != MERGE:
                for c in range(first_chunk, last_chunk):
                    for s in range(S_q):
                        low, high = c * chunk, lesser((c + 1) * chunk, S_kv)
                        if left >= 0:
                            low = greater(low, s + shift - left)
                        if right >= 0:
                            high = lesser(high, s + shift + right + 1)
                        count = greater(high - low, 0)
                        keys = k + batch * k_b + head * k_h + low * k_s
                        values = v + batch * v_b + head * v_h + low * v_s
                        for g in range(0, group, heads):
                            # The last heads may repeat some of those before them, with the same result.
                            first_head = lesser(g, group - heads)
                            from_head = q + batch * q_b + s * q_s + (head * group + first_head) * q_h
                            for i in range(heads):
                                to = query + i * query_bytes
                                copy_row(from_head + i * q_h, size, head_dim, padded, to, ROW_BYTES)
                            score(count, keys, k_s, query, scores, row, scale * LOG2E)
                            out = records + c * chunk_step + (s * group + first_head) * record
                            for i in range(heads):
                                if cap > 0.0:
                                    cap_scores(count, scores + i * row, cap * LOG2E)
                                peak = largest(count, scores + i * row)
                                st1(out + i * record, peak)
                                base = 0.0 if peak == -math.inf else peak
                                st1(out + i * record + 4, soften(count, scores + i * row, base))
                            weighted_values(count, values, v_s, scores, row, out + FACTS_BYTES, record)
            if mode != CHUNKS:
                for i in range(queries):
                    merge(chunks, records + i * record, chunk_step, merged)
                    to = ((batch * S_q + i // group) * H_kv + head) * group + i % group
                    store_row(merged, head_dim, o + to * head_dim * out_size)

    return body


def padded_head_dim(head_dim: int, lanes: int) -> int:
    """Elements of a head vector in scratch: whole vectors, also of words that are pairs."""
    return -(-head_dim // (2 * lanes)) * 2 * lanes


def _scores(dtype: str, form: str, head_dim: int, heads: int):
    """``score(n, keys, step, queries, scores, row, scale)``: scaled scores of `heads` queries with `n` keys.

    Keys are `step` bytes apart, queries follow each other in scratch, scores of one query are a row; up to the next
    whole vector they are -inf.
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
            ahead = keys + step * (i + 2 * lanes)
            for r in range(lanes):
                for line in range(0, head_dim * size, 64):
                    t.prefetch(ahead + step * r + line)
            partial = [[] for _ in range(heads)]
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
    """``add(n, values, step, weights, row, out, out_row)``: weighted sums of `n` values for `heads` queries."""
    lanes = lang.lanes()
    size = lang.itemsize(dtype)
    words = dtype == "bf16"  # a word gives two vectors by a shift and a mask: the even and the odd elements
    interleaved = [i // 2 + (i % 2) * lanes for i in range(2 * lanes)]
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
        for start in range(0, vectors, group):
            mine = range(start, min(start + group, vectors), 2)

            def key(i, sums, mine=mine):
                place = values + step * i
                for vector in mine:
                    t.prefetch(place + step * 32 + vector * lanes * size)
                parts = [part for vector in mine for part in load_value(t, place, vector)]
                new = []
                for h in range(heads):
                    weight = t.load_splat("f32", weights + row * h + i * 4)
                    old = sums[h * len(parts) : (h + 1) * len(parts)]
                    new += [t.fma(weight, part, total) for part, total in zip(parts, old, strict=True)]
                return new

            sums = t.loop(0, n, 1, [t.vconst(0.0)] * (heads * 2 * len(mine)), key)
            for h in range(heads):
                for j, vector in enumerate(mine):
                    low, high = sums[2 * (h * len(mine) + j) : 2 * (h * len(mine) + j) + 2]
                    if words:
                        halves = interleaved[:lanes], interleaved[lanes:]
                        low, high = (t.shuffle(low, high, half) for half in halves)
                    place = out + out_row * h + vector * lanes * 4
                    t.store("f32", place, low)
                    t.store("f32", place + lanes * 4, high)

    return add


def _merge(padded: int):
    """``merge(chunks, records, step, out)``: the output of one query from its records, `step` bytes apart."""

    @lang.tile("chunks: i64, records: i64, step: i64, out: i64")
    def merge(t, chunks, records, step, out):
        def larger(c, best):
            return [t.max(t.load_scalar("f32", records + step * c), best[0])]

        (peak,) = t.loop(0, chunks, 1, [t.load_scalar("f32", records)], larger)
        base = t.splat(t.select_value(peak == -math.inf, 0.0, peak))

        def weight(c):
            return lang.exp2_fast(t.load_splat("f32", records + step * c) - base)

        def summed(c, total):
            return [t.fma(weight(c), t.load_splat("f32", records + step * c + 4), total[0])]

        (total,) = t.loop(0, chunks, 1, [t.vconst(0.0)], summed)
        factor = t.select(total == 0.0, 0.0, 1.0 / total)
        for start in range(0, padded, 8 * t.LANES):
            places = range(start, min(start + 8 * t.LANES, padded), t.LANES)

            def outputs(c, sums, places=places):
                share, record = weight(c), records + step * c + FACTS_BYTES
                loaded = [t.load("f32", record + place * 4) for place in places]
                return [t.fma(share, x, total) for x, total in zip(loaded, sums, strict=True)]

            sums = t.loop(0, chunks, 1, [t.vconst(0.0)] * len(places), outputs)
            for place, value in zip(places, sums, strict=True):
                t.store("f32", out + place * 4, value * factor)

    return merge
