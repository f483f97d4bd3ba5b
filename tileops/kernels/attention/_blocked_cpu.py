"""Blocked attention on the CPU: what runs on the device. Two programs: pack keys and values, then attend.

Scores are computed transposed, keys by queries, so that a query is a lane: its maximum and its sum are lanes of
one vector, masking compares a key with a vector of limits, and the weights leave the softmax in the layout in
which the second product wants them. The query heads that share a key/value head are folded into the queries.
The online softmax follows Dao et al., "FlashAttention" (2022), after Milakov and Gimelshein, "Online normalizer
calculation for softmax" (2018).
"""

from __future__ import annotations

import math

from tileops.jit import lang
from tileops.jit.lang.pairs import join_bf16
from tileops.kernels.attention import _non_finite, _panels
from tileops.kernels.attention._non_finite import MARK_BYTES
from tileops.kernels.attention._panels import BLOCK_ROWS, ROW_BYTES, TILE_BYTES, TILE_ROWS, TILE_WORDS

_LOG2E = math.log2(math.e)

lesser = lang.traced(lambda a, b: lang.select(a < b, a, b), 2)
greater = lang.traced(lambda a, b: lang.select(a > b, a, b), 2)


def pack(dtype: str, form: str, dense: bool):
    """Body over (batch entry, key/value head, block of 32 keys).

    Keys become tiles of 16 keys, values tiles of 16 head elements by keys, both of `form` (see `_panels`). Keys
    from S_kv on and elements from head_dim on are zeros, and so are values that are not finite: `marks` says for each
    unit whether there are any (see `_non_finite`).

    `geometry` is ``S_kv, H_kv, head_dim, padded head_dim``, then the byte steps of k and v over B, S, H, D.
    """
    load_i64 = lang.load_i64
    pairs, parts = form != "floats", _panels.parts_of(form)
    word_elements = 2 if pairs else 1
    tile_keys = TILE_WORDS * word_elements
    block_tiles = BLOCK_ROWS // tile_keys
    lanes = lang.lanes()
    copy_row = _panels.copy_row(dtype, form, dense)
    copy_floats = _panels.copy_row(dtype, "floats", dense)
    pair_rows = _panels.pair_rows(dtype if dense else "f32", form)
    fill_row = _panels.fill_row()
    clear_row, transpose = _panels.clear_row(), _panels.transpose()
    store_i32 = lang.store_i32

    def body(begin, end, tid, k, v, packed_k, packed_v, marks, scratch, scratch_bytes, geometry):
        S_kv = load_i64(geometry)
        H_kv = load_i64(geometry + 8)
        D = load_i64(geometry + 16)
        padded = load_i64(geometry + 24)
        k_b, k_s = load_i64(geometry + 32), load_i64(geometry + 40)
        k_h, k_d = load_i64(geometry + 48), load_i64(geometry + 56)
        v_b, v_s = load_i64(geometry + 64), load_i64(geometry + 72)
        v_h, v_d = load_i64(geometry + 80), load_i64(geometry + 88)
        blocks = (S_kv + BLOCK_ROWS - 1) // BLOCK_ROWS
        words = padded // word_elements
        key_part = words * ROW_BYTES
        block_bytes = BLOCK_ROWS * words * parts * 4
        # Values of 16 head elements lie together for all keys: the second product streams along the keys.
        value_part = blocks * block_tiles * TILE_BYTES
        stage_part = TILE_ROWS * padded * 4
        zeros = scratch + tid * scratch_bytes  # then the rows of a tile in words, then two rows of float32
        stage = zeros + padded * 4
        low_row = stage + parts * stage_part
        high_row = low_row + padded * 4
        fill_row(padded, zeros, ROW_BYTES)
        for unit in range(begin, end):
            block = unit % blocks
            head = unit // blocks % H_kv
            batch = unit // blocks // H_kv
            first = block * BLOCK_ROWS
            count = lesser(BLOCK_ROWS, S_kv - first)
            row = k + batch * k_b + head * k_h + first * k_s
            for r in range(BLOCK_ROWS):
                place = packed_k + unit * block_bytes
                place += r // TILE_ROWS * parts * key_part + r % TILE_ROWS * ROW_BYTES
                if r < count:
                    copy_row(row + r * k_s, k_d, D, padded, place, TILE_BYTES, key_part, low_row)
                else:
                    fill_row(words * parts, place, TILE_BYTES)
            row = v + batch * v_b + head * v_h + first * v_s
            seen = lang.zeros()
            for i in range(block_tiles):
                for w in range(TILE_WORDS):
                    place = stage + w * padded * 4
                    r = i * tile_keys + w * word_elements
                    if pairs:
                        low, high = zeros, zeros
                        if dense:
                            low = row + r * v_s if r < count else zeros
                            high = row + (r + 1) * v_s if r + 1 < count else zeros
                        else:
                            if r < count:
                                copy_floats(row + r * v_s, v_d, D, padded, low_row, ROW_BYTES, 0, 0)
                                low = low_row
                            if r + 1 < count:
                                copy_floats(row + (r + 1) * v_s, v_d, D, padded, high_row, ROW_BYTES, 0, 0)
                                high = high_row
                        seen = seen + pair_rows(low, high, D, padded, place, stage_part)
                    elif r < count:
                        copy_row(row + r * v_s, v_d, D, padded, place, ROW_BYTES, 0, 0)
                        seen = seen + clear_row(padded, place)
                    else:
                        fill_row(padded, place, ROW_BYTES)
                out = packed_v + unit // blocks * blocks * block_bytes + (block * block_tiles + i) * TILE_BYTES
                for part in range(parts):
                    for d in range(0, padded, lanes):
                        tile = out + (d // TILE_ROWS * parts + part) * value_part + d % TILE_ROWS * ROW_BYTES
                        for w in range(0, TILE_WORDS, lanes):
                            source = stage + part * stage_part + w * padded * 4 + d * 4
                            transpose(source, padded * 4, tile + w * 4, ROW_BYTES)
            store_i32(marks + unit * MARK_BYTES, 1 if lang.any_true(seen != seen) else 0)

    return body


def attend(dtype: str, out_dtype: str, form: str, dense: bool, block_q: int, block_kv: int):
    """Body over (batch entry, key/value head, block of `block_q` queries) on what `pack` wrote.

    `geometry` is ``S_q, S_kv, H_kv, group, head_dim, padded head_dim, window_left, window_right`` (-1 for all, the
    causal limit folded into window_right) and the byte steps of q and v over B, S, H, D. `scale` multiplies the
    scores; with ``cap > 0`` they become ``cap * tanh(score / cap)``. Values that are not finite are read from `v`
    itself, where the `marks` of `pack` say so.
    """
    load_i64, store_i32 = lang.load_i64, lang.store_i32
    lanes = lang.lanes()
    vector = 4 * lanes
    pairs, parts = form != "floats", _panels.parts_of(form)
    word_elements = 2 if pairs else 1
    panels = block_q // lanes
    size = lang.itemsize(out_dtype)
    ld, st = lang.load("f32"), lang.store("f32")
    scores_of, add_to = _panels.product(form, accumulate=False), _panels.product(form, accumulate=True)
    copy_row, fill_row = _panels.copy_row(dtype, form, dense), _panels.fill_row()
    store_row, transpose = _panels.store_row(out_dtype), _panels.transpose()
    adjust, cap_scores, largest, scale_rows = _adjust(), _cap_scores(), _largest(), _scale_rows()
    exp2 = lang.exp2_fast
    start_tiles, end_tiles = _tile_registers(form.startswith("amx"))
    score_panel = block_kv * vector
    weight_part = block_kv // word_elements * vector
    weight_panel = parts * weight_part
    tile_keys = TILE_WORDS * word_elements
    weigh = _weigh(form, weight_part)
    add_non_finite = _non_finite.add_products(dtype)
    LOG2E = _LOG2E

    def body(begin, end, tid, scale, cap, q, v, packed_k, packed_v, marks, o, scratch, scratch_bytes, geometry):
        S_q, S_kv = load_i64(geometry), load_i64(geometry + 8)
        H_kv, group = load_i64(geometry + 16), load_i64(geometry + 24)
        D, padded = load_i64(geometry + 32), load_i64(geometry + 40)
        left, right = load_i64(geometry + 48), load_i64(geometry + 56)
        q_b, q_s = load_i64(geometry + 64), load_i64(geometry + 72)
        q_h, q_d = load_i64(geometry + 80), load_i64(geometry + 88)
        v_b, v_s = load_i64(geometry + 96), load_i64(geometry + 104)
        v_h, v_d = load_i64(geometry + 112), load_i64(geometry + 120)
        shift = S_kv - S_q
        columns = S_q * group
        blocks = (columns + block_q - 1) // block_q
        words = padded // word_elements
        depth = words // TILE_WORDS  # tiles along head_dim
        key_blocks = (S_kv + BLOCK_ROWS - 1) // BLOCK_ROWS
        key_bytes = words * parts * 4
        key_part = words * ROW_BYTES
        value_part = key_blocks * (BLOCK_ROWS // tile_keys) * TILE_BYTES
        head_bytes = key_blocks * BLOCK_ROWS * key_bytes
        query_part = words * vector
        query_panel, out_panel = parts * query_part, padded * vector

        queries = scratch + tid * scratch_bytes
        scores = queries + panels * query_panel
        weights = scores + 2 * score_panel
        outputs = weights + 2 * weight_panel
        spare = outputs + panels * out_panel
        rows = spare + padded * 4
        row_bytes = greater(key_bytes, padded * 4)
        peaks = rows + lanes * row_bytes
        sums = peaks + panels * vector
        lows = sums + panels * vector
        highs = lows + panels * vector

        # The scores are multiplied by `factor` inside the exponential. Where that would not keep their order (a
        # scale that is not positive) or the cap needs them scaled, they are scaled beforehand.
        prescaled = cap > 0.0 or not scale > 0.0
        factor = LOG2E if prescaled else scale * LOG2E
        before = scale if prescaled else 1.0

        start_tiles()
        for unit in range(begin, end):
            i = unit % blocks
            # Late queries see more keys: early and late ones by turns give all threads about the same work.
            block = blocks - 1 - i // 2 if i & 1 else i // 2
            head = unit // blocks % H_kv
            batch = unit // blocks // H_kv
            first_column = block * block_q
            used = lesser(block_q, columns - first_column)
            pairs_used = (used + 2 * lanes - 1) // (2 * lanes)
            base = q + batch * q_b + head * group * q_h
            s, g = first_column // group, first_column % group
            for j in range(2 * pairs_used):
                for lane in range(lanes):
                    c = j * lanes + lane
                    place = rows + lane * key_bytes
                    low, high = 0, -1
                    if c < used:
                        copy_row(base + s * q_s + g * q_h, q_d, D, padded, place, ROW_BYTES, words * 4, spare)
                        low = greater(0, s + shift - left) if left >= 0 else 0
                        high = lesser(S_kv - 1, s + shift + right) if right >= 0 else S_kv - 1
                        s, g = (s + 1, 0) if g == group - 1 else (s, g + 1)
                    else:
                        fill_row(words * parts, place, ROW_BYTES)
                    store_i32(lows + c * 4, low)
                    store_i32(highs + c * 4, high)
                for w in range(0, words * parts, lanes):
                    transpose(rows + w * 4, key_bytes, queries + j * query_panel + w * vector, vector)
                st(peaks + j * vector, lang.splat(-math.inf))
                st(sums + j * vector, lang.zeros())
                fill_row(padded * lanes, outputs + j * out_panel, ROW_BYTES)

            s_first = first_column // group
            s_last = (first_column + used - 1) // group
            # Keys that some query of the block sees, and between them those that all of its queries see.
            some_low = greater(0, s_first + shift - left) // BLOCK_ROWS * BLOCK_ROWS if left >= 0 else 0
            some_high = lesser(S_kv, s_last + shift + right + 1) if right >= 0 else S_kv
            all_low = s_last + shift - left if left >= 0 else 0
            all_high = lesser(S_kv, s_first + shift + right + 1) if right >= 0 else S_kv
            head_k = packed_k + (batch * H_kv + head) * head_bytes
            head_v = packed_v + (batch * H_kv + head) * head_bytes
            head_marks = marks + (batch * H_kv + head) * key_blocks * MARK_BYTES
            values = v + batch * v_b + head * v_h
            for key in range(some_low, some_high, block_kv):
                count = (lesser(block_kv, some_high - key) + BLOCK_ROWS - 1) // BLOCK_ROWS * BLOCK_ROWS
                k_block = head_k + key * key_bytes
                v_block = head_v + key // tile_keys * TILE_BYTES
                # Keys before `before_all` and from `after_all` on are hidden from some query.
                before_all = lesser(count, all_low - key)
                after_all = greater(0, all_high - key)
                if prescaled:
                    before_all = count
                rescale = 1.0 if cap > 0.0 else before
                # Two panels at a time, so that their scores stay in the nearest cache.
                for pair in range(0, 2 * pairs_used, 2):
                    for r in range(0, count, BLOCK_ROWS):
                        scores_of(
                            depth, k_block + r * key_bytes, parts * key_part, TILE_BYTES, key_part,
                            queries + pair * query_panel, query_panel, query_part,
                            scores + r * vector, score_panel,
                        )  # fmt: skip
                    for side in range(2):
                        j = pair + side
                        panel = scores + side * score_panel
                        if cap > 0.0:
                            cap_scores(count, panel, before, cap)
                        low, high = lows + j * vector, highs + j * vector
                        adjust(0, before_all, panel, key, low, high, rescale)
                        if not prescaled:
                            adjust(after_all, count, panel, key, low, high, 1.0)
                        old = ld(peaks + j * vector)
                        peak = lang.maxq(largest(count, panel) * factor, old)
                        base_peak = lang.select(peak == -math.inf, 0.0, peak)
                        total = weigh(count, panel, weights + side * weight_panel, factor, -base_peak)
                        if lang.any_true(peak != old):
                            decay = exp2(old - base_peak)
                            st(peaks + j * vector, peak)
                            total = lang.fma(ld(sums + j * vector), decay, total)
                            scale_rows(padded, outputs + j * out_panel, decay)
                        else:
                            total = total + ld(sums + j * vector)
                        st(sums + j * vector, total)
                    for d in range(0, padded, BLOCK_ROWS):
                        add_to(
                            count // tile_keys, v_block + d // TILE_ROWS * parts * value_part,
                            parts * value_part, TILE_BYTES, value_part,
                            weights, weight_panel, weight_part,
                            outputs + pair * out_panel + d * vector, out_panel,
                        )  # fmt: skip
                    add_non_finite(
                        head_marks, key, lesser(count, S_kv - key), values, v_s, v_d, D, 2, scores,
                        score_panel, outputs + pair * out_panel, out_panel, peaks + pair * vector,
                        lows + pair * vector, highs + pair * vector, factor,
                    )  # fmt: skip

            s, g = first_column // group, first_column % group
            for j in range(2 * pairs_used):
                total = ld(sums + j * vector)
                scale_rows(padded, outputs + j * out_panel, lang.select(total == 0.0, 0.0, 1.0 / total))
                for d in range(0, padded, lanes):
                    transpose(outputs + j * out_panel + d * vector, vector, rows + d * 4, padded * 4)
                for lane in range(lesser(lanes, used - j * lanes)):
                    row = ((batch * S_q + s) * H_kv + head) * group + g
                    store_row(rows + lane * padded * 4, D, o + row * D * size)
                    s, g = (s + 1, 0) if g == group - 1 else (s, g + 1)
        end_tiles()

    return body


def _tile_registers(amx: bool):
    """Words that set up and release the AMX registers of the thread, or do nothing."""

    @lang.tile("")
    def start(t):
        if amx:
            t.amx_config()

    @lang.tile("")
    def end(t):
        if amx:
            t.amx_release()

    return start, end


def _adjust():
    """``adjust(start, stop, scores, key, lows, highs, scale)``: scales scores; -inf for keys outside the limits."""

    @lang.tile("start: i64, stop: i64, scores: i64, key: i64, lows: i64, highs: i64, scale: f32")
    def adjust(t, start, stop, scores, key, lows, highs, scale):
        low, high, scales = t.load_words(lows), t.load_words(highs), t.splat(scale)

        def step(i, _):
            place = scores + i * (4 * t.LANES)
            index = t.splat(key + i)
            visible = (index >= low) & (index <= high)
            t.store("f32", place, t.select(visible, t.load("f32", place) * scales, -math.inf))

        t.loop(start, stop, 1, (), step)

    return adjust


def _cap_scores():
    """``cap_scores(n, scores, scale, cap)``: ``cap * tanh(scale * score / cap)``."""

    @lang.tile("n: i64, scores: i64, scale: f32, cap: f32")
    def cap_scores(t, n, scores, scale, cap):
        inner, outer = t.splat(scale / cap), t.splat(cap)

        def step(i, _):
            places = [scores + (i + u) * (4 * t.LANES) for u in range(4)]
            capped = lang.tanh(lang.Lockstep([t.load("f32", place) for place in places]) * inner) * outer
            for place, value in zip(places, capped.members, strict=True):
                t.store("f32", place, value)

        t.loop(0, n, 4, (), step)

    return cap_scores


def _largest():
    """``largest(n, scores)``: per lane; NaN is passed over (the weights bring it back)."""

    @lang.tile("n: i64, scores: i64", returns="vec")
    def largest(t, n, scores):
        def step(i, best):
            return [t.max(t.load("f32", scores + (i + u) * (4 * t.LANES)), best[u]) for u in range(4)]

        a, b, c, d = t.loop(0, n, 4, [t.vconst(-math.inf)] * 4, step)
        return t.max(t.max(a, b), t.max(c, d))

    return largest


def _weigh(form: str, weight_part: int):
    """``weigh(n, scores, weights, factor, shift)``: weights ``2 ** (score * factor + shift)``; returns their sums."""
    parts = _panels.parts_of(form)
    exp2 = lang.exp2_lp if form in ("pairs", "amx1") else lang.exp2_fast

    @lang.tile("n: i64, scores: i64, weights: i64, factor: f32, shift: vec", returns="vec")
    def weigh(t, n, scores, weights, factor, shift):
        vector = 4 * t.LANES
        factors = t.splat(factor)

        def step(i, sums):
            x = lang.Lockstep([t.load("f32", scores + (i + u) * vector) for u in range(4)])
            w = exp2(lang.fma(x, factors, shift)).members
            if form == "floats":
                for u in range(4):
                    t.store("f32", weights + (i + u) * vector, w[u])
            else:
                for u in range(2):
                    split = zip(_parts(w[2 * u], parts), _parts(w[2 * u + 1], parts), strict=True)
                    for part, (low, high) in enumerate(split):
                        place = weights + part * weight_part + (i // 2 + u) * vector
                        t.store_words(place, join_bf16(low, high))
            return [sums[0] + (w[0] + w[2]), sums[1] + (w[1] + w[3])]

        even, odd = t.loop(0, n, 4, [t.vconst(0.0)] * 2, step)
        return even + odd

    return weigh


def _parts(weight, parts):
    """A weight in [0, 1], or NaN, as a sum of bfloat16: `bf16_parts` with less to ask for.

    A single part is rounded to nearest, ties up.
    """
    found = []
    for left in range(parts - 1, 0, -1):
        bits = lang.as_int(weight)
        part = lang.as_float((bits + 0x8000 if left == 1 else bits) & -0x10000)
        found.append(part)
        weight = weight - part
    return [*found, weight] if found else [lang.as_float(lang.as_int(weight) + 0x8000)]


def _scale_rows():
    """``scale_rows(n, rows, factors)``: multiplies the rows of a panel lane by lane."""

    @lang.tile("n: i64, rows: i64, factors: vec")
    def scale_rows(t, n, rows, factors):
        def step(i, _):
            places = [rows + (i + u) * (4 * t.LANES) for u in range(4)]
            for place, value in [(place, t.load("f32", place) * factors) for place in places]:
                t.store("f32", place, value)

        t.loop(0, n, 4, (), step)

    return scale_rows
