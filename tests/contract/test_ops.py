"""Implemented ops against their entries: public names, calls on meta tensors, and what serves each row."""

from __future__ import annotations

import importlib
import importlib.util
import json
from typing import Any

import pytest
import torch

from tests.contract.rows import python_value, tensors_of
from tileops import backend, manifest
from tileops.backend import registry
from tileops.kernels.base import DeviceFacts, TensorSpec
from tileops.manifest.entry import Entry
from tileops.manifest.workload import Call, cases
from tileops.ops import targets
from tileops.ops.base import Op
from tileops.ops.planned import PlannedCall, device_for, planned_calls
from tileops.ops.signature_codegen import signature_for
from tileops.workloads import inputs

ENTRIES = manifest.load_all(strict=False)
FAMILIES = sorted({entry.family for entry in ENTRIES.values()})


def _module(family: str) -> Any:
    """The public module of a family, or None while no op of it exists."""
    name = f"tileops.{family}"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


def op_class(entry: Entry) -> type[Op] | None:
    return getattr(_module(entry.family), entry.name, None)


IMPLEMENTED = [name for name, entry in sorted(ENTRIES.items()) if entry.implemented]
#: What the target of these tests promises: kernels of its own for every op.
TARGET = "contract"


@pytest.mark.parametrize("family", FAMILIES)
def test_public_names_are_the_entries_that_have_a_class(family: str) -> None:
    names = {name for name, entry in ENTRIES.items() if entry.family == family}
    module = _module(family)
    if module is None:
        assert not [name for name in names if ENTRIES[name].implemented]
        return
    defined = {name for name in names if isinstance(getattr(module, name, None), type)}
    assert set(module.__all__) == defined
    assert len(set(module.__all__)) == len(module.__all__)
    package = importlib.import_module(f"tileops.ops.{family}")
    assert set(package.__all__) == set(module.__all__)


@pytest.mark.parametrize("name", IMPLEMENTED)
def test_arguments_that_a_constructor_does_not_take_are_refused_in_its_name(name: str) -> None:
    cls = op_class(ENTRIES[name])
    with pytest.raises(TypeError, match=rf"^{name}\b"):
        cls(*range(40))
    with pytest.raises(TypeError, match=rf"^{name}\b"):
        cls(no_such_parameter=1)


def test_every_op_class_has_an_entry() -> None:
    for family in FAMILIES:
        module = _module(family)
        for name in () if module is None else module.__all__:
            getattr(module, name)
    written = [cls for cls in _subclasses(Op) if cls.__module__.startswith("tileops.ops.")]
    named = {cls.__name__ for cls in written if not cls.__subclasses__()}
    assert named - set(ENTRIES) == set()
    assert set(IMPLEMENTED) <= named


def _subclasses(cls: type) -> list[type]:
    return [found for direct in cls.__subclasses__() for found in (direct, *_subclasses(direct))]


def _instance(cls: type[Op], call: Call, **options: Any) -> Op:
    signature = signature_for(cls.entry)
    params = {name: python_value(signature, name, value) for name, value in call.values.items()}
    if not call.inputs and "device" in params:
        params["device"] = "meta"
    return cls(**params, **inputs.held(call, "meta"), **options)


@pytest.mark.parametrize("name", IMPLEMENTED)
def test_calls_on_meta_tensors(name: str) -> None:
    cls = op_class(ENTRIES[name])
    assert cls is not None, f"tileops.{ENTRIES[name].family} has no {name}"
    for call in cases(ENTRIES[name]):
        op = _instance(cls, call)
        tensors = dict(zip(cls._signature.forward_order, tensors_of(cls._signature, call), strict=True))
        passed = {key: tensor for key, tensor in tensors.items() if tensor is not None}
        result = op(**passed)
        results = result if isinstance(result, tuple) else (result,)
        for declared, tensor in zip(ENTRIES[name].signature.outputs, results, strict=True):
            expected = call.outputs.get(declared)
            assert (tensor is None) == (expected is None)
            if expected is not None:
                assert (tuple(tensor.shape), str(tensor.dtype)) == (expected.shape, f"torch.{expected.dtype}")
                assert tensor.device.type == "meta"
                assert tensor.is_contiguous()


def _devices(cls: type[Op]) -> list[DeviceFacts]:
    kinds = {kind for kernel in cls.kernel_types.values() for kind in kernel.devices}
    return [*([device_for(None)] if "cpu" in kinds else ()), *([device_for("sm_90")] if "cuda" in kinds else ())]


@pytest.mark.in_tree_kernels
@pytest.mark.parametrize("name", IMPLEMENTED)
def test_the_builtin_target_serves_every_row(name: str) -> None:
    """One kernel for each row on every kind of device that has any, or the reason why none; programs are plain
    values.
    """
    cls = op_class(ENTRIES[name])
    assert cls is not None
    if cls.delegate_types and not cls.kernel_types:
        return  # its stages are rows of their own
    assert "cpu" in {kind for kernel in cls.kernel_types.values() for kind in kernel.devices}
    for device in _devices(cls):
        served = 0
        for planned in planned_calls(cls, device):
            if not isinstance(planned, PlannedCall):
                assert name in planned.reason
                assert any(kernel.__name__ in planned.reason for kernel in cls.kernel_types.values())
                continue
            served += 1
            config = planned.kernel.default_config(planned.call)
            for program in planned.kernel.programs(planned.call, config).values():
                json.dumps([program.factory, program.config, program.args])
                assert program.device == device.type
        assert served


@pytest.mark.filterwarnings("ignore:.*_cache_key:tileops.errors.TileOpsWarning")
@pytest.mark.parametrize("name", IMPLEMENTED)
def test_another_target_is_asked_for_every_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A builder gets the specs and the parameters of the row, and results as the entry declares them pass."""
    cls = op_class(ENTRIES[name])
    assert cls is not None
    monkeypatch.setattr(registry, "_registry", registry._registry.copy())
    asked: list[tuple[tuple[TensorSpec | None, ...], dict[str, Any]]] = []

    def build(*specs: TensorSpec | None, **params: Any) -> Any:
        asked.append((specs, params))
        return lambda *tensors: None

    if cls.entry.composition:
        return  # it runs its stages, which are asked
    backend.register_kernel_builder(name, TARGET, build)
    signature = cls._signature
    for call in cases(ENTRIES[name]):
        op = _instance(cls, call, target=TARGET)
        tensors = tensors_of(signature, call)
        checked = signature.check_call(op._construction, tensors)
        op._target_kernel(TARGET, tensors, op._facts_of(tensors))
        specs, params = asked.pop()
        shapes = {n: None if s is None else (s.shape, s.dtype) for n, s in zip(cls._input_names, specs, strict=True)}
        rows = {n: (call.inputs[n].shape, call.inputs[n].dtype) if n in call.inputs else None for n in cls._input_names}
        assert shapes == rows
        assert params == op._construction.params
        results = tuple(
            None if found is None else torch.empty(found.shape, dtype=found.dtype, device="meta")
            for found in checked.outputs
        )
        declared = cls.entry.signature.outputs
        targets.check_results(name, TARGET, results, declared, checked.outputs, torch.device("meta"), tensors)
