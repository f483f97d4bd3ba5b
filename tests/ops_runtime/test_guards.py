"""The private names of torch: what happens without each of them, and that their answers are checked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch

from tests.ops_runtime.toys import fresh_kernel, make_op
from tileops.jit.cpu import _torch_tensors
from tileops.ops import _torch_guards as guards_module
from tileops.ops.base import Op

LYING = {
    "mode_depth": lambda: 0,
    "transform": lambda: None,
    "tracing": lambda: 0.5,
    "profiling": lambda: None,
    "autocast": lambda: False,
}


@pytest.fixture(autouse=True)
def fresh_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards_module, "_guards", None)


@pytest.fixture
def dispatched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    taken: list[str] = []
    original = Op._dispatched

    def noted(self: Op, tensors: tuple) -> object:
        taken.append(type(self).__name__)
        return original(self, tensors)

    monkeypatch.setattr(Op, "_dispatched", noted)
    return taken


def smoke() -> None:
    """Eager, strided, in-place changed and compiled calls of a class that is generated now."""

    torch._dynamo.reset()
    op = make_op(fresh_kernel())(3.0)
    x = torch.randn(4, 6)
    for view in (x, x.t(), x[:, ::2], torch._neg_view(x)):
        assert torch.equal(op(view, view), view.resolve_neg() * 4)
    assert torch.equal(torch.compile(op, fullgraph=True, backend="eager")(x), x * 3)
    with torch.inference_mode():
        assert torch.equal(op(x), x * 3)
    assert op.eval_roofline()[0] == 24


def test_all_names_are_there_in_this_torch(dispatched: list[str]) -> None:
    assert guards_module.guards().reason is None
    smoke()
    assert len(dispatched) == 1  # the neg view


@pytest.mark.parametrize("name", guards_module._NAMES)
def test_without_a_name_every_call_takes_the_dispatcher(
    name: str, monkeypatch: pytest.MonkeyPatch, dispatched: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(guards_module._NAMES, name, ("_C", "_gone"))
    smoke()
    assert len(dispatched) >= 5
    assert "_gone" in caplog.text


def test_without_any_name(monkeypatch: pytest.MonkeyPatch, dispatched: list[str]) -> None:
    for name in guards_module._NAMES:
        monkeypatch.setitem(guards_module._NAMES, name, ("_C", "_gone"))
    smoke()
    assert len(dispatched) >= 5


@pytest.mark.parametrize("name", LYING)
def test_a_name_that_changed_its_meaning_is_found_out(name: str) -> None:
    names = {key: guards_module._lookup(path) for key, path in guards_module._NAMES.items()}
    assert guards_module._self_check(names) is None
    assert guards_module._self_check({**names, name: LYING[name]}) is not None


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


SETTINGS = {
    "device": partial(torch.device, "meta"),
    "dtype": partial(default_dtype, torch.float64),
    "autocast": partial(torch.autocast, "cpu"),
    "inference": torch.inference_mode,
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_program_may_import_under_any_setting(setting: str) -> None:
    with SETTINGS[setting]():
        assert guards_module.guards().reason is None
        assert _torch_tensors._load()[1] == ""


@pytest.mark.parametrize("version", ["2.12.1", "2.15.0a0+git", "3.0.0"])
def test_an_unknown_torch_is_not_trusted(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert "outside" in (guards_module.guards().reason or "")
