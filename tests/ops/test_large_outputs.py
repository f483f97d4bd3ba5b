"""Outputs large enough to be mapped afresh at every call: huge pages change their speed, nothing else."""

from __future__ import annotations

import pytest
import torch

from tests.ops.helpers import at_threads
from tileops.elementwise import AddFwdOp
from tileops.kernels import pages

pytestmark = pytest.mark.in_tree_kernels


@pytest.mark.parametrize("faster", [True, False])
def test_results_are_the_same_with_and_without_huge_pages(faster: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "huge_pages_are_faster", lambda: faster)
    a = torch.arange(4096.0)[:, None]
    b = torch.arange(2049.0)
    y = at_threads(2, lambda: AddFwdOp()(a, b))
    assert y.nbytes > pages.MAPPED_FROM
    assert y.is_contiguous()
    assert torch.equal(y, a + b)


def test_which_outputs_are_large() -> None:
    cpu, meta = torch.device("cpu"), torch.device("meta")
    assert pages.large_output((pages.MAPPED_FROM,), torch.uint8, cpu)
    assert pages.large_output((2048, 4096), torch.float32, cpu)
    assert not pages.large_output((pages.MAPPED_FROM - 1,), torch.uint8, cpu)
    assert not pages.large_output((pages.MAPPED_FROM, 0), torch.uint8, cpu)
    assert not pages.large_output((2048, 4096), torch.float32, meta)


def test_any_range_may_be_advised() -> None:
    room = torch.zeros(5 << 20, dtype=torch.uint8)
    for offset, length in ((0, 0), (1, 10), (4095, 2), (17, 5_000_000)):
        pages.advise(room.data_ptr() + offset, length)
    assert not room.any()


def test_the_measurement_gives_an_answer() -> None:
    assert pages.huge_pages_are_faster() in (True, False)
