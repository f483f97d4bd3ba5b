"""Eager calls: results on every layout, what a call signature holds, what is planned once, what is
refused.
"""

from __future__ import annotations

import gc
import inspect
import threading
import weakref

import pytest
import torch

from tests.ops_runtime.toys import ToyScaleFwdOp, fresh_kernel, make_op
from tileops.errors import CheckError, OpNotAvailableError
from tileops.ops.plans import PlanCache

LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.t(),
    "every other column": lambda x: x[:, ::2],
    "inner block": lambda x: x[1:, 2:5],
    "expanded": lambda x: x[:1].expand(4, 6),
    "flipped": lambda x: x.flip(0),
    "offset by one": lambda x: torch.empty(25).copy_(torch.arange(25.0))[1:].view(4, 6),
    "neg bit": lambda x: torch.view_as_complex(torch.stack([x, x], -1)).conj().imag,
    "scalar": lambda x: x[0, 0],
    "empty": lambda x: x[:0],
    "one element": lambda x: x[:1, :1],
    "four axes, channels last": lambda x: x.reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_result_does_not_depend_on_the_layout(layout: str) -> None:
    x = LAYOUTS[layout](torch.randn(4, 6))
    op = ToyScaleFwdOp(3.0)
    for _ in range(4):  # planned, then from the plan, then from the plan that is made for many calls
        y = op(x, x)
        assert torch.equal(y, x.resolve_neg() * 3.0 + x)
        assert y.is_contiguous()
        assert y.stride() == torch.empty(y.shape).stride()
        assert not y.is_neg()


def test_a_repeated_signature_is_planned_once_and_a_kernel_serves_every_shape() -> None:
    kernel = fresh_kernel()
    op = make_op(kernel)()
    for rows in (1, 2, 3, 1, 2, 3):
        op(torch.ones(rows, 4))
    assert len(kernel.binds) == 3
    assert len(kernel.builds) == 1
    op(torch.ones(1, 4, dtype=torch.bfloat16))
    assert len(kernel.builds) == 2


@pytest.mark.parametrize(
    "second",
    [
        torch.ones(4, 4),
        torch.ones(5, 5),
        torch.ones(4, 5, dtype=torch.bfloat16),
        torch.ones(4, 10)[:, ::2],
        torch.ones(5, 4).t(),
        torch.ones(1, 5).expand(4, 5),
        torch.ones(4, 5, device="meta"),
    ],
)
def test_signatures_differ(second: torch.Tensor) -> None:
    op = make_op(fresh_kernel())()
    op(torch.ones(4, 5))
    op(second)
    assert len(op._plans) == 2


def test_presence_is_part_of_the_signature() -> None:
    op = ToyScaleFwdOp()
    x = torch.ones(3)
    assert op(x).tolist() == [2.0] * 3
    assert op(x, x).tolist() == [3.0] * 3
    assert op(x, bias=None).tolist() == [2.0] * 3
    assert op(bias=x, x=x).tolist() == [3.0] * 3


def test_a_known_plan_is_left_when_anything_changes() -> None:
    op = ToyScaleFwdOp(3.0)
    x = torch.randn(2, 4)
    parameter = torch.nn.Parameter(torch.randn(2, 4))
    for _ in range(3):
        for t in (
            x,
            x.to(torch.bfloat16),
            x[:, :2],
            x.t(),
            x[:1].expand(2, 4),
            torch._neg_view(x),
            x[0],
            x[:0],
        ):
            for _ in range(2):
                assert torch.equal(op(t), t.resolve_neg() * 3)
                assert torch.equal(op(t, t.clone()), t.resolve_neg() * 4)
                assert torch.equal(op(t, t), t.resolve_neg() * 4)
        for _ in range(2):
            with torch.no_grad():
                assert not op(parameter).requires_grad
                assert not op(x, parameter).requires_grad
            with torch.inference_mode():
                assert op(parameter).is_inference()
                assert torch.equal(op(x * 2, parameter), x * 6 + parameter)
            assert op(parameter).requires_grad
            assert op(x, parameter).requires_grad
            assert not op(x).requires_grad
        with pytest.raises(CheckError):
            op(x, x[:, :2])
        with pytest.raises(CheckError):
            op([x])


def test_strides_of_axes_of_size_one_do_not_make_another_signature() -> None:
    op = make_op(fresh_kernel())()
    op(torch.ones(1, 4))
    op(torch.ones(1, 9).as_strided((1, 4), (9, 1)))
    assert len(op._plans) == 1


def test_real_signature_and_readable_source() -> None:
    assert str(inspect.signature(ToyScaleFwdOp.forward)) == (
        "(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor"
    )
    assert "plan.run(x, bias)" in inspect.getsource(ToyScaleFwdOp.__call__)
    assert "bias: T [*S], optional" in ToyScaleFwdOp.forward.__doc__


@pytest.mark.parametrize(
    ("arguments", "declaration", "words"),
    [
        (([1.0],), "inputs.x", "got list"),
        ((None,), "inputs.x", "required"),
        ((torch.ones(2), 3.0), "inputs.bias", "got float"),
        ((torch.ones(2), torch.ones(3)), "inputs.bias", "3"),
        ((torch.ones(2), torch.ones(2, dtype=torch.bfloat16)), "inputs.bias", "bfloat16"),
        ((torch.ones(2, dtype=torch.float64),), "inputs.x", "float64"),
        ((torch.ones(2, dtype=torch.int32),), "inputs.x", "int32"),
        ((torch.ones(2), torch.ones(2, device="meta")), "inputs.bias", "meta"),
        ((torch.eye(2).to_sparse(),), "inputs.x", "sparse"),
        ((torch.eye(2).to_sparse_csr(),), "inputs.x", "sparse"),
        ((torch.eye(2).to_mkldnn(),), "inputs.x", "mkldnn"),
    ],
)
@pytest.mark.parametrize("warm", [False, True])
def test_wrong_tensors_name_op_declaration_and_values(
    arguments: tuple, declaration: str, words: str, warm: bool
) -> None:
    op = ToyScaleFwdOp()
    if warm:  # a plan of the same shape and strides exists: it must not be taken
        op(torch.ones(2))
        op(torch.eye(2))
        op(torch.ones(1, 1).expand(2, 2))
    with pytest.raises(CheckError) as caught:
        op(*arguments)
    assert caught.value.op == "ToyScaleFwdOp"
    assert declaration in caught.value.declaration
    assert words in str(caught.value)


def test_missing_and_surplus_arguments_are_type_errors() -> None:
    op = ToyScaleFwdOp()
    with pytest.raises(TypeError, match="x"):
        op()
    with pytest.raises(TypeError):
        op(torch.ones(1), torch.ones(1), torch.ones(1))


def test_wrong_parameters_are_refused_at_construction() -> None:
    with pytest.raises(CheckError, match=r"ToyScaleFwdOp: .*factor"):
        ToyScaleFwdOp(factor=-1.0)
    with pytest.raises(CheckError, match=r"ToyScaleFwdOp: .*axes"):
        ToyScaleFwdOp(axes="no")


def test_parameters_are_fixed_at_construction() -> None:
    op = ToyScaleFwdOp(3.0)
    with pytest.raises(AttributeError, match="fixed at construction"):
        op.factor = 4.0


def test_an_empty_output_runs_no_kernel_and_needs_none() -> None:
    kernel = fresh_kernel()
    y = make_op(kernel)()(torch.ones(0, 3))
    assert y.shape == (0, 3)
    assert not kernel.builds
    assert make_op()()(torch.ones(0, 3)).shape == (0, 3)


def test_meta_tensors_need_no_kernel() -> None:
    kernel = fresh_kernel()
    y = make_op(kernel)()(torch.ones(2, 3, device="meta").t())
    assert (y.device.type, y.shape, y.is_contiguous()) == ("meta", (3, 2), True)
    assert not kernel.builds


def test_a_device_without_kernel_is_an_error() -> None:
    with pytest.raises(OpNotAvailableError, match=r"Toy\d+FwdOp: scale: no kernel runs on cpu"):
        make_op(fresh_kernel(devices=frozenset({"cuda"})))()(torch.ones(2))


def test_outputs_follow_the_mode() -> None:
    op = ToyScaleFwdOp()
    x = torch.ones(2)
    with torch.inference_mode():
        assert op(x).is_inference()
    assert not op(x).is_inference()
    with torch.no_grad():
        assert not op(x.requires_grad_()).requires_grad
    with torch.device("meta"):  # a default device is not the call device
        assert op(torch.ones(3, device="cpu")).device.type == "cpu"


def test_a_failed_call_leaves_the_last_one() -> None:
    op = ToyScaleFwdOp()
    assert op.dtype is None
    assert op.device is None
    with pytest.raises(RuntimeError, match="no call has completed yet"):
        op.eval_roofline()
    op(torch.ones(5))
    with pytest.raises(CheckError):
        op(torch.ones(5, dtype=torch.int64))
    assert op.dtype is torch.float32
    assert op.device == torch.device("cpu")
    assert op.eval_roofline() == (5, 40)
    assert op.eval_roofline_read_bytes() == 20
    op(torch.ones(2), torch.ones(2))
    assert op.eval_roofline() == (4, 24)


def test_the_last_call_is_per_thread() -> None:
    op = ToyScaleFwdOp()
    op(torch.ones(5))
    seen: list[object] = []
    worker = threading.Thread(target=lambda: seen.append(op.dtype))
    worker.start()
    worker.join()
    assert seen == [None]


def test_plans_hold_no_tensor_alive() -> None:
    op = ToyScaleFwdOp()
    x = torch.ones(7)
    y = op(x, x)
    references = [weakref.ref(x), weakref.ref(y)]
    del x, y
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_plans_are_bounded_and_recently_used_ones_stay() -> None:
    op = ToyScaleFwdOp()
    hot = torch.ones(3)
    for size in range(4, 2500):
        op(torch.ones(size))
        op(hot)
    assert len(op._plans) <= 1024
    kept = {key[0] for key in op._plans}
    assert hot.shape in kept
    assert torch.Size([2499]) in kept


def test_plan_cache_drops_what_was_not_used() -> None:
    class Item:
        def __init__(self) -> None:
            self.used = True

    cache = PlanCache(3)
    for name in "abc":
        cache.insert(name, Item())
    cache.insert("d", Item())  # everything was used: the hand clears all and drops the oldest
    assert set(cache) == {"b", "c", "d"}
    cache["b"].used = True
    cache.insert("e", Item())
    assert set(cache) == {"b", "d", "e"}


def test_eight_threads_build_one_kernel_and_get_right_answers() -> None:
    kernel = fresh_kernel()
    op = make_op(kernel)()
    barrier = threading.Barrier(8)
    wrong: list[object] = []

    def work(number: int) -> None:
        barrier.wait()
        for round_ in range(200):
            x = torch.full((number % 3 + 1, 4), float(round_))
            if not torch.equal(op(x), x * 2):
                wrong.append((number, round_))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(kernel.builds) == 1
    assert len(kernel.binds) == 3


def test_shapes_and_dtypes_without_tensors() -> None:
    op = ToyScaleFwdOp()
    assert op._infer_output_shapes((3, 4), None) == ((3, 4),)
    with pytest.raises(CheckError):
        op._infer_output_shapes((3, 4), (4,))
    op._validate_dtypes(torch.ones(2), None)
    with pytest.raises(CheckError, match="float64"):
        op._validate_dtypes(torch.ones(2, dtype=torch.float64), None)


def test_kernels_are_enumerated_once() -> None:
    op = make_op(fresh_kernel())()
    assert list(op.iter_kernels()) == []
    assert dict(op.built_kernels("scale")) == {}
    op(torch.ones(2))
    kernel = op.get_or_build_kernel("scale", (torch.ones(9), None))
    assert list(op.iter_kernels()) == [kernel]
    assert list(op.built_kernels("scale").values()) == [kernel]
    assert op.kernel_delegates() == ()
