"""Every row of every entry, implemented or not, runs its generated checks, inference and cost on meta tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.contract.rows import constructed, counted_bytes, tensors_of
from tileops import manifest
from tileops.manifest.workload import Call, cases
from tileops.ops.dtypes import name_of
from tileops.ops.signature_codegen import CallSignature, Checked, signature_for

ENTRIES = manifest.load_all(strict=False)


def _shapes(checked: Checked) -> dict[str, tuple[tuple[int, ...], str]]:
    return {item.name: (tuple(item.shape), name_of(item.dtype)) for item in checked.outputs if item is not None}


def _check_row(signature: CallSignature, call: Call) -> None:
    construction = constructed(signature, call)
    tensors = tensors_of(signature, call)
    checked = signature.check_call(construction, tensors)
    expected = {name: (item.shape, item.dtype) for name, item in call.outputs.items()}
    assert _shapes(checked) == expected
    shared = sorted(checked.indices.keys() & call.indices.keys())
    assert [checked.indices[name] for name in shared] == [call.indices[name] for name in shared]
    assert checked.device is None or checked.device.type == "meta"
    _check_costs(signature, checked, call)
    _check_buffer(signature, construction, checked, call)


def _check_costs(signature: CallSignature, checked: Checked, call: Call) -> None:
    entry = signature.entry
    metadata = {name: item.values for name, item in call.inputs.items() if item.values is not None}
    flops, moved = signature.roofline(checked, metadata)
    assert (flops, moved) == call.roofline()
    assert flops >= 0
    read, written = counted_bytes(entry, checked, call)
    assert signature.read_bytes(checked) == read
    if entry.roofline.func is None and entry.roofline.bytes is None:
        assert moved == read + written
    else:
        # A formula of its own counts the elements that a call really touches: never more than it is given.
        assert 0 <= moved <= read + written


def _check_buffer(signature: CallSignature, construction: Any, checked: Checked, call: Call) -> None:
    """The same call with ``out``: the same result, written where it was passed."""
    buffered = [slot.name for slot in signature.outputs if slot.buffer]
    if not buffered:
        return
    output = next(item for item in checked.outputs if item is not None and item.name == buffered[0])
    out = torch.empty(output.shape, dtype=output.dtype, device="meta")
    given = signature.check_call(construction, tensors_of(signature, call, out))
    assert _shapes(given) == _shapes(checked)
    assert "out" in given.written
    assert signature.read_bytes(given) == signature.read_bytes(checked)


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_rows(name: str) -> None:
    entry = ENTRIES[name]
    assert not entry.problems, entry.problems
    signature = signature_for(entry)
    calls = cases(entry)
    assert calls
    for call in calls:
        try:
            _check_row(signature, call)
        except Exception as error:
            error.add_note(f"{entry.file}: {name}, row {call.case_id}")
            raise
