"""Rotary position embeddings against the float64 reference."""

from __future__ import annotations

import copy
import io
import math
import pickle
import threading
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.ops.helpers import FLOATS, at_threads, bits, build, check, on_device, spec_of
from tileops.errors import CheckError
from tileops.kernels.rope import tables
from tileops.kernels.rope.call_spec import RoPECall
from tileops.kernels.rope.rope_cpu import RoPECpuKernel
from tileops.kernels.rope.tables import FIRST_LENGTH, RotaryTable
from tileops.ops.base import Op
from tileops.rope import LongRoPEFwdOp, RoPEFwdOp, RoPELlama31FwdOp, RoPENeoxPositionIdsFwdOp, YaRNFwdOp
from tileops.workloads import inputs, rope, workload

pytestmark = pytest.mark.in_tree_kernels

LAYOUTS = ("neox", "interleaved")


def values(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return on_device(inputs.draw(shape, dtype, inputs.generator("RoPEFwdOp", "x")))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dim", [2, 4, 6, 8, 14, 16, 30, 32, 34, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("dtype", FLOATS)
def test_head_dims(dtype: torch.dtype, dim: int, layout: str) -> None:
    x = values((2, 5, 3, dim), dtype)
    y = RoPEFwdOp(rope_layout=layout, input_layout="2d", base=500000.0)(x)
    want = rope.rope(x, rope_layout=layout, input_layout="2d", base=500000.0)
    check(y, want, controls=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seq_len", [0, 1, 7, 1500])
def test_one_sequence(seq_len: int, layout: str) -> None:
    x = values((seq_len, 64), torch.float32)
    y = RoPEFwdOp(rope_layout=layout, input_layout="1d")(x)
    check(y, rope.rope(x, rope_layout=layout, input_layout="1d"))


def test_pairs_by_hand() -> None:
    """A quarter turn of the first pair at position one: base 1 gives every pair the angle of one radian."""
    x = on_device(torch.arange(1.0, 5.0)[None].repeat(2, 1))
    cos, sin = on_device(torch.tensor(1.0).cos()), on_device(torch.tensor(1.0).sin())
    neox = RoPEFwdOp(rope_layout="neox", input_layout="1d", base=1.0)(x)
    pairs = RoPEFwdOp(rope_layout="interleaved", input_layout="1d", base=1.0)(x)
    assert torch.equal(neox[0], x[0])
    want = [cos - 3 * sin, 2 * cos - 4 * sin, 3 * cos + sin, 4 * cos + 2 * sin]
    torch.testing.assert_close(neox[1], torch.stack(want))
    want = [cos - 2 * sin, 2 * cos + sin, 3 * cos - 4 * sin, 4 * cos + 3 * sin]
    torch.testing.assert_close(pairs[1], torch.stack(want))


def test_a_quarter_turn_of_a_part_by_hand() -> None:
    """With base 1 all pairs turn by the position in radians; 33 is a quarter turn but for a hundredth of a radian."""
    x = on_device(torch.arange(1.0, 7.0)[None, None])
    ids = on_device(torch.tensor([33]))
    y = RoPENeoxPositionIdsFwdOp(max_position=64, base=1.0, rotary_dim=4)(x, ids)
    torch.testing.assert_close(y[0, 0].cpu(), torch.tensor([-3.0, -4.0, 1.0, 2.0, 5.0, 6.0]), rtol=0, atol=0.06)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_layout_in_memory(dtype: torch.dtype, layout: str) -> None:
    x = values((2, 3, 4, 22), dtype)
    op = RoPEFwdOp(rope_layout=layout, input_layout="2d")
    want = rope.rope(x, rope_layout=layout, input_layout="2d")
    for name, view in inputs.layouts(x):
        y = op(view)
        check(y, want, context=name)
        assert y.is_contiguous()
    spread = x[:, :1].expand(2, 3, 4, 22)
    check(op(spread), rope.rope(spread, rope_layout=layout, input_layout="2d"))


@pytest.mark.parametrize("heads", [1, 9])
@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", FLOATS)
def test_position_ids(dtype: torch.dtype, ids_dtype: torch.dtype, heads: int) -> None:
    x = values((7, heads, 64), dtype)
    ids = on_device(torch.tensor([0, 5, 5, 8191, 3, 1023, 1024], dtype=ids_dtype))
    y = RoPENeoxPositionIdsFwdOp(max_position=8192, base=100000.0)(x, ids)
    check(y, rope.rope_neox_position_ids(x, ids, base=100000.0), controls=True)


@pytest.mark.parametrize(
    ("width", "rotary_dim"),
    [(96, 0), (96, 2), (96, 6), (96, 32), (96, 50), (96, 96), (6, 4), (6, 6), (192, 192), (256, 192)],
)
@pytest.mark.parametrize("dtype", FLOATS)
def test_partial_rotation_passes_the_rest_through(dtype: torch.dtype, width: int, rotary_dim: int) -> None:
    x = values((5, 3, width), dtype)
    ids = on_device(torch.tensor([9, 0, 100, 3, 2]))
    y = RoPENeoxPositionIdsFwdOp(max_position=128, rotary_dim=rotary_dim)(x, ids)
    check(y, rope.rope_neox_position_ids(x, ids, rotary_dim=rotary_dim))
    assert torch.equal(bits(y[..., rotary_dim:]), bits(x[..., rotary_dim:]))


def test_query_rows_of_a_packed_projection() -> None:
    qkv = values((6, 960), torch.bfloat16)
    query = qkv[:, :576].view(6, 9, 64)
    ids = on_device(torch.arange(12))[::2]
    y = RoPENeoxPositionIdsFwdOp(max_position=64)(query, ids)
    check(y, rope.rope_neox_position_ids(query, ids), controls=True)


def test_layouts_with_position_ids() -> None:
    x, ids = values((6, 4, 22), torch.float16), on_device(torch.tensor([3, 1, 4, 1, 5, 9]))
    want = rope.rope_neox_position_ids(x, ids, rotary_dim=10)
    op = RoPENeoxPositionIdsFwdOp(max_position=16, rotary_dim=10)
    for name, view in inputs.layouts(x):
        for ids_name, ids_view in inputs.layouts(ids):
            check(op(view, ids_view), want, context=f"x {name}, position_ids {ids_name}")
    same = on_device(torch.tensor([7])).expand(6)
    check(op(x, same), rope.rope_neox_position_ids(x, same, rotary_dim=10))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("offset", range(16))
def test_storage_offsets(dtype: torch.dtype, offset: int) -> None:
    x, ids = (
        inputs.at_offset(values((3, 2, 34), dtype), offset),
        inputs.at_offset(on_device(torch.tensor([1, 2, 3])), offset),
    )
    y = RoPENeoxPositionIdsFwdOp(max_position=4)(x, ids)
    check(y, rope.rope_neox_position_ids(x, ids))


@pytest.mark.parametrize("bad", [-1, 16, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64])
def test_positions_out_of_range_are_an_error(ids_dtype: torch.dtype, bad: int) -> None:
    op, x = RoPENeoxPositionIdsFwdOp(max_position=16), values((3, 2, 8), torch.float32).cpu()
    ids = torch.tensor([0, bad, 15], dtype=ids_dtype)
    with pytest.raises(CheckError, match=rf"position_ids\[1\] is {bad}, max_position is 16"):
        op(x, ids)
    ids[1] = 15
    check(op(x, ids), rope.rope_neox_position_ids(x, ids))


def test_positions_far_into_a_table_that_grows() -> None:
    op, x = (
        RoPENeoxPositionIdsFwdOp(max_position=1 << 20, base=12345.0),
        values((2, 1, 8), torch.float32).cpu(),
    )
    for position in (0, FIRST_LENGTH - 1, FIRST_LENGTH, 5 * FIRST_LENGTH, 3):
        ids = torch.tensor([position, 1])
        check(op(x, ids), rope.rope_neox_position_ids(x, ids, base=12345.0))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("ids_dtype", "far"), [(torch.int64, 2**31 + 5), (torch.int64, 2**40), (torch.int32, 2**31 - 2)]
)
def test_positions_too_far_out_for_a_table(dtype: torch.dtype, ids_dtype: torch.dtype, far: int) -> None:
    """A table up to there would take 8 GB and more: these calls compute their own angles."""
    op = RoPENeoxPositionIdsFwdOp(max_position=far + 1)
    x, base = values((5, 2, 8), dtype).cpu(), values((5, 2, 16), dtype).cpu()[..., ::2]
    ids = torch.tensor([0, far, 7, far - 1, 7, far], dtype=ids_dtype)
    for source, which in ((x, ids[:5]), (x, ids[1:]), (base, ids[:5]), (x, ids[1:2].expand(5))):
        check(op(source, which), rope.rope_neox_position_ids(source, which), controls=True)
    with pytest.raises(CheckError, match=rf"position_ids\[1\] is {far}, max_position is {far}"):
        RoPENeoxPositionIdsFwdOp(max_position=far)(x, ids[:5])


def test_a_table_stays_within_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "LARGEST", 8 * 4 * 4096)
    table = RotaryTable(8, 10000.0)
    assert table.holds(4096)
    assert not table.holds(4097)
    table.at_least(5000)  # a sequence that is there has to be covered
    assert table.holds(8192)


def test_many_far_positions_are_computed_in_pieces() -> None:
    ids = torch.arange(2**33, 2**33 + 9000)
    rows = RotaryTable(4, 10000.0).rows_of(ids)
    assert (rows.length, tuple(rows.tensor.shape)) == (9000, (9000, 4))
    torch.testing.assert_close(rows.tensor[:, 0], ids.double().cos().float())


def test_a_table_grows_by_doubling_and_keeps_what_it_has() -> None:
    table = RotaryTable(8, 10000.0)
    before = table.at_least(1)
    after = table.at_least(2 * FIRST_LENGTH + 1)
    assert after.length == 4 * FIRST_LENGTH
    assert torch.equal(before.tensor, after.tensor[:FIRST_LENGTH])
    assert table.at_least(5) is after


def test_threads_grow_one_table_together() -> None:
    op, x = (
        RoPENeoxPositionIdsFwdOp(max_position=1 << 16, base=777.0),
        values((4, 2, 16), torch.float32).cpu(),
    )
    failures: list[str] = []

    def work(seed: int) -> None:
        for step in range(12):
            ids = torch.tensor([0, seed, 1 << step, 2500 * (step + 1)])
            want = rope.rope_neox_position_ids(x, ids, base=777.0)
            if not torch.allclose(op(x, ids).double(), want, rtol=1e-5, atol=1e-5):
                failures.append(f"thread {seed}, step {step}")

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_results_do_not_depend_on_the_number_of_threads(dtype: torch.dtype, layout: str) -> None:
    x = values((1, 600, 4, 64), dtype).cpu()
    op = RoPEFwdOp(rope_layout=layout, input_layout="2d")
    one, two = (at_threads(count, lambda: op(x)) for count in (1, 2))
    assert torch.equal(bits(one), bits(two))


def test_infinities_and_nan_stay_within_their_pair() -> None:
    x = values((4, 1, 8), torch.float32)
    x[1, 0, 0], x[2, 0, 5] = torch.nan, torch.inf
    ids = on_device(torch.arange(4))
    check(RoPENeoxPositionIdsFwdOp(max_position=4)(x, ids), rope.rope_neox_position_ids(x, ids))


#: Each scaled operator and construction parameters, with original lengths so short that a small head meets every branch
#: of the scaling.
SCALED: dict[str, tuple[type[Op], dict[str, Any]]] = {
    "llama31": (RoPELlama31FwdOp, {"scale_factor": 8.0, "original_max_position": 64}),
    "yarn": (
        YaRNFwdOp,
        {"scale": 4.0, "original_max_position": 64, "beta_fast": 8.0, "attn_factor": 0.75, "base": 500.0},
    ),
    "long rope": (LongRoPEFwdOp, {"scale": 32.0}),
}


def scaled(name: str, dim: int, **params: Any) -> Op:
    cls, defaults = SCALED[name]
    held = {"rescale_factors": torch.linspace(1.0, 60.0, dim // 2)} if cls is LongRoPEFwdOp else {}
    return cls(**{**defaults, **held, **params})


def expected(op: Op, x: torch.Tensor) -> torch.Tensor:
    return workload(type(op).__name__).reference(x, **op._construction.params)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("dtype", FLOATS)
def test_scaled_frequencies(dtype: torch.dtype, name: str, layout: str) -> None:
    for shape in ((2, 70, 5, 64), (2, 70, 4, 22), (1, 3, 1, 2), (1, 2100, 2, 8)):
        x = values(shape, dtype)
        op = scaled(name, shape[-1], rope_layout=layout)
        check(op(x), expected(op, x), controls=shape[1] > 3, context=str(shape))
    x = values((90, 32), dtype)
    op = scaled(name, 32, rope_layout=layout, input_layout="1d")
    check(op(x), expected(op, x), controls=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("dtype", FLOATS)
def test_scaled_frequencies_in_every_layout_in_memory(dtype: torch.dtype, name: str, layout: str) -> None:
    x = values((2, 3, 5, 34), dtype)
    op = scaled(name, 34, rope_layout=layout)
    want = expected(op, x)
    for where, view in inputs.layouts(x):
        check(op(view), want, context=where)
    for offset in range(16):
        check(op(inputs.at_offset(x, offset)), want, context=f"offset {offset}")


def test_llama_3_by_hand() -> None:
    """base 1 turns every pair by one radian a position, 81.5 times within 512 positions."""
    x = on_device(torch.tensor([[1.0, 0.0]]).repeat(2, 1))

    def angle(low: float, high: float) -> float:
        op = RoPELlama31FwdOp(
            input_layout="1d", base=1.0, scale_factor=4.0, low_freq_factor=low, high_freq_factor=high,
            original_max_position=512,
        )  # fmt: skip
        cos, sin = op(x)[1].double().cpu()
        return float(torch.atan2(sin, cos))

    turns = 512 / (2 * math.pi)
    assert angle(1.0, 4.0) == pytest.approx(1.0, abs=1e-6)  # fast: kept
    assert angle(100.0, 200.0) == pytest.approx(0.25, abs=1e-6)  # slow: stretched
    assert angle(turns - 1.0, turns + 3.0) == pytest.approx(0.25 + 0.75 * 0.25, abs=1e-6)  # a quarter of the way up


def test_yarn_by_hand() -> None:
    """Of pairs 0 to 3 with frequencies 1, 1/10, 1/100, 1/1000 the first is kept, the last is stretched."""
    x = on_device(torch.tensor([[1.0, 0.0] * 4]).repeat(2, 1))
    # 2 pi * 10 positions are ten turns of pair 0 and one of pair 1: the ramp goes from pair 0 to pair 1.
    op = YaRNFwdOp(
        rope_layout="interleaved", input_layout="1d", base=10000.0, scale=2.0, original_max_position=62,
        beta_fast=10.0, beta_slow=1.0, attn_factor=3.0,
    )  # fmt: skip
    pairs = op(x)[1].double().cpu().view(4, 2)
    angles = torch.atan2(pairs[:, 1], pairs[:, 0])
    torch.testing.assert_close(angles, torch.tensor([1.0, 0.05, 0.005, 0.0005]).double(), rtol=1e-5, atol=0)
    length = 3.0 * (0.1 * math.log(2.0) + 1.0)
    torch.testing.assert_close(pairs.norm(dim=1), torch.full((4,), length).double(), rtol=1e-6, atol=0)


def test_yarn_without_room_for_a_ramp() -> None:
    """Both ends on one pair, beyond the last and before the first: what the reference makes of it."""
    x = values((1, 9, 2, 16), torch.float32)
    for params in (
        {"original_max_position": 1 << 30, "beta_fast": 1.0},
        {"original_max_position": 1, "beta_fast": 64.0},
        {"original_max_position": 64, "beta_fast": 1.0, "scale": 0.5},
        {"scale": 1.0, "attn_factor": 2.0},
    ):
        op = YaRNFwdOp(**params)
        check(op(x), expected(op, x), context=str(params))
    with pytest.raises(CheckError, match=r"base != 1"):
        YaRNFwdOp(base=1.0)


@pytest.mark.parametrize(
    ("op", "names"),
    [
        (RoPEFwdOp, ("base",)),
        (RoPELlama31FwdOp, ("base", "scale_factor", "low_freq_factor", "high_freq_factor")),
        (YaRNFwdOp, ("base", "scale", "beta_fast", "beta_slow", "attn_factor")),
        (LongRoPEFwdOp, ("base", "scale")),
        (RoPENeoxPositionIdsFwdOp, ("base",)),
    ],
)
def test_parameters_that_are_no_numbers_of_float32_are_refused(op: type[Op], names: tuple[str, ...]) -> None:
    others = {"max_position": 8} if op is RoPENeoxPositionIdsFwdOp else {}
    for name in names:
        values = (math.inf, -math.inf, math.nan, 1e39, -1e39)
        for value in values if name == "attn_factor" else (*values, 0.0, -1.0, 1e-320):
            with pytest.raises(CheckError, match=rf"shape_rules.*does not hold for.*{name}="):
                op(**others, **{name: value})


def test_the_largest_and_smallest_parameters_have_results() -> None:
    x = torch.ones(3, 4)
    for far in (1e37, 1e-37):
        ops = [RoPEFwdOp(base=far, input_layout="1d"), LongRoPEFwdOp(scale=far, base=far, input_layout="1d")]
        ops.append(YaRNFwdOp(scale=far, beta_fast=1e37, beta_slow=1e-37, attn_factor=1e37, input_layout="1d"))
        ops.append(RoPELlama31FwdOp(scale_factor=far, low_freq_factor=1e-37, high_freq_factor=1e37, input_layout="1d"))
        for op in ops:
            assert op(x).isfinite().all(), op


def test_long_rope_amplitude() -> None:
    x = values((1, 9, 2, 16), torch.float32)
    for scale, longer in ((0.5, 1.0), (1.0, 1.0), (4096.0, math.sqrt(2.0))):
        op = LongRoPEFwdOp(scale=scale, original_max_position=4096)
        check(op(x), longer * rope.rope(x, input_layout="2d"), context=f"scale {scale}")


@pytest.mark.parametrize("factors_dtype", FLOATS)
def test_factors_may_lie_anywhere(factors_dtype: torch.dtype) -> None:
    x = values((1, 40, 3, 16), torch.float32)
    factors = on_device(torch.linspace(1.0, 9.0, 8).to(factors_dtype))
    want = expected(LongRoPEFwdOp(rescale_factors=factors.clone()), x)
    for where, view in inputs.layouts(factors):
        check(LongRoPEFwdOp(rescale_factors=view)(x), want, context=where)


def test_factors_are_read_at_each_call() -> None:
    """A model may be built first and loaded in place afterwards."""
    x = values((1, 40, 3, 16), torch.float32)
    factors = on_device(torch.ones(8))
    op = LongRoPEFwdOp(rescale_factors=factors)
    check(op(x), rope.rope(x, input_layout="2d"))
    factors.copy_(torch.linspace(1.0, 9.0, 8))
    check(op(x), expected(op, x))
    factors.data.mul_(2.0)
    check(op(x), expected(op, x))
    with torch.inference_mode():
        check(LongRoPEFwdOp(rescale_factors=torch.full_like(factors, 2.0))(x), expected(_twice(), x))


def test_factors_without_data_serve_no_call_on_another_device() -> None:
    op = LongRoPEFwdOp(rescale_factors=torch.ones(8, device="meta"))
    assert op(torch.empty(1, 4, 3, 16, device="meta")).is_meta
    with pytest.raises(CheckError, match=r"params.rescale_factors: expected a tensor with data .* got one on meta"):
        op(values((1, 4, 3, 16), torch.float32))


def _twice() -> Op:
    return LongRoPEFwdOp(rescale_factors=on_device(torch.full((8,), 2.0)))


def test_copies_have_factors_of_their_own() -> None:
    x = values((1, 40, 3, 16), torch.float32)
    op = LongRoPEFwdOp(scale=8.0, rescale_factors=on_device(torch.linspace(1.0, 9.0, 8)))
    want = expected(op, x)
    copies = copy.deepcopy(op), pickle.loads(pickle.dumps(op))
    check(op(x), want)
    op.rescale_factors.fill_(1.0)
    for other in copies:
        check(other(x), want)


def test_factors_are_part_of_an_exported_program() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rope = LongRoPEFwdOp(scale=8.0, rescale_factors=on_device(torch.linspace(1.0, 9.0, 8)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.rope(x)

    model, x = Model(), values((1, 40, 3, 16), torch.float32)
    buffer = io.BytesIO()
    torch.export.save(torch.export.export(model, (x,)), buffer)
    buffer.seek(0)
    check(torch.export.load(buffer).module()(x), expected(model.rope, x))


def test_a_graph_builds_the_op_of_its_factors_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And tells ops apart that differ in their factors only."""
    x = values((1, 40, 3, 16), torch.float32)
    ops = [LongRoPEFwdOp(rescale_factors=on_device(torch.linspace(1.0, last, 8))) for last in (2.0, 9.0)]
    compiled = torch.compile(lambda x: [op(x) for op in ops], backend="eager")
    for y, op in zip(compiled(x), ops, strict=True):
        check(y, expected(op, x))

    def built(*args: Any, **params: Any) -> None:
        raise AssertionError("an op was built")

    monkeypatch.setattr(LongRoPEFwdOp, "__init__", built)
    for y, op in zip(compiled(x), ops, strict=True):
        check(y, expected(op, x))


def test_factors_that_do_not_fit_the_head_are_named() -> None:
    op = LongRoPEFwdOp(rescale_factors=torch.ones(8))
    with pytest.raises(CheckError, match="rescale_factors") as caught:
        op(torch.zeros(1, 2, 3, 32))
    assert "8" in str(caught.value)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_outputs_written_past_the_caches(layout: str) -> None:
    """The same bits as outputs that are written into them, wherever they lie."""
    x = values((2, 40, 5, 96), torch.float32).cpu()
    call = RoPECall(spec_of(x), spec_of(x), layout, "2d", 10000.0)
    streaming, plain = (build(RoPECpuKernel, call, streaming=flag) for flag in (True, False))
    want = torch.empty_like(x)
    plain(x, want)
    for offset in (0, 1, 8, 16):
        out = inputs.at_offset(torch.zeros_like(x), offset)
        streaming(x, out)
        assert torch.equal(bits(out), bits(want))
    assert RoPECpuKernel.default_config(call) == {"streaming": False}
    large = replace(spec_of(x), shape=(2, 4096, 5, 128))
    assert RoPECpuKernel.default_config(replace(call, output=large)) == {"streaming": True}
