"""The backend as an installed package: found by its entry point, chosen by name or as the default."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tileops import backend
from tileops.elementwise import AddFwdOp, SiluAndMulFwdOp
from tileops.norm import RMSNormFwdOp


def test_the_entry_point_registers_the_target() -> None:
    assert "reference" in backend.registered_targets()
    assert backend.load_failures() == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weighted", [False, True])
def test_rms_norm(dtype: torch.dtype, weighted: bool) -> None:
    x = torch.randn(3, 5, 8, dtype=dtype)
    weight = torch.randn(8, dtype=dtype) if weighted else None
    y = RMSNormFwdOp((8,), eps=1e-6, target="reference")(x, weight)
    torch.testing.assert_close(y, F.rms_norm(x, (8,), weight, 1e-6), rtol=1.6e-2, atol=1e-2)


def test_silu_and_mul_of_a_transposed_tensor() -> None:
    x = torch.randn(6, 4).t()
    y = SiluAndMulFwdOp(target="reference")(x)
    torch.testing.assert_close(y, F.silu(x[:, :3]) * x[:, 3:])


def test_the_calls_are_checked_before_the_target_sees_them() -> None:
    with pytest.raises(ValueError, match=r"RMSNormFwdOp: inputs\.x\.dtype"):
        RMSNormFwdOp((8,), target="reference")(torch.ones(2, 8, dtype=torch.int64))


def test_as_the_default_target() -> None:
    backend.set_default_target("reference")
    try:
        op = RMSNormFwdOp((4,))
        op(torch.ones(2, 4))
        assert list(op.iter_kernels()) == []  # none of the kernels of TileOPs was built
        with pytest.raises(backend.OpNotAvailableError, match="'reference' has no kernel for this op"):
            AddFwdOp()(torch.ones(2), torch.ones(2))
    finally:
        backend.set_default_target(None)


def test_under_a_compiler() -> None:
    op = SiluAndMulFwdOp(target="reference")
    x = torch.randn(3, 8)
    compiled = torch.compile(lambda x: op(x) + 1, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), F.silu(x[:, :4]) * x[:, 4:] + 1)
