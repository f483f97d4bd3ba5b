"""Small calls that native code does as a whole: the same results, and Python wherever native code cannot."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from tileops.attention import GQADenseFwdOp
from tileops.elementwise import AddFwdOp, SiluAndMulFwdOp
from tileops.errors import CheckError
from tileops.gemm import GemmFwdOp
from tileops.jit.cpu import _torch_tensors, direct, scratch
from tileops.norm import RMSNormFwdOp
from tileops.ops.base import Op


def run_of(op: Op, *tensors: torch.Tensor) -> Callable[..., torch.Tensor]:
    """What the op runs for tensors like these after a few calls."""
    for _ in range(4):
        op(*tensors)
    hot = op._hot
    plan = next(plan for plan in (hot.bare, hot.full) if plan.fits(*tensors))
    return plan.run


def is_direct(run: Callable[..., Any]) -> bool:
    return type(run) is type(len)


@pytest.fixture
def fresh() -> Iterator[None]:
    _torch_tensors._found.cache_clear()
    yield
    _torch_tensors._found.cache_clear()


RANDOM = torch.Generator().manual_seed(4)
X, W = torch.randn(3, 64, generator=RANDOM), torch.randn(64, generator=RANDOM)
LARGE = torch.randn(300, 1024, generator=RANDOM)  # worth several threads
TALL, WIDE = torch.randn(70, 96, generator=RANDOM), torch.randn(50, 96, generator=RANDOM)
HEADS = torch.randn(1, 40, 2, 32, generator=RANDOM)


def attention(x: torch.Tensor) -> torch.Tensor:
    """Of `x` to itself."""
    heads = x.transpose(1, 2)
    return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2)


@pytest.mark.parametrize(
    ("make", "tensors", "expected"),
    [
        (AddFwdOp, (X, W), X + W),
        (AddFwdOp, (X[:, ::2], torch.ones(3, 32)), X[:, ::2] + 1),
        (lambda: RMSNormFwdOp((64,), eps=1e-6), (X, W), torch.nn.functional.rms_norm(X, (64,), W, 1e-6)),
        (lambda: RMSNormFwdOp((64,), eps=1e-6), (X,), torch.nn.functional.rms_norm(X, (64,), None, 1e-6)),
        (SiluAndMulFwdOp, (X,), torch.nn.functional.silu(X[:, :32]) * X[:, 32:]),
        (AddFwdOp, (LARGE, LARGE + 1), LARGE + (LARGE + 1)),
        (SiluAndMulFwdOp, (LARGE,), torch.nn.functional.silu(LARGE[:, :512]) * LARGE[:, 512:]),
        (GemmFwdOp, (TALL[:2], WIDE), TALL[:2] @ WIDE.T),
        (GemmFwdOp, (TALL, WIDE), TALL @ WIDE.T),
        (GemmFwdOp, (TALL.bfloat16(), WIDE.bfloat16()), TALL.bfloat16() @ WIDE.bfloat16().T),
        (lambda: GemmFwdOp(trans_a=True), (TALL, torch.eye(70)), TALL.T),
        (lambda: GemmFwdOp(trans_b=False), (TALL[:2, ::2], WIDE[:48, ::3]), TALL[:2, ::2] @ WIDE[:48, ::3]),
        (lambda: GemmFwdOp(trans_b=False), (TALL[:, ::2], WIDE[:48, ::3]), TALL[:, ::2] @ WIDE[:48, ::3]),
        (GQADenseFwdOp, (HEADS[:, :2], HEADS[:, :2].clone(), HEADS[:, :2].clone()), attention(HEADS[:, :2])),
        (GQADenseFwdOp, (HEADS, HEADS.clone(), HEADS.clone()), attention(HEADS)),
    ],
)
def test_calls_are_direct(make: Callable[[], Op], tensors: tuple, expected: torch.Tensor) -> None:
    op = make()
    run = run_of(op, *tensors)
    if tensors[0].is_contiguous() or isinstance(op, GemmFwdOp):
        assert is_direct(run)
    operands = tensors + (None,) * (len(op._input_names) - len(tensors))
    for _ in range(3):
        result = run(*operands)
        assert result.is_contiguous()
        assert type(result) is torch.Tensor
        torch.testing.assert_close(result, expected)
    with torch.inference_mode():
        assert run(*operands).is_inference()
    assert not result.is_inference()


def test_results_live_as_long_as_they_are_held() -> None:
    op = AddFwdOp()
    run = run_of(op, X, W)
    results = [run(X, W) for _ in range(100)]
    assert len({result.data_ptr() for result in results}) == 100
    storage = results[0].untyped_storage()
    del results
    torch.testing.assert_close(torch.empty(0).set_(storage), (X + W).view(-1))


def test_what_native_code_does_not_know_goes_through_python() -> None:
    run = run_of(AddFwdOp(), X, W)
    assert is_direct(run)

    class Marked(torch.Tensor):
        pass

    torch.testing.assert_close(run(X.as_subclass(Marked), W), X + W)
    torch.testing.assert_close(run(torch.nn.Parameter(X, requires_grad=False), W), X + W)
    with pytest.raises(TypeError, match="launch"):
        run(X)
    with pytest.raises(AttributeError, match="data_ptr"):
        run(X, 3)


def test_memory_in_a_layout_of_its_own_is_not_read() -> None:
    op = AddFwdOp()
    assert is_direct(run_of(op, X, W))
    with pytest.raises(CheckError, match=r"AddFwdOp: inputs.input: .*torch._mkldnn; convert it with .to_dense"):
        op(X.to_mkldnn(), W)


def test_without_memory_the_error_is_torchs(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Native code that gets no memory asks Python, which raises, or gets some."""
    functions = _torch_tensors.functions()
    assert functions is not None
    prototype = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int] * 3, ctypes.c_void_p
    )
    asked = []

    def nothing(*arguments: object) -> int:
        asked.append(arguments)
        return 1

    callback = prototype(nothing)
    address = ctypes.cast(callback, ctypes.c_void_p).value or 0
    monkeypatch.setattr(_torch_tensors, "functions", lambda: replace(functions, empty_strided=address))
    run = run_of(AddFwdOp(), X, W)
    asked.clear()
    torch.testing.assert_close(run(X, W), X + W)
    assert len(asked) == 1


@pytest.mark.parametrize("name", _torch_tensors._NAMES)
def test_without_a_private_name_calls_go_through_python(
    name: str, fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_torch_tensors._NAMES, name, (_torch_tensors._NAMES[name][0], "tileops_no_such_symbol"))
    run = run_of(AddFwdOp(), X, W)
    assert not is_direct(run)
    assert "tileops_no_such_symbol" in (_torch_tensors.reason() or "")
    torch.testing.assert_close(run(X, W), X + W)


@pytest.mark.parametrize("version", ["2.12.1", "2.15.0a0+git"])
def test_an_unknown_torch_is_not_trusted(version: str, fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert _torch_tensors.functions() is None


def test_answers_are_checked() -> None:
    libraries = {name: ctypes.PyDLL(name) for name in ("libtorch_cpu.so", "libtorch_python.so")}
    calls = {name: getattr(libraries[library], symbol) for name, (library, symbol) in _torch_tensors._NAMES.items()}
    assert _torch_tensors._self_check(calls, {torch.float32: 6}) is None
    assert "float32" in (_torch_tensors._self_check(calls, {torch.float32: 7}) or "")
    assert "another address" in (_torch_tensors._self_check({**calls, "data_ptr": lambda handle, found: 0}, {}) or "")


def test_calls_that_need_scratch_memory_share_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that finds it too small or in use takes memory in Python, as often as that is so."""
    monkeypatch.setattr(scratch, "shared", scratch._Shared())
    shared, in_python, asked = scratch.shared, direct._in_python, []
    monkeypatch.setattr(direct, "_in_python", lambda *arguments: asked.append(0) or in_python(*arguments))
    op, expected = GemmFwdOp(), TALL @ WIDE.T
    for times in (0, 1, 1):
        torch.testing.assert_close(op(TALL, WIDE), expected)
        assert len(asked) == times
    size = shared.facts[1]
    assert size >= TALL.numel() * 6  # rows are packed into three bfloat16 parts
    shared.facts[2] = 1
    torch.testing.assert_close(op(TALL, WIDE), expected)
    assert list(shared.facts[1:]) == [size, 1]
    assert len(asked) == 2
    shared.grow(4 * size)
    assert len(shared._blocks) == 2  # who works in the first goes on
    shared.facts[2] = 0
    torch.testing.assert_close(op(TALL, WIDE), expected)
    assert list(shared.facts[1:]) == [4 * size, 0]
    shared.grow(8 * size)
    assert len(shared._blocks) == 1
    shared.grow(scratch.KEEP_BYTES + 1)
    assert shared.facts[1] == 8 * size
    assert len(asked) == 2
    member = direct.Member(direct.Family([], 3), (), scratch=scratch.KEEP_BYTES + 1)
    assert member.family.direct(member, (2, 2), torch.float32) is None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_the_memory_of_a_call_in_its_parent() -> None:
    op, expected = GemmFwdOp(), TALL @ WIDE.T
    run_of(op, TALL, WIDE)
    scratch.shared.facts[2] = 1
    try:
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            right = torch.allclose(op(TALL, WIDE), expected, atol=1e-4)
            os._exit(0 if right and not scratch.shared.facts[2] else 3)
    finally:
        scratch.shared.facts[2] = 0
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("op", "x", "y", "times"),
    [(AddFwdOp(), X, W, 500), (AddFwdOp(), LARGE, LARGE + 1, 20), (GemmFwdOp(), TALL, LARGE[:, :96].contiguous(), 100)],
)
def test_threads_share_a_call(op: Op, x: torch.Tensor, y: torch.Tensor, times: int) -> None:
    run_of(op, x, y)
    expected, wrong = op(x, y), []
    torch.testing.assert_close(expected, x @ y.T if isinstance(op, GemmFwdOp) else x + y, atol=1e-4, rtol=1e-4)

    def work() -> None:
        for _ in range(times):
            if not torch.equal(op(x, y), expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_native_code_asks_for_as_many_threads_as_torch_uses(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    functions = _torch_tensors.functions()
    assert functions is not None
    asked = []

    def one(threads: Any) -> int:
        asked.append(threads)
        threads[0] = 1
        return 0

    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_uint32))(one)
    address = ctypes.cast(callback, ctypes.c_void_p).value or 0
    monkeypatch.setattr(_torch_tensors, "functions", lambda: replace(functions, get_num_threads=address))
    for tensor, times in ((X, 0), (LARGE, 1)):
        run = run_of(AddFwdOp(), tensor, tensor + 1)
        assert is_direct(run)
        asked.clear()
        torch.testing.assert_close(run(tensor, tensor + 1), tensor + (tensor + 1))
        assert len(asked) == times


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_calls_on_one_thread() -> None:
    """The threads of the runtime are gone there: a team of several would wait for them for ever."""
    op, other = AddFwdOp(), LARGE + 1
    run, expected = run_of(op, LARGE, other), LARGE + other
    assert is_direct(run)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        os._exit(0 if (run(LARGE, other).numpy() == expected.numpy()).all() else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_gradient_is_not_lost_to_a_thread_without_gradients() -> None:
    """Another thread may have its own tensors remembered between any two steps of a call."""
    op, leaf = AddFwdOp(), X.clone().requires_grad_()
    with torch.no_grad():
        run_of(op, leaf, W)
    plan = op._hot.bare
    before = check, tracked = plan.latest
    assert tracked

    def interrupted(*tensors: torch.Tensor) -> bool:
        fits = check(*tensors)
        plan.latest = before
        with torch.no_grad():
            op(X, W)
        assert plan.latest != before
        return fits

    plan.latest = interrupted, tracked
    assert op(leaf, W).requires_grad


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_refused_by_a_warm_op() -> None:
    """Torch's guard ends the process where it sees one."""
    op = AddFwdOp()
    x = torch.randn(2, 4, 64)
    for _ in range(3):
        op(x, x + 1)
    for tensors in ((torch.nested.nested_tensor([x]), x), (x, torch.nested.nested_tensor([x]))):
        with pytest.raises(CheckError, match="AddFwdOp"):
            op(*tensors)
    with pytest.raises(CheckError, match="Tensor is needed"):
        op(x, 3)
