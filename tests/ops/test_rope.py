"""Rotary position embeddings against the float64 reference."""

from __future__ import annotations

import threading

import pytest
import torch

from tests.ops.helpers import FLOATS, at_threads, bits, check, on_device
from tileops.errors import CheckError
from tileops.kernels.rope import tables
from tileops.kernels.rope.tables import FIRST_LENGTH, RotaryTable
from tileops.rope import RoPEFwdOp, RoPENeoxPositionIdsFwdOp
from tileops.workloads import inputs, rope

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


@pytest.mark.parametrize("rotary_dim", [0, 2, 6, 32, 50, 96])
@pytest.mark.parametrize("dtype", FLOATS)
def test_partial_rotation_passes_the_rest_through(dtype: torch.dtype, rotary_dim: int) -> None:
    x = values((5, 3, 96), dtype)
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
