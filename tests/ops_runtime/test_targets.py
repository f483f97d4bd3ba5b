"""Third-party targets: registration, the choice among them, what they may return, backends that do not
load.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.ops_runtime.test_effects import RAMP_ENTRY, RampKernel, _ramp_init, make
from tests.ops_runtime.toys import fresh_kernel, make_op
from tileops import backend
from tileops.backend import registry
from tileops.elementwise import SiluAndMulFwdOp
from tileops.errors import (
    AmbiguousTargetError,
    BackendError,
    CheckError,
    OpNotAvailableError,
    TileOpsWarning,
    UnknownTargetError,
)
from tileops.gemm import GemmFwdOp
from tileops.kernels.base import TensorSpec
from tileops.moe import SharedExpertMLPFwdOp


@pytest.fixture(autouse=True)
def clean_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registry", registry._registry.copy())
    monkeypatch.setattr(registry, "_failures", {})


def scale_builder(calls: list[Any], result: Any = None) -> Any:
    def build(x: TensorSpec, bias: TensorSpec | None, **params: Any) -> Any:
        calls.append((x, bias, params))

        def kernel(x: torch.Tensor, bias: torch.Tensor | None) -> Any:
            assert x.is_contiguous()
            return x * params["factor"] if result is None else result(x)

        return kernel

    return build


def acme_op(calls: list[Any] | None = None, result: Any = None, **attributes: Any) -> type:
    kernel = fresh_kernel()
    cls = make_op(kernel, _static_axes=frozenset({(0, -1)}), **attributes)
    backend.register_kernel_builder(cls.__name__, "acme", scale_builder([] if calls is None else calls, result))
    return cls


def test_a_target_replaces_the_computation_after_the_checks() -> None:
    calls: list[Any] = []
    op = acme_op(calls)(3.0, target="acme")
    x = torch.randn(2, 6)[:, ::2]
    assert torch.equal(op(x), x * 3)
    ((spec, bias, params),) = calls
    assert (spec.dtype, spec.shape, bias) == ("float32", (2, 3), None)
    assert params == {"factor": 3.0, "axes": ()}
    with pytest.raises(CheckError, match="float64"):
        op(x.double())
    assert op.eval_roofline()[0] == 6
    assert op.get_or_build_kernel("scale", (x, None)) is not None
    assert len(calls) == 1


def test_the_builder_is_asked_once_for_each_key() -> None:
    calls: list[Any] = []
    op = acme_op(calls)(target="acme")
    for columns in (3, 4, 5):
        op(torch.ones(2, columns))  # the last axis is static: not in the key
    assert len(calls) == 1
    op(torch.ones(7, 3))
    op(torch.ones(7, 3, dtype=torch.bfloat16))
    op(torch.ones(7, 3), torch.ones(7, 3))
    assert len(calls) == 4


def test_full_shape_keys_warn_once_per_type() -> None:
    cls = acme_op()
    cls._static_axes = frozenset()
    with pytest.warns(TileOpsWarning, match="_cache_key"):
        cls(target="acme")(torch.ones(2))
    cls(target="acme")(torch.ones(3))


def test_the_default_target_and_the_detectors() -> None:
    calls: list[Any] = []
    cls = acme_op(calls)
    cls()(torch.ones(2, 2))
    assert not calls
    backend.register_detector("acme", lambda device: device.type == "cpu")
    cls()(torch.ones(2, 2))
    assert len(calls) == 1
    backend.register_detector("other", lambda device: True)
    with pytest.raises(AmbiguousTargetError, match=r"Toy\d+FwdOp: targets acme, other"):
        cls()(torch.ones(2, 3))
    backend.set_default_target("acme")
    cls()(torch.ones(2, 3))
    cls(target=backend.BUILTIN)(torch.ones(2, 3))
    assert len(calls) == 2
    assert backend.registered_targets() == ("builtin", "acme", "other")
    backend.set_default_target(None)


def test_another_default_or_detector_reaches_calls_that_were_made_before() -> None:
    cls = acme_op(result=lambda x: x + 100)
    op, x = cls(), torch.ones(2, 2)
    assert op(x)[0, 0] == 2
    backend.set_default_target("acme")
    assert op(x)[0, 0] == 101
    backend.set_default_target(None)
    assert op(x)[0, 0] == 2
    backend.register_detector("acme", lambda device: device.type == "cpu")
    assert op(x)[0, 0] == 101


def test_an_unknown_target_is_an_error_at_construction() -> None:
    with pytest.raises(UnknownTargetError, match=r"'nobody' is not registered; registered are builtin"):
        make_op(fresh_kernel())(target="nobody")
    with pytest.raises(UnknownTargetError, match=r"\['builtin'\] is not registered"):
        make_op(fresh_kernel())(target=["builtin"])
    with pytest.raises(UnknownTargetError):
        backend.set_default_target("nobody")


def test_a_target_without_the_op_or_that_declines_is_an_error() -> None:
    acme_op()
    with pytest.raises(OpNotAvailableError, match="has no kernel for this op"):
        make_op(fresh_kernel())(target="acme")(torch.ones(2))
    cls = make_op(fresh_kernel(), _static_axes=frozenset({(0, -1)}))
    backend.register_kernel_builder(cls.__name__, "acme", lambda *specs, **params: None)
    with pytest.raises(OpNotAvailableError, match=r"declines the inputs \(float32\[2\] on cpu"):
        cls(target="acme")(torch.ones(2))


def test_a_composite_op_runs_its_composition_on_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target serves it by serving its stages; another builder would take the op itself."""

    def gemm(*specs: Any, trans_b: bool, **params: Any) -> Any:
        return lambda a, b: a @ (b.t() if trans_b else b)

    def gated(*specs: Any, **params: Any) -> Any:
        return lambda x: torch.nn.functional.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]

    for stage in (GemmFwdOp, SiluAndMulFwdOp):
        monkeypatch.setattr(stage, "_cache_key", lambda op, *shapes: shapes)
    backend.register_kernel_builder("GemmFwdOp", "acme", gemm)
    tensors = torch.randn(3, 8), torch.randn(10, 8), torch.randn(8, 5)
    with pytest.raises(OpNotAvailableError, match=r"SiluAndMulFwdOp.*acme"):
        SharedExpertMLPFwdOp(target="acme")(*tensors)
    backend.register_kernel_builder("SiluAndMulFwdOp", "acme", gated)
    op = SharedExpertMLPFwdOp(target="acme")
    assert {stage.target for stage in op.kernel_delegates()} == {"acme"}
    expected = gated()(tensors[0] @ tensors[1].t()) @ tensors[2].t()
    torch.testing.assert_close(op(*tensors), expected)
    assert not list(op.iter_kernels()), "no kernel of ours"


def test_an_op_without_tensors_runs_where_its_target_does() -> None:
    cls = make(RAMP_ENTRY, RampKernel, _ramp_init)
    backend.register_kernel_builder(cls.__name__, "acme", lambda n, **params: lambda: torch.arange(n) * 2.0)
    backend.register_detector("acme", lambda device: device.type == "cpu")
    assert cls(3, target="acme")().tolist() == [0.0, 2.0, 4.0]
    backend.register_kernel_builder(cls.__name__, "elsewhere", lambda **params: None)
    backend.register_detector("elsewhere", lambda device: False)
    with pytest.raises(OpNotAvailableError, match=r"no kernel runs on .*cpu; pass a tensor or a device"):
        cls(3, target="elsewhere")()


def test_names_are_taken_once() -> None:
    cls = acme_op()
    with pytest.raises(BackendError, match="already"):
        backend.register_kernel_builder(cls.__name__, "acme", scale_builder([]))
    backend.register_detector("acme", lambda device: False)
    with pytest.raises(BackendError, match="already"):
        backend.register_detector("acme", lambda device: False)
    with pytest.raises(BackendError, match="reserved"):
        backend.register_detector("builtin", lambda device: True)


def test_what_a_target_registers_can_be_called() -> None:
    with pytest.raises(BackendError, match="build_kernel of target 'acme' must be a function, got 3"):
        backend.register_kernel_builder("AddFwdOp", "acme", 3)  # type: ignore[arg-type]
    with pytest.raises(BackendError, match="detect of target 'acme' must be a function, got True"):
        backend.register_detector("acme", True)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (lambda x: x.sum(), "shape"),
        (lambda x: x.double(), "float64"),
        (lambda x: None, "NoneType"),
        (lambda x: (x * 2, x * 3), "2 results"),
        (lambda x: x, "shares memory"),
        (lambda x: torch.empty(x.shape, device="meta"), "meta"),
        (lambda x: torch.ones(2, 2 * x.shape[1])[:, ::2], "strides"),
        (lambda x: [1], "list"),
    ],
)
def test_what_a_target_returns_is_checked(result: Any, words: str) -> None:
    op = acme_op(result=result)(target="acme")
    with pytest.raises(BackendError, match=words):
        op(torch.ones(2, 3))


def test_kernels_of_a_target_are_not_tuned_here() -> None:
    op = acme_op()(target="acme")
    with pytest.raises(BackendError, match="cannot be tuned"):
        op.autotune()
    with pytest.raises(BackendError, match="cannot be tuned"):
        op.request_tune()


def test_entry_points_of_installed_packages_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, module in (("first", "acme.one"), ("second", "acme.two")):
        info = tmp_path / place / "acme-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[console_scripts]\nx = y:z\n[tileops.backends]\nacme = {module}\n")
    monkeypatch.setattr("sys.path", [str(tmp_path / "first"), str(tmp_path / "second"), *sys.path])
    assert [(point.name, point.value) for point in registry._entry_points() if point.name == "acme"] == [
        ("acme", "acme.one")
    ]


def install(monkeypatch: pytest.MonkeyPatch, name: str, register: Callable[[], None]) -> None:
    """Makes a backend whose entry point is `register` the one that is installed, and not loaded yet."""
    monkeypatch.setattr(registry, "_loaded", False)
    monkeypatch.setattr(registry, "_entry_points", lambda: [SimpleNamespace(name=name, load=lambda: register)])


def test_threads_wait_for_backends_that_another_one_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        assert go.wait(60)
        backend.register_detector("slow", lambda device: False)
        assert "slow" in backend.registered_targets()  # from within, it does not wait for itself

    install(monkeypatch, "slow-backend", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(backend.load_failures)
        assert begun.wait(60)
        second = pool.submit(backend.registered_targets)
        threading.Timer(0.05, go.set).start()
        assert first.result() == {}
        assert "slow" in second.result()


def test_a_backend_that_does_not_load_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        backend.register_detector("broken", lambda device: True)
        raise ImportError("no libacme.so")

    install(monkeypatch, "acme-backend", broken)
    with pytest.warns(RuntimeWarning, match=r"'acme-backend' did not load .*no libacme\.so"):
        assert backend.load_failures() == {"acme-backend": "ImportError: no libacme.so"}
    assert "broken" not in backend.registered_targets()
    with pytest.raises(UnknownTargetError, match="failed to load: acme-backend"):
        make_op(fresh_kernel())(target="broken")
