"""Ops across copies, processes and threads: pickle, deepcopy, torch.save, spawn, fork, DataLoader."""

from __future__ import annotations

import copy
import io
import multiprocessing
import os
import pickle
import threading
from typing import Any

import pytest
import torch

from tests.ops_runtime.toys import ToyScaleFwdOp
from tileops.backend import BUILTIN


class Layer(torch.nn.Module):
    """A module that holds an op as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = ToyScaleFwdOp(3.0, target=BUILTIN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale(x)


def used(op: ToyScaleFwdOp) -> ToyScaleFwdOp:
    """`op` after calls, a compiled call and a traced one."""
    x = torch.ones(3)
    op(x)
    torch.compile(lambda t: op(t), fullgraph=True, backend="eager")(x)
    torch.jit.trace(lambda t: op(t), x, check_trace=False)
    return op


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy, lambda op: pickle.loads(pickle.dumps(op))])
def test_a_copy_has_class_parameters_target_and_mode_and_nothing_else(copier: Any) -> None:
    op = used(ToyScaleFwdOp(5.0, target=BUILTIN))
    op.request_tune()
    twin = copier(op)
    assert type(twin) is ToyScaleFwdOp
    assert (twin.factor, twin.target, twin.tune) == (5.0, BUILTIN, True)
    assert twin.dtype is None
    assert not twin._plans
    assert twin(torch.ones(2)).tolist() == [5.0, 5.0]
    assert op(torch.ones(2)).tolist() == [5.0, 5.0]


def test_modules_that_hold_ops_are_copied_and_saved() -> None:
    model = torch.nn.Sequential(Layer(), Layer())
    x = torch.ones(2)
    model(x)
    assert copy.deepcopy(model)(x).tolist() == [9.0, 9.0]
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=False)(x).tolist() == [9.0, 9.0]


def _call_pickled(data: bytes, connection: Any) -> None:
    connection.send(pickle.loads(data)(torch.ones(3)).tolist())


def _call_inherited(op: ToyScaleFwdOp, connection: Any) -> None:
    connection.send([op(torch.full((size,), 2.0)).sum().item() for size in (3, 4, 5)])


def _answer(context: Any, target: Any, argument: Any) -> Any:
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(argument, sender))
    process.start()
    try:
        assert receiver.poll(240), "the child did not answer"
        return receiver.recv()
    finally:
        process.join(10)
        if process.is_alive():
            process.kill()


def test_a_spawned_process_runs_an_unpickled_op() -> None:
    context = multiprocessing.get_context("spawn")
    assert _answer(context, _call_pickled, pickle.dumps(used(ToyScaleFwdOp(4.0)))) == [4.0] * 3


def test_a_forked_child_goes_on() -> None:
    op = used(ToyScaleFwdOp(3.0))
    assert _answer(multiprocessing.get_context("fork"), _call_inherited, op) == [18.0, 24.0, 30.0]


def test_a_child_forked_while_another_thread_plans_is_not_locked_out() -> None:
    op = ToyScaleFwdOp(3.0)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with op._lock:
            held.set()
            done.wait(280)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(240)
    try:
        assert _answer(multiprocessing.get_context("fork"), _call_inherited, op) == [18.0, 24.0, 30.0]
    finally:
        done.set()
        thread.join()


class Scaled(torch.utils.data.Dataset):
    """A dataset whose items are made by an op."""

    def __init__(self, op: ToyScaleFwdOp) -> None:
        self.op = op

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.op(torch.full((3,), float(index)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loader_workers(method: str) -> None:
    op = used(ToyScaleFwdOp(2.0))
    loader = torch.utils.data.DataLoader(Scaled(op), batch_size=3, num_workers=2, multiprocessing_context=method)
    rows = torch.cat(list(loader))
    assert rows[:, 0].tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


def test_recorded_calls(tmp_path: Any) -> None:
    import json

    from tileops import settings

    path = tmp_path / "calls.jsonl"
    with settings.scope(record=str(path)):
        for _ in range(2):
            ToyScaleFwdOp(7.5)(torch.ones(2, 6)[:, ::2])
    (line,) = path.read_text().splitlines()
    call = json.loads(line)
    assert call["op"] == "ToyScaleFwdOp"
    assert call["call"]["params"]["factor"] == 7.5
    assert call["tensors"]["x"] == {
        "dtype": "float32", "shape": [2, 3], "strides": [6, 2], "device": "cpu", "alignment": 4,
    }  # fmt: skip
    assert call["tensors"]["bias"] is None
    with settings.scope(record=str(tmp_path / "no" / "directory")):
        ToyScaleFwdOp(7.5)(torch.ones(2, 8)[:, ::2])  # an unwritable file is a log line, not an error
    assert os.listdir(tmp_path) == ["calls.jsonl"]
