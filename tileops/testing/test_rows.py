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
            calls.check(item, f"{name} {call.case_id}")
        except (DispatchError, OpNotAvailableError) as error:  # it may decline a call, if it says so
            declined.append(f"{call.case_id}: {error}")
            continue
        ran += 1
    assert ran, f"{target} serves {name}, but declines every row: {declined[:3]}"
