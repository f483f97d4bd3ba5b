"""Grouped-query attention over dense tensors on the CPU: a blocked kernel, and one for few queries."""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from tileops.autotune.space import TileSpace
from tileops.jit import cpu_target, parallel
from tileops.jit.cpu.direct import SCRATCH, Address, Family, Member, Step, address_of
from tileops.jit.cpu.scratch import give, take
from tileops.jit.program import Program
from tileops.kernels.attention.call_spec import GQADenseCall, GQADenseFwdInterface
from tileops.kernels.base import FLOAT_DTYPES, Config, Kernel, TensorSpec

_FACTORIES = "tileops.kernels.attention"
_CACHE_LINE = 64
#: Keys of a packed block, and the multiple to which head_dim is padded.
_BLOCK = 32
#: Bytes of what is noted of a packed block of values, see `_non_finite`.
_MARK_BYTES = 4


def _unsupported(call: GQADenseCall) -> str | None:
    """Why no CPU kernel serves the call, or None."""
    if call.q.dtype not in FLOAT_DTYPES:
        return f"q is {call.q.dtype}; the CPU kernels take {', '.join(FLOAT_DTYPES)}"
    if call.o.dtype not in FLOAT_DTYPES:
        return f"o is {call.o.dtype}; the CPU kernels write {', '.join(FLOAT_DTYPES)}"
    if call.pos_encoding_mode != "none":
        return "fused rope is not served on the CPU: rotate q and k with RoPENeoxPositionIdsFwdOp first"
    if call.q_scale is not None:
        return "float8 scales are not served on the CPU"
    return None


def _key_limits(call: GQADenseCall) -> tuple[int, int]:
    """Keys visible before and after the diagonal, -1 for all; causal calls see none after it."""
    right = call.window_right
    if call.is_causal:
        right = 0  # a window beyond the diagonal cannot undo the causal mask
    return call.window_left, right


def _bytes(strides: Sequence[int], itemsize: int) -> list[int]:
    return [stride * itemsize for stride in strides]


def _byte_steps(x: TensorSpec) -> list[int]:
    """Bytes from element to element along each axis; none along one of size 1, whose stride may be any number."""
    return [0 if size == 1 else step for size, step in zip(x.shape, _bytes(x.strides, x.itemsize), strict=True)]


def _is_dense(*tensors: TensorSpec) -> bool:
    """Whether head vectors are contiguous and, in a 16-bit format, made of whole words."""
    return all(x.strides[3] == 1 and (x.shape[3] * x.itemsize) % 4 == 0 for x in tensors)


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


class GQADensePrefillCpuKernel(Kernel, GQADenseFwdInterface):
    """Blocked attention with an online softmax on packed keys and values (any layout, any head_dim).

    Keys and values are packed once per call, then blocks of queries (the heads of a group folded into them) run over
    blocks of keys. Products use AMX tiles where the CPU has them, else the vector units. Every block is computed by one
    thread in a fixed order, so results do not depend on the number of threads.
    """

    devices = frozenset({"cpu"})
    general = True
    tile_space = TileSpace({"block_q": (32, 64, 128), "block_kv": (64, 128, 256, 512)})

    @classmethod
    def refusal(cls, call: GQADenseCall) -> str | None:
        return _unsupported(call) or super().refusal(call)

    @classmethod
    def compile_class(cls, call: GQADenseCall) -> Hashable:
        if _unsupported(call) is not None:
            return None
        return call.q.dtype, call.o.dtype, _is_dense(call.q), _is_dense(call.k, call.v), _form(call)

    @classmethod
    def default_config(cls, call: GQADenseCall) -> Config:
        return {"block_q": 64, "block_kv": 256}

    @classmethod
    def programs(cls, call: GQADenseCall, config: Config) -> dict[str, Program]:
        form, dtype = _form(call), call.q.short
        pack = Program.of(
            f"{_FACTORIES}._blocked_cpu:pack",
            ["ptr", "ptr", "ptr", "ptr", "ptr", "ptr", "i64", "ptr"],
            dtype=dtype,
            form=form,
            dense=_is_dense(call.k, call.v),
        )
        attend = Program.of(
            f"{_FACTORIES}._blocked_cpu:attend",
            ["f32", "f32", "ptr", "ptr", "ptr", "ptr", "ptr", "ptr", "ptr", "i64", "ptr"],
            dtype=dtype,
            out_dtype=call.o.short,
            form=form,
            dense=_is_dense(call.q),
            block_q=int(config["block_q"]),
            block_kv=int(config["block_kv"]),
        )
        return {"pack": pack, "attend": attend}

    def bind(self, call: GQADenseCall) -> Callable[..., None]:
        steps = [_byte_steps(x) for x in (call.q, call.k, call.v)]
        return self._calls(call)(*call.q.shape[:2], call.k.shape[1], *steps).launcher()

    def resized(self, call: GQADenseCall) -> Callable[..., Member | None] | None:
        if set(call.tensors()) != {"q", "k", "v", "o"}:
            return None
        of, group, size = self._calls(call), call.group_size, call.q.itemsize
        heads, kv_heads = call.q.shape[2:], call.k.shape[2:]
        # Fewer queries are the other kernel's.
        few = _FEW_QUERIES if heads[1] <= _LARGEST_HEAD and _is_dense(call.q) else 0

        def at(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], o: tuple[int, ...]) -> Member | None:
            if q[2:] != heads or k[2:] != kv_heads or q[1] * group <= few:
                return None
            keys = (*_dense_steps(k, size), size)
            return of(q[0], q[1], k[1], (*_dense_steps(q, size), size), keys, keys)

        return at

    def _calls(self, call: GQADenseCall) -> Callable[..., Member]:
        """From batch, queries, keys and steps of q, k and v to a call that is otherwise like `call`."""
        H, D = call.q.shape[2:]
        H_kv, group = call.k.shape[2], call.group_size
        block_q, block_kv = int(self.config["block_q"]), int(self.config["block_kv"])
        form = _form(call)
        padded = _round_up(D, _BLOCK)
        word_bytes = _ELEMENT_BYTES[form]
        left, right = _key_limits(call)
        is_causal = call.is_causal
        # A row of zeros, 16 rows of words for each part, two rows of float32.
        pack_scratch = (3 + 16 * _PARTS[form]) * padded * 4
        # Of `block_q` queries: queries in words, outputs in float32, four facts each. Of two panels, whose columns are
        # at most 16: scores in float32, weights in words. Then a spare row and the rows of one panel.
        attend_scratch = block_q * (padded * word_bytes + padded * 4 + 16) + 32 * block_kv * (4 + word_bytes)
        attend_scratch += padded * 4 + 16 * padded * max(4, word_bytes)
        attend_scratch = _round_up(attend_scratch, _CACHE_LINE)
        per_thread = max(pack_scratch, attend_scratch)
        pair_ns = 4 * D / _FLOPS_PER_NS[form] + _SOFTMAX_NS
        scale, cap = float(call.sm_scale), float(call.softcap or 0.0)
        q, k, v, o = (Address(place) for place in (0, 1, 2, 8))
        packed_k, moved = Address(SCRATCH), Address(SCRATCH, None)
        steps: list[Step] = [
            (self.entries["pack"], (k, v, packed_k, moved, moved, moved, pack_scratch, None)),
            (self.entries["attend"], (scale, cap, q, v, packed_k, moved, moved, o, moved, attend_scratch, None)),
        ]
        family = Family(steps, 9)

        def of(B: int, S_q: int, S_kv: int, q_steps: _Steps, k_steps: _Steps, v_steps: _Steps) -> Member:
            key_blocks = -(-S_kv // _BLOCK)
            query_blocks = -(-S_q * group // block_q)
            packed = B * H_kv * key_blocks * _BLOCK * padded * word_bytes
            mark_bytes = _round_up(B * H_kv * key_blocks * _MARK_BYTES, _CACHE_LINE)
            packing = _packing(S_kv, H_kv, D, padded, *k_steps, *v_steps)
            attending = _attending(S_q, S_kv, H_kv, group, D, padded, left, right, *q_steps, *v_steps)
            pack_at, attend_at = address_of(packing), address_of(attending)
            pack_limit = parallel.limit(2.0 * B * H_kv * S_kv * D * _PACK_NS)
            attend_limit = parallel.limit(B * H * _visible_pairs(S_q, S_kv, is_causal) * pair_ns)
            pack_units, attend_units = B * H_kv * key_blocks, B * H_kv * query_blocks
            marks = 2 * packed
            work = marks + mark_bytes
            values = (
                pack_units, pack_limit, packed, marks, work, pack_at,
                attend_units, attend_limit, packed, marks, work, attend_at,
            )  # fmt: skip
            return Member(family, values, (packing, attending), work, per_thread)

        return of


_Steps = Sequence[int]
#: The geometries of the two parts of a call, and of a call of few queries.
_packing = struct.Struct("@12q").pack
_attending = struct.Struct("@16q").pack
_few_queries = struct.Struct("@20q").pack

#: Bytes of a packed element, and into how many parts it is split.
_ELEMENT_BYTES = {"amx1": 2, "amx2": 4, "amx3": 6, "pairs": 2, "floats": 4}
_PARTS = {"amx1": 1, "amx2": 2, "amx3": 3, "pairs": 1, "floats": 1}
# Rough speeds of one thread, only to decide how many threads a call is worth.
_FLOPS_PER_NS = {"amx1": 800.0, "amx2": 400.0, "amx3": 250.0, "pairs": 100.0, "floats": 100.0}
_SOFTMAX_NS = 0.2
_PACK_NS = 0.2


def _form(call: GQADenseCall) -> str:
    """How the products are computed, see `_panels`.

    Pairs of bfloat16 pay on the vector units only where their product is as fast as a float32 one (AMD). Intel's
    takes two cycles: widening to float32 is as fast, and exact.
    """
    target = cpu_target()
    if target.has_amx:
        return {"bfloat16": "amx1", "float16": "amx2", "float32": "amx3"}[call.q.dtype]
    if call.q.dtype == "bfloat16" and target.has_avx512bf16 and target.cpu.startswith("znver"):
        return "pairs"
    return "floats"


def _visible_pairs(S_q: int, S_kv: int, is_causal: bool) -> float:
    """About how many (query, key) pairs of one head the mask lets through."""
    if is_causal and S_q <= S_kv:
        return S_q * (S_kv - S_q / 2)
    return S_q * S_kv / (2 if is_causal else 1)


class GQADenseDecodeCpuKernel(Kernel, GQADenseFwdInterface):
    """Attention of few queries over many keys, which reads keys and values in place and once.

    The keys are cut into chunks that depend on S_kv alone; threads take chunks, whose results are merged in order. So
    results do not depend on the number of threads.
    """

    devices = frozenset({"cpu"})

    @classmethod
    def refusal(cls, call: GQADenseCall) -> str | None:
        reason = _unsupported(call)
        if reason is None and not _is_dense(call.q, call.k, call.v):
            reason = "elements of a head vector are not neighbours (or an odd number of 16-bit elements)"
        S_q, D = call.q.shape[1], call.q.shape[3]
        if reason is None and S_q * call.group_size > _FEW_QUERIES:
            reason = f"{S_q} x {call.group_size} queries a key/value head; the decode kernel takes {_FEW_QUERIES}"
        if reason is None and D > _LARGEST_HEAD:
            reason = f"head_dim is {D}; the decode kernel takes up to {_LARGEST_HEAD}"
        return reason or super().refusal(call)

    @classmethod
    def compile_class(cls, call: GQADenseCall) -> Hashable:
        if _unsupported(call) is not None:
            return None
        S_q, D, group = call.q.shape[1], call.q.shape[3], call.group_size
        if S_q * group > _FEW_QUERIES or D > _LARGEST_HEAD or not _is_dense(call.q, call.k, call.v):
            return "refused"
        return call.q.dtype, call.o.dtype, D, _heads_together(group), cpu_target().has_avx512bf16

    @classmethod
    def programs(cls, call: GQADenseCall, config: Config) -> dict[str, Program]:
        program = Program.of(
            f"{_FACTORIES}._split_keys_cpu:attend",
            ["i64", "f32", "f32", "ptr", "ptr", "ptr", "ptr", "ptr", "ptr", "i64", "ptr"],
            dtype=call.q.short,
            out_dtype=call.o.short,
            form="pairs" if call.q.dtype == "bfloat16" and cpu_target().has_avx512bf16 else "floats",
            head_dim=call.q.shape[3],
            heads=_heads_together(call.group_size),
        )
        return {"main": program}

    def bind(self, call: GQADenseCall) -> Callable[..., None]:
        batch, queries = call.q.shape[:2]
        bound = self._launches(call)(batch, queries, call.k.shape[1], _steps(call), _cache_layout(call))
        return bound.launcher() if isinstance(bound, Member) else bound

    def resized(self, call: GQADenseCall) -> Callable[..., Callable[..., None] | Member | None] | None:
        if set(call.tensors()) != {"q", "k", "v", "o"}:
            return None
        launch, group, size = self._launches(call), call.group_size, call.q.itemsize
        heads, kv_heads = call.q.shape[2:], call.k.shape[2:]

        def at(
            q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], o: tuple[int, ...]
        ) -> Callable[..., None] | Member | None:
            if q[2:] != heads or k[2:] != kv_heads or q[1] * group > _FEW_QUERIES:
                return None
            keys = _dense_steps(k, size)
            return launch(q[0], q[1], k[1], (*_dense_steps(q, size), *keys, *keys), _TOKENS)

        return at

    def _launches(self, call: GQADenseCall) -> Callable[[int, int, int, _Steps, int], Callable[..., None] | Member]:
        """From batch, queries, keys, the steps of q, k and v and how keys lie in memory to the launch of a call that is
        otherwise like `call`.
        """
        D = call.q.shape[3]
        H_kv, group = call.k.shape[2], call.group_size
        heads = _heads_together(group)
        padded = _round_up(D, 2 * cpu_target().lanes)
        token_bytes = max(1, H_kv * D * (call.k.itemsize + call.v.itemsize))
        most = max(2 * _KEYS, _BLOCK_BYTES // token_bytes // _KEYS * _KEYS)
        left, right = _key_limits(call)
        queries_each, query_bytes = H_kv * _round_up(group, heads), padded * 4
        cost = H_kv * (group + 2) * D * _DECODE_NS
        main, team = self.entries["main"].launch, parallel.team
        scale, cap = float(call.sm_scale), float(call.softcap or 0.0)
        read = (Address(place) for place in range(3))
        alone = Family([(self.entries["main"], (_BOTH, scale, cap, *read, Address(8), 0, 0, 0, None))], 9)

        def of(B: int, S_q: int, S_kv: int, steps: _Steps, layout: int) -> Callable[..., None] | Member:
            chunks = -(-S_kv // min(max(S_kv // 16, 128), 512))
            # An even number of equal chunks: an odd one would leave one of two threads waiting.
            chunks = chunks if chunks < 2 else _round_up(chunks, 2)
            chunk = _round_up(-(-S_kv // max(1, chunks)), _KEYS)
            chunks = max(1, -(-S_kv // max(1, chunk)))
            block = max(_KEYS, min(most, chunk))
            geometry = _few_queries(B, S_q, S_kv, H_kv, group, chunks, chunk, block, left, right, *steps, layout)
            where = address_of(geometry)

            queries = queries_each * S_q
            per_thread = heads * block * 4 + queries * query_bytes
            partial_bytes = B * chunks * queries * (_FACTS_BYTES + query_bytes)
            limit = parallel.limit(B * S_kv * S_q * cost)
            on_stack = partial_bytes + per_thread <= _STACK_BYTES
            units, merge_units = B * chunks, B * H_kv
            if limit < 2 and on_stack:
                return Member(alone, (units, limit, where), geometry)

            def launch(
                q: Any, k: Any, v: Any, q_scale: Any, k_scale: Any, v_scale: Any, rope_cos: Any, rope_sin: Any, o: Any,
                _keep: Any = geometry,
            ) -> None:  # fmt: skip
                threads = team(limit)
                tensors = q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr()
                if threads < 2 and on_stack:
                    main(threads, units, _BOTH, scale, cap, *tensors, 0, 0, 0, where)
                    return
                memory = take(partial_bytes + per_thread * (threads or 1))
                partial = memory.data_ptr()
                rest = partial, partial + partial_bytes, per_thread, where
                if threads < 2:
                    main(threads, units, _BOTH, scale, cap, *tensors, *rest)
                else:
                    merge_threads = team(parallel.limit(partial_bytes * _MERGE_NS))
                    main(threads, units, _CHUNKS, scale, cap, *tensors, *rest)
                    main(merge_threads, merge_units, _MERGE, scale, cap, *tensors, *rest)
                give(memory)

            return launch

        return of


def _steps(call: GQADenseCall) -> list[int]:
    """Bytes from batch to batch, token to token and head to head of q, k and v."""
    return [step for x in (call.q, call.k, call.v) for step in _byte_steps(x)[:3]]


def _dense_steps(shape: tuple[int, ...], size: int) -> tuple[int, int, int]:
    """Bytes from batch to batch, token to token and head to head of a dense tensor."""
    head = shape[3] * size
    token = shape[2] * head
    return shape[1] * token, token, head


def _cache_layout(call: GQADenseCall) -> int:
    """How keys and values lie in memory, see `_split_keys_cpu`."""
    head_bytes, heads = call.k.shape[3] * call.k.itemsize, call.k.shape[2]
    steps = [_bytes(x.strides[1:3], x.itemsize) for x in (call.k, call.v)]
    if all(head == head_bytes and heads * head_bytes <= token <= 2 * heads * head_bytes for token, head in steps):
        return _TOKENS
    return _HEADS if all(0 <= token <= 2 * head_bytes for token, _ in steps) else _SPARSE


def _heads_together(group: int) -> int:
    """How many query heads share the loads of a key: up to four, with little waste in the last of them."""
    return group if group <= 4 else min((4, 3), key=lambda heads: (_round_up(group, heads), -heads))


#: Keys of a chunk and of a block are a multiple of this, so that only the last vector of scores is ragged.
_KEYS = 16
#: Queries of one key/value head up to which the decode kernel is faster than packing the keys.
_FEW_QUERIES = 32
_LARGEST_HEAD = 256
#: Bytes of keys and values (of all heads) that are visited by all heads while the next ones are fetched.
_BLOCK_BYTES = 48 << 10
_STACK_BYTES = 16384
_CHUNKS, _MERGE, _BOTH = 0, 1, 2
_TOKENS, _HEADS, _SPARSE = 0, 1, 2
_FACTS_BYTES = 64
#: Nanoseconds of one thread per element of a key and a value, each counted once and again for each query.
_DECODE_NS = 0.025
#: Nanoseconds per byte of partial results to merge.
_MERGE_NS = 0.05
