"""The interpreter runs every instruction form that it models, and models every form that our kernels use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.ptx.ptxsim import GlobalMemory, conformance, launch, parse
from tests.ptx.ptxsim.forms import ELEMENTWISE

CASES = list(conformance.cases())


def execute(case: conformance.Case) -> np.ndarray:
    memory = GlobalMemory()
    args = [memory.place(array) for array in case.inputs]
    output = memory.place(np.zeros(case.count, case.output), writable=True)
    launch(case.ptx, memory, case.threads // conformance.BLOCK, conformance.BLOCK, [*args, output])
    return memory.fetch(output, (case.count,), (case.output.itemsize,), case.output)


@pytest.mark.parametrize("group", range(8))
def test_elementwise_forms_compute_what_they_say(group):
    for case in CASES[group::8]:
        if case.name in ELEMENTWISE:
            form = ELEMENTWISE[case.name]
            sources = [
                array.astype(bool) if kind == "pred" else array
                for array, kind in zip(case.inputs, form.sources, strict=True)
            ]
            with np.errstate(all="ignore"):
                expected = form.compute(*sources)
            expected = expected.astype(np.uint32) if form.result == "pred" else expected
            assert case.agrees(execute(case), np.ascontiguousarray(expected).view(case.output)), case.name


@pytest.mark.parametrize("case", [case for case in CASES if case.name not in ELEMENTWISE], ids=lambda case: case.name)
def test_structural_forms(case):
    result = execute(case)
    source = case.inputs[0]
    lane = np.arange(128) % 32
    warp = np.arange(128) // 32 * 32
    if case.name.startswith("ld."):
        expected = source.view(np.uint16)
    elif case.name.startswith("shfl"):
        mode = case.name.split(".")[2]
        from_lane = {
            "bfly": lane ^ 5,
            "up": np.where(lane >= 3, lane - 3, lane),
            "down": np.where(lane + 7 < 32, lane + 7, lane),
            "idx": np.full(128, 11),
        }[mode]
        expected = source[warp + from_lane]
    elif "bar.sync" in case.name:
        expected = source.reshape(-1, conformance.BLOCK)[:, ::-1].reshape(-1)
    elif case.name.startswith("@"):
        expected = np.where(np.arange(128) % 2 == 1, source, 7)
    elif case.name.startswith("bra"):
        sums = []
        for count in range(32):
            total = 1
            for left in range(count, 0, -1):
                total = (total * 3 + left) & 0xFFFFFFFF
            sums.append(total)
        expected = np.array(sums, np.uint32)[warp * 0 + (lane ^ 1)]
    else:
        expected = (source << np.uint32(16)) | (source >> np.uint32(16))
    np.testing.assert_array_equal(result, expected)


def test_the_assembler_accepts_every_case():
    nvjitlink = pytest.importorskip("cuda.bindings.nvjitlink", reason="needs the cuda13 extra")
    for case in CASES:
        data = case.ptx.encode()
        handle = nvjitlink.create(1, ["-arch=sm_90a"])
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), case.name)
        nvjitlink.complete(handle)
        nvjitlink.destroy(handle)


def test_the_documentation_lists_every_instruction():
    text = (Path(__file__).parents[2] / "docs/measurements/README.md").read_text()
    missing = [case.name for case in CASES if f"`{case.name}`" not in text]
    assert not missing, "run scripts/device_check.py --list and put its table into docs/measurements/README.md"


def test_every_case_is_a_module_that_parses():
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
    for case in CASES:
        program = parse(case.ptx)
        assert len(program.params) == len(case.inputs) + 1
        for form in case.name.split(", "):
            if "." in form and not form.startswith(("mov", "@")):
                assert form in program.forms(), case.name
