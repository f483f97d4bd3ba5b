"""Every row of the manifest that the target serves, against the operator's reference."""

from __future__ import annotations

import torch

from tileops import manifest
from tileops.errors import DispatchError, OpNotAvailableError
from tileops.manifest.workload import cases
from tileops.testing import calls


def test_rows(name: str, target: str, device: torch.device, row_limit: int) -> None:
    ran, declined = 0, []
    for call in cases(manifest.load_entry(name)):
        if sum(item.nbytes for item in (*call.inputs.values(), *call.outputs.values())) > row_limit:
            continue
        item = calls.example(call, device, target)
        try:
            result = item.op(*item.tensors)
        except (DispatchError, OpNotAvailableError) as error:  # it may decline a call, if it says so
            declined.append(f"{call.case_id}: {error}")
            continue
        calls.verify(result, item.expected(), f"{name} {call.case_id}")
        ran += 1
    assert ran, f"{target} serves {name}, but declines every row: {declined[:3]}"
