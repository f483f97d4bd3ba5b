"""Words on integers of every width and on masks, on every CPU target, against torch."""

from __future__ import annotations

import pytest
import torch

from tileops import jit
from tileops.jit import Program

_DTYPES = {"i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64}


@pytest.mark.parametrize("element", _DTYPES)
def test_words(target, element):
    dtype = _DTYPES[element]
    info = torch.iinfo(dtype)
    n = 1024
    generator = torch.Generator().manual_seed(2)
    x, y = (torch.randint(-5, 6, (n,), generator=generator, dtype=dtype) for _ in range(2))
    x[:4], y[:4] = torch.tensor([info.min, info.max, info.min, 0]), torch.tensor([info.max, info.min, info.min, 1])
    out = torch.empty(21, n, dtype=dtype)
    entry = jit.get_entry(Program.of("jit_test_bodies:integers", ["ptr", "ptr", "ptr", "i64"], element=element), target)
    entry.launch(0, n, x.data_ptr(), y.data_ptr(), out.data_ptr(), n)
    positive, even = x > 0, y % 2 == 0
    masks = [
        *(torch.where(positive, even, ~even), torch.where(positive, True, even), positive == even, positive != even),
        *(positive < even, positive >= even, positive + even, positive * even, even, even),
        *(torch.maximum(positive, even), torch.minimum(positive, even), even),
        *(positive, x.float() < y.float()),
    ]
    rows = [x.abs(), x.sign(), torch.maximum(x, y), torch.minimum(x, y), x.clamp(max=3)]
    want = [*rows, torch.where(even, x, y), *(mask.to(dtype) for mask in masks)]
    for row, (got, expected) in enumerate(zip(out, want, strict=True)):
        different = got != expected
        assert not different.any(), (row, x[different][:4], y[different][:4], got[different][:4])
