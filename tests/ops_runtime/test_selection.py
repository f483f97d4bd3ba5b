"""Choosing a kernel: availability, refusals, the general one, preferences, ambiguity; and the checks of a
declaration.
"""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch

from tests.ops_runtime.toys import ScaleCall, ScaleFwdInterface, fresh_kernel, make_op
from tileops.errors import BackendError, DispatchError, OpNotAvailableError
from tileops.kernels.base import CallSpec, DeviceFacts, Kernel, KernelInterface, TensorSpec
from tileops.kernels.norm.call_spec import RMSNormFwdInterface
from tileops.ops import selection

X = TensorSpec.contiguous("float32", (4,))
CALL = ScaleCall(X, None, X, 2.0)
ON_CUDA = ScaleCall(X, None, X, 2.0, device=DeviceFacts("cuda", 0, "sm_90", 132))


def refusing(reason: str) -> dict:
    return {"refusal": classmethod(lambda cls, call: reason)}


def choose(*kernels: type[Kernel], call: CallSpec = CALL) -> type[Kernel]:
    return selection.choose("Toy", "scale", kernels, call)


def test_the_only_one_that_accepts() -> None:
    good, bad = fresh_kernel(), fresh_kernel(**refusing("too wide"))
    assert choose(bad, good) is good


def test_the_general_one_comes_last() -> None:
    general, special = fresh_kernel(general=True), fresh_kernel()
    assert choose(general, special) is special
    assert choose(general, fresh_kernel(**refusing("no"))) is general


def test_preference_is_transitive_even_through_one_that_refuses() -> None:
    last = fresh_kernel()
    middle = fresh_kernel(preferred_over=(last,), **refusing("no"))
    first = fresh_kernel(preferred_over=(middle,))
    assert choose(last, middle, first) is first


def test_two_that_accept_are_ambiguous() -> None:
    with pytest.raises(
        DispatchError, match=r"Toy: scale: several kernels accept .*Kernel\d+, Kernel\d+.*preferred_over"
    ):
        choose(fresh_kernel(), fresh_kernel())


def test_refusals_are_listed_and_nothing_falls_back() -> None:
    kernels = fresh_kernel(**refusing("rows are too long")), fresh_kernel(**refusing("x is strided"))
    with pytest.raises(DispatchError) as caught:
        choose(*kernels)
    message = str(caught.value)
    for words in ("Toy: scale", "rows are too long", "x is strided", "float32[4] on cpu", "factor=2.0"):
        assert words in message


def test_device_and_architecture() -> None:
    cpu = fresh_kernel()
    hopper = fresh_kernel(devices=frozenset({"cuda"}), supported_archs=frozenset({"sm_90"}))
    ampere = fresh_kernel(devices=frozenset({"cuda"}), supported_archs=frozenset({"sm_80"}))
    assert choose(cpu, hopper, ampere) is cpu
    assert choose(cpu, hopper, ampere, call=ON_CUDA) is hopper
    with pytest.raises(OpNotAvailableError, match=r"no kernel runs on cuda \(sm_90\).*runs on cpu.*runs on sm_80"):
        choose(cpu, ampere, call=ON_CUDA)


def test_explain_gives_a_verdict_on_each() -> None:
    chosen, refused = fresh_kernel(), fresh_kernel(**refusing("no"))
    general, cuda = fresh_kernel(general=True), fresh_kernel(devices=frozenset({"cuda"}))
    verdicts = {v.kernel: (v.outcome, v.reason) for v in selection.explain((chosen, refused, general, cuda), CALL)}
    assert verdicts == {
        chosen: ("chosen", ""),
        refused: ("refused", "no"),
        general: ("outranked", f"{chosen.__name__} is preferred"),
        cuda: ("unavailable", "runs on cuda"),
    }


class Unrelated(Kernel):
    """Implements nothing."""


class Double(Kernel, ScaleFwdInterface, RMSNormFwdInterface):
    """Implements two."""


class Other(Kernel, RMSNormFwdInterface):
    """Implements another interface."""


@pytest.mark.parametrize(
    ("kernel", "words"),
    [(Unrelated, "none"), (Double, "exactly one"), (Other, "RMSNormFwdInterface"), (int, "not a subclass")],
)
def test_a_class_that_does_not_fit_the_op(kernel: type, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        make_op(kernel)()


def test_two_general_kernels() -> None:
    with pytest.raises(ValueError, match="2 general kernels"):
        make_op(fresh_kernel(general=True), fresh_kernel(general=True))()


def test_preferences_must_stay_in_the_interface_and_have_no_cycle() -> None:
    with pytest.raises(ValueError, match="another interface"):
        make_op(fresh_kernel(preferred_over=(Other,)))()
    first = fresh_kernel()
    second = fresh_kernel(preferred_over=(first,))
    first.preferred_over = (second,)
    with pytest.raises(ValueError, match="cycle"):
        make_op(first, second)()


def test_an_interface_names_fields_of_its_call_spec() -> None:
    with pytest.raises(TypeError, match="nonsense"):

        class WrongFwdInterface(KernelInterface):
            call_spec: ClassVar = ScaleCall
            tensors: ClassVar = ("x", "nonsense")


def test_registered_kernel_types_reach_later_instances_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from tileops.backend import register_kernel_type, registry

    monkeypatch.setattr(registry, "_registry", registry._registry.copy())
    slow, fast = fresh_kernel(general=True), fresh_kernel()
    cls = make_op(slow)
    before = cls()
    register_kernel_type(cls.__name__, "fast", fast)
    before(torch.ones(2))
    cls()(torch.ones(2))
    assert (len(slow.builds), len(fast.builds)) == (1, 1)
    with pytest.raises(BackendError, match="registered already"):
        register_kernel_type(cls.__name__, "fast", fast)
    register_kernel_type(cls.__name__, "kernel0", fast)
    with pytest.raises(BackendError, match="exist already"):
        cls()


def test_tensor_spec_of_layouts() -> None:
    assert TensorSpec("cpu", "bfloat16", (1, 4), (9, 1), 2).is_contiguous
    assert not TensorSpec("cpu", "float32", (2, 4), (9, 1), 4).is_contiguous
    assert str(TensorSpec("cpu", "float32", (2, 4), (9, 1), 4)) == "float32[2, 4] on cpu, strides [9, 1]"
    assert (X.numel, X.itemsize, X.short, X.ndim) == (4, 4, "f32", 1)
