"""Tiles: register blocks, transposes, loops and conditions, on every CPU target."""

from __future__ import annotations

import pytest
import torch

from tileops import jit
from tileops.errors import KernelCompileError
from tileops.jit import Program


def test_transposes(target):
    n = target.lanes
    x = torch.randn(n, n)
    y, sums = torch.empty(n, n), torch.empty(n)
    entry = jit.get_entry(Program.of("jit_test_bodies:transposed", ["ptr"] * 3), target)
    entry.launch(0, 1, x.data_ptr(), y.data_ptr(), sums.data_ptr())
    assert torch.equal(y, x.t())
    torch.testing.assert_close(sums, x.sum(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_matmul(target, dtype):
    rows, vectors, K = 3, 2, 37
    width = vectors * target.lanes
    N = 2 * width - 3
    element = torch.float32 if dtype == "f32" else torch.bfloat16
    per_word = 1 if dtype == "f32" else 2
    a = torch.randn(rows, K * per_word).to(element)
    b = torch.randn(K * per_word, 2 * width).to(element)
    # Panels of `width` columns; a row of a panel holds the words of one k unit.
    packed = b.view(K, per_word, 2, width).permute(2, 0, 3, 1).contiguous()
    c = torch.full((rows, 2 * width), 7.0)
    args = ["i64", "i64", "ptr", "i64", "ptr", "ptr", "i64"]
    entry = jit.get_entry(Program.of("jit_test_bodies:matmul", args, rows=rows, vectors=vectors, dtype=dtype), target)
    lda, ldc = a.stride(0) * a.element_size(), c.stride(0) * 4
    entry.launch(1, 2, K, N, a.data_ptr(), lda, packed.data_ptr(), c.data_ptr(), ldc)
    torch.testing.assert_close(c[:, :N], (a.double() @ b.double()).float()[:, :N], rtol=1e-5, atol=1e-4)
    assert (c[:, N:] == 7).all()


def test_control_flow(target):
    values = torch.arange(-20, 60)
    out = torch.empty_like(values)
    entry = jit.get_entry(Program.of("jit_test_bodies:control", ["ptr", "ptr"]), target)
    entry.launch(0, len(values), values.data_ptr(), out.data_ptr())

    def value(x: int) -> int:
        low = x // 3 * 2 if x % 3 == 0 else x + 1
        total = sum(range(2, x, 3))
        return min(max(low, -5), 40) * 1000 + (total if total > 20 else -1)

    assert out.tolist() == [value(x) for x in values.tolist()]


def test_a_branch_on_a_traced_value_is_refused_with_the_remedy():
    with pytest.raises(KernelCompileError, match=r"no truth value.*use select"):
        jit.compile_program(Program.of("jit_test_bodies:branching", ["ptr"]))
