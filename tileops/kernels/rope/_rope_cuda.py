"""Device bodies of the rotary position embeddings on CUDA."""

from __future__ import annotations

from collections.abc import Callable

from tileops.jit.lang import cuda as lang
from tileops.jit.lang import cuda_angles
from tileops.kernels.rope.rope_cuda import FACTOR_KINDS


def rotate(dtype: str, width: int, pairs: str, positions: str, scaled: bool) -> Callable[..., None]:
    """One thread turns the same few pairs of several heads of a token, so their angles are computed once.

    The kernel is ``kernel(x, position_ids, out, tokens, seq_len, heads, head_group, turned, copied, head_dim,
    pair_step, partner, batch_step, seq_step, head_step, element_step, id_step, slope, ratio, floor, by_frequency,
    by_pair, offset, amplitude, factors, factor_kind)``:

    * tokens, seq_len: of all sequences, of one. Token t is number ``t % seq_len`` of sequence ``t //
      seq_len``.
    * heads, head_group: of a token, and those that one thread takes.
    * turned, copied: accesses of `width` bytes that hold first elements of pairs (all elements where pairs
      are adjacent), and accesses of the unrotated rest of a head.
    * pair_step, partner: elements from one pair to the next, and from a pair's first element to its second.
    * batch_step, ..., element_step: strides of `x` in bytes; `out` is contiguous; id_step: of the position
      ids.
    * slope, ..., factor_kind: see `cuda_angles.rotary_angles`; those from `floor` on count only if `scaled`.

    Args:
        pairs: "adjacent", where an access holds whole pairs, or "split", where it holds first or second
            elements.
        positions: "sequence" for the token's place in its sequence, "i32" or "i64" for position ids of that
            type.
        scaled: the frequencies differ from the geometric sequence.
    """
    strip = lang.Strip(dtype, width)
    itemsize, elements = lang.ITEMSIZE[dtype], strip.elements
    adjacent = pairs == "adjacent"
    load, store = strip.load, strip.store
    pairs_of_strip = elements // 2 if adjacent else elements
    if scaled:
        angles_of = cuda_angles.rotary_angles(pairs_of_strip, FACTOR_KINDS)
    else:
        angles_of = cuda_angles.rotary_angles(pairs_of_strip)
    if adjacent:
        turn = cuda_angles.rotate_adjacent(strip)
    else:
        turn_first, turn_second = cuda_angles.rotate_split(strip)
    load_id = lang.load_i64 if positions == "i64" else lang.load_i32
    sequence = positions == "sequence"

    def kernel(
        x, position_ids, out, tokens, seq_len, heads, head_group, turned, copied, head_dim, pair_step,
        partner, batch_step, seq_step, head_step, element_step, id_step, slope, ratio,
        floor, by_frequency, by_pair, offset, amplitude, factors, factor_kind,
    ):  # fmt: skip
        strips = turned + copied
        groups = (heads + head_group - 1) // head_group
        work = tokens * groups * strips
        stride = lang.grid_size() * lang.block_size()
        i = lang.block_index() * lang.block_size() + lang.thread_index()
        while i < work:
            place, strip_index = lang.divide(i, strips)
            token, group = lang.divide(place, groups)
            batch, number = lang.divide(token, seq_len)
            head = group * head_group
            last = min(heads, head + head_group)
            source = x + batch * batch_step + number * seq_step + head * head_step
            target = out + (token * heads + head) * head_dim * itemsize
            if strip_index < turned:
                position = number if sequence else load_id(position_ids + token * id_step)
                pair = strip_index * pairs_of_strip
                if scaled:
                    angles = angles_of(
                        position, pair, slope, ratio,
                        floor, by_frequency, by_pair, offset, amplitude, factors, factor_kind,
                    )  # fmt: skip
                else:
                    angles = angles_of(position, pair, slope, ratio)
                if adjacent:
                    source += strip_index * width
                    target += strip_index * width
                    while head < last:
                        store(target, turn(load(source), angles))
                        source += head_step
                        target += head_dim * itemsize
                        head += 1
                else:
                    element = strip_index * elements * pair_step
                    source += element * element_step
                    target += element * itemsize
                    far_source, far_target = partner * element_step, partner * itemsize
                    while head < last:
                        first, second = load(source), load(source + far_source)
                        store(target, turn_first(first, second, angles))
                        store(target + far_target, turn_second(first, second, angles))
                        source += head_step
                        target += head_dim * itemsize
                        head += 1
            else:
                element = head_dim - (strips - strip_index) * elements
                source += element * element_step
                target += element * itemsize
                while head < last:
                    store(target, load(source))
                    source += head_step
                    target += head_dim * itemsize
                    head += 1
            i += stride

    return kernel
