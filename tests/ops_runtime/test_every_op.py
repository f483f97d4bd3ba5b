"""The suite that any target has to pass, on the kernels of this package."""

from __future__ import annotations

import pytest

from tests.ops_runtime.representatives import repeats
from tileops import backend, manifest
from tileops.testing import calls
from tileops.testing.conftest import device, selected_target, target, thorough
from tileops.testing.test_calls import *  # noqa: F403

__all__ = ["device", "target", "thorough"]
pytestmark = pytest.mark.in_tree_kernels

#: What needs kernels of its own, or exercises the operator's torch binding, which one function generates: nightly for
#: operators that others stand for.
NIGHTLY = {"test_layouts", "test_export", "test_sizes_may_vary_under_a_compiler"}

#: Of small calls only: each stage rounds its result, which the reference does not.
COMPOSITE = [name for name, entry in manifest.load_all(strict=False).items() if entry.implemented and entry.composition]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" not in metafunc.fixturenames:
        return
    target = selected_target(metafunc.config)
    names = calls.operators(target) + (COMPOSITE if target in (None, backend.BUILTIN) else [])
    nightly = pytest.mark.nightly
    if "thorough" in metafunc.fixturenames:
        cases = [pytest.param(name, not repeats(name), id=name) for name in names]
        cases += [pytest.param(name, True, id=f"{name}-thorough", marks=nightly) for name in names if repeats(name)]
        metafunc.parametrize(("name", "thorough"), cases)
    else:
        later = metafunc.function.__name__ in NIGHTLY
        marks = [[nightly] if later and repeats(name) else [] for name in names]
        metafunc.parametrize("name", [pytest.param(name, marks=mark) for name, mark in zip(names, marks, strict=True)])
