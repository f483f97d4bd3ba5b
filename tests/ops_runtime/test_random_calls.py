"""Random calls of every implemented op: each equals the reference or raises an error of ours, nothing else.

``TILEOPS_FUZZ=20000 pytest -m nightly tests/ops_runtime/test_random_calls.py`` (``make fuzz``) throws that many.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.ops_runtime.representatives import repeats
from tileops import manifest
from tileops.errors import TileOpsError
from tileops.manifest import kinds as k
from tileops.manifest.workload import Call
from tileops.testing import calls
from tileops.workloads import inputs
from tileops.workloads.device import run_device

pytestmark = pytest.mark.in_tree_kernels

NAMES = calls.operators()
_FEW = 6
#: Calls of the ordinary run, over all operators.
ORDINARY = 2000
#: Tests that the long run of an operator is divided into, none of which takes minutes.
PARTS = 8
SIZES = (0, 1, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 64, 65)
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.bool)


def random_row(name: str, rng: random.Random, keep: float) -> dict[str, Any]:
    """A row of the operator with its sizes, flags and numbers replaced, but for those kept by chance."""
    entry = manifest.load_entry(name)
    row = dict(rng.choice(calls.small_rows(name)))
    for key, value in row.items():
        if key in ("label", "some", "dtype_cases") or rng.random() < keep:
            continue
        if isinstance(value, list) and all(isinstance(item, int) for item in value):
            row[key] = [rng.choice(SIZES) if rng.random() < 0.5 else item for item in value]
        elif isinstance(value, int) and not isinstance(value, bool):
            row[key] = rng.choice(SIZES)
    for key, param in entry.signature.scalars.items():
        if rng.random() < max(keep, 0.7):
            continue
        kind = param.kind.inner if isinstance(param.kind, k.Maybe) else param.kind
        if isinstance(kind, k.Bool):
            row[key] = rng.random() < 0.5
        elif isinstance(kind, k.Str) and kind.literals is not None:
            row[key] = rng.choice(kind.literals)
    return row


def random_call(name: str, rng: random.Random) -> Call | None:
    """A call of such a row; the more of them make none, the less is replaced."""
    for keep in (0.3, 0.6, 0.8, 0.9, 0.95):
        found = calls._with_row(manifest.load_entry(name), random_row(name, rng, keep))
        if found:
            return rng.choice(found)
    return None


def disturbed(tensors: calls.Tensors, rng: random.Random) -> calls.Tensors:
    """The tensors in random layouts; sometimes one of them with another dtype, shape or none at all."""
    result: list[torch.Tensor | None] = []
    for tensor in tensors:
        if tensor is None or not tensor.is_floating_point():
            result.append(tensor)
            continue
        _, view = rng.choice([("as it is", tensor), *inputs.layouts(tensor)])
        result.append(view)
    if result and rng.random() < 0.3:
        place = rng.choice([place for place, tensor in enumerate(result) if tensor is not None])
        tensor = result[place]
        assert tensor is not None
        changes: list[Any] = [
            lambda: tensor.to(rng.choice(DTYPES)),
            lambda: tensor.unsqueeze(0),
            lambda: tensor.reshape(-1),
            lambda: tensor[..., :-1] if tensor.ndim else tensor,
            lambda: torch.cat([tensor, tensor]) if tensor.ndim else tensor,
            lambda: None,
        ]
        result[place] = rng.choice(changes)()
    return tuple(result)


def throw(name: str, rng: random.Random) -> str:
    """One random call; what became of it."""
    call = random_call(name, rng)
    if call is None:
        return "no call"
    item = calls.example(call, run_device())
    tensors = disturbed(item.tensors, rng)
    shown = [None if tensor is None else (tensor.dtype, list(tensor.shape), tensor.stride()) for tensor in tensors]
    where = f"{item.op!r} on {shown}"
    # What a call writes, the reference must not see.
    before = tuple(None if tensor is None else tensor.clone() for tensor in tensors)
    try:
        result = item.op(*tensors)
    except TileOpsError:
        return "refused"
    except Exception as error:
        raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error
    try:
        expected = item.expected(before)
    except NotImplementedError:
        return "no reference"
    calls.verify(result, expected, where)
    return "right"


def share(name: str) -> int:
    """Of the ordinary calls, how many an operator gets: few where it repeats another one, for its kernels have to be
    compiled.
    """
    repeated = [other for other in NAMES if repeats(other)]
    return _FEW if name in repeated else max((ORDINARY - _FEW * len(repeated)) // (len(NAMES) - len(repeated)), 1)


@pytest.mark.parametrize("name", NAMES)
def test_random_calls(name: str) -> None:
    outcomes: dict[str, int] = {}

    @seed(1235)
    @settings(
        max_examples=share(name),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 1 << 62))
    def one(number: int) -> None:
        outcome = throw(name, random.Random(number))
        outcomes[outcome] = outcomes.get(outcome, 0) + 1

    one()
    assert outcomes.get("right"), outcomes


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", NAMES)
def test_many_random_calls(name: str, part: int) -> None:
    total = int(os.environ.get("TILEOPS_FUZZ", "20000")) // len(NAMES)
    outcomes: dict[str, int] = {}
    failures: list[str] = []
    for number in range(part, total, PARTS):
        try:
            outcome = throw(name, random.Random(f"{name} {number}"))
        except AssertionError as error:
            outcome = "wrong"
            failures.append(f"{number}: {error}")
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    print(f"{name} {part}: {outcomes}")
    assert not failures, failures[:5]
