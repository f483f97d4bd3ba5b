"""Every row of every operator can be planned without tensors, which `tileops warm` and `tune` start from."""

from __future__ import annotations

from importlib import import_module

import pytest

from tileops import manifest
from tileops.kernels.gemm.paths import packed_layouts
from tileops.manifest.workload import cases
from tileops.ops.planned import PlannedCall, device_for, op_class, planned_calls

ENTRIES = [entry for entry in manifest.load_all().values() if entry.status == "implemented"]

pytestmark = pytest.mark.in_tree_kernels


@pytest.mark.parametrize("arch", [None, "sm_90a"], ids=["cpu", "sm_90a"])
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_row_is_planned_or_refused_with_a_reason(entry, arch):
    op = getattr(import_module(f"tileops.{entry.family}"), entry.name)
    device = device_for(arch)
    if not any(device.type in kernel.devices for kernel in op.kernel_types.values()):
        pytest.skip(f"{entry.name} has no kernel for {device.type}")
    found = list(planned_calls(op, device))
    assert {call.case_id for call in found} == {row.case_id for row in cases(entry)}
    programs = 0
    for call in found:
        if isinstance(call, PlannedCall):
            programs += len(call.kernel.programs(call.call, call.kernel.default_config(call.call)))
        else:
            assert call.reason
    assert programs


def test_rows_are_planned_with_packed_weights_on_request():
    op, cpu = op_class("GemmFwdOp"), device_for(None)
    assert op is not None
    plain, both = list(planned_calls(op, cpu)), list(planned_calls(op, cpu, packed=True))
    assert {call.packed for call in plain if isinstance(call, PlannedCall)} == {None}
    packed = [call for call in both if isinstance(call, PlannedCall) and call.packed is not None]
    layouts = {call.call.a.dtype: packed_layouts(call.call.a.dtype) for call in packed}
    assert [(call.case_id, call.packed) for call in packed] == [
        (call.case_id, layout) for call in plain for layout in layouts[call.call.a.dtype]
    ]
    assert list(planned_calls(op, device_for("sm_90a"), packed=True)) == list(planned_calls(op, device_for("sm_90a")))


def test_every_entry_answers_whether_it_has_a_class():
    without = [name for name, entry in manifest.load_all().items() if op_class(name) is None and entry.implemented]
    assert without == []
