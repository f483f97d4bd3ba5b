"""What users of similar libraries reported, on our operators: each test is one kind of failure."""

from __future__ import annotations

import pytest
import torch

from tests.ops.helpers import check
from tileops import jit
from tileops.attention import GQADenseFwdOp
from tileops.elementwise import AddFwdOp, SiluAndMulFwdOp
from tileops.errors import CheckError
from tileops.gemm import GemmFwdOp
from tileops.norm import RMSNormFwdOp
from tileops.rope import RoPENeoxPositionIdsFwdOp
from tileops.workloads import attention, norm

pytestmark = pytest.mark.in_tree_kernels


def test_incidental_values_compile_nothing() -> None:
    """Batch sizes around 16, odd strides, scalars of a call: specialising on any of them surprises in production."""
    x, weight = torch.randn(17, 128), torch.ones(64)
    RMSNormFwdOp((64,), eps=1e-5)(x[:3, :64], weight)
    before = jit.stats().compiled + jit.stats().loaded
    for eps in (1e-5, 1e-6):
        op = RMSNormFwdOp((64,), eps=eps)
        for batch in (1, 2, 15, 16, 17):
            for rows in (x[:batch, :64], x[:batch, 3:67], x[:batch, :64].contiguous()):
                op(rows, weight)
    assert jit.stats().compiled + jit.stats().loaded == before


def test_offsets_beyond_32_bits() -> None:
    """Rows that lie 2**30 elements apart, the last beyond 2**31. Memory that is not touched costs nothing."""
    row = 2**30
    room = torch.empty(2 * row + 64, dtype=torch.bfloat16)
    x = room.as_strided((3, 64), (row, 1))
    x.copy_(torch.randn(3, 64))
    near = x.contiguous()
    assert torch.equal(RMSNormFwdOp((64,))(x), RMSNormFwdOp((64,))(near))
    assert torch.equal(AddFwdOp()(x, x), near + near)
    assert torch.equal(SiluAndMulFwdOp()(x), SiluAndMulFwdOp()(near))
    assert torch.equal(GemmFwdOp()(x, x), GemmFwdOp()(near, near))
    ids = torch.arange(3)
    rope = RoPENeoxPositionIdsFwdOp(max_position=8)
    assert torch.equal(rope(x[:, None], ids), rope(near[:, None], ids))
    far, close = x[None, :, None], near[None, :, None]
    attend = GQADenseFwdOp()
    assert torch.equal(attend(far, far, far), attend(close, close, close))


@pytest.mark.parametrize(("S_q", "S_kv"), [(1, 0), (1, 1), (1, 17), (4, 2), (40, 2)])
def test_an_empty_set_of_keys_gives_zeros(S_q: int, S_kv: int) -> None:
    q, k = torch.randn(1, S_q, 4, 32), torch.randn(1, S_kv, 2, 32)
    o = GQADenseFwdOp()(q, k, k)
    hidden = max(0, S_q - S_kv)
    assert torch.equal(o[:, :hidden], torch.zeros_like(o[:, :hidden]))
    check(o, attention.gqa_dense(q, k, k))


def test_a_large_half_precision_row_does_not_overflow_and_a_zero_row_is_nan_without_eps() -> None:
    assert (RMSNormFwdOp((256,))(torch.full((2, 256), 300.0, dtype=torch.float16)) == 1.0).all()
    assert RMSNormFwdOp((8,), eps=0.0)(torch.zeros(2, 8)).isnan().all()


def test_long_sums_lose_nothing() -> None:
    """One float32 total stops at 2**24 ones."""
    ones = torch.ones(1, 2**25)
    assert GemmFwdOp()(ones, ones).item() == 2**25
    assert RMSNormFwdOp((2**25,), eps=0.0)(ones)[0, -1] == 1.0


@pytest.mark.parametrize("at", ["first", "middle", "last"])
@pytest.mark.parametrize("size", [1, 31, 32, 33, 1023, 1025])
def test_one_nan_reaches_its_whole_row_and_no_other(size: int, at: str) -> None:
    x = torch.randn(3, size)
    x[1, {"first": 0, "middle": size // 2, "last": size - 1}[at]] = torch.nan
    y = RMSNormFwdOp((size,))(x)
    assert y[1].isnan().all()
    check(y[::2].contiguous(), norm.rms_norm(x[::2], normalized_shape=(size,)))


def test_devices_that_differ_are_both_named() -> None:
    for op, tensors in (
        (AddFwdOp(), (torch.ones(3), torch.ones(3, device="meta"))),
        (GemmFwdOp(), (torch.ones(2, 8, device="meta"), torch.ones(4, 8))),
    ):
        with pytest.raises(CheckError, match=r"cpu.*meta|meta.*cpu"):
            op(*tensors)


def test_written_results_are_never_the_input() -> None:
    """Custom operators must not return their arguments, even where the result equals one of them."""
    x = torch.ones(2, 1, 8)
    for result in (AddFwdOp()(x, torch.zeros(8)), RoPENeoxPositionIdsFwdOp(4)(x, torch.zeros(2, dtype=torch.int64))):
        assert torch.equal(result, x)
        assert result.data_ptr() != x.data_ptr()
