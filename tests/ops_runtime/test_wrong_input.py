"""Every implemented op on wrong and on odd input: the right result, or an error that names op, declaration,
values and remedy.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.compile_contract import COLD_COMPILES, ColdCompile
from tests.store.helpers import environment
from tests.test_compile_contract import build, first, reference
from tileops.attention import GQADenseFwdOp
from tileops.elementwise import AddFwdOp, SiluAndMulFwdOp
from tileops.errors import CheckError, DispatchError
from tileops.gemm import GemmFwdOp
from tileops.norm import RMSNormFwdOp
from tileops.rope import RoPEFwdOp, RoPENeoxPositionIdsFwdOp
from tileops.workloads.device import run_device

pytestmark = pytest.mark.in_tree_kernels

#: One of each operator that is called with tensors.
WITH_TENSORS = [case for case in COLD_COMPILES if case.tensors(torch.device("cpu"))]
CASES = pytest.mark.parametrize("case", WITH_TENSORS, ids=lambda case: case.op)


def r(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device=run_device()).to(dtype)


def ids(*values: int) -> torch.Tensor:
    return torch.tensor(values, device=run_device())


#: op, tensors, what the error must mention besides the op
WRONG_CALLS: list[tuple[Callable[[], Any], Callable[[], tuple], tuple[str, ...]]] = [
    (lambda: RMSNormFwdOp((8,)), lambda: (r(2, 7), r(8)), ("inputs.x", "7", "8")),
    (lambda: RMSNormFwdOp((8,)), lambda: (r(2, 8), r(7)), ("inputs.weight", "7", "8")),
    (
        lambda: RMSNormFwdOp((8,)),
        lambda: (r(2, 8), r(8, dtype=torch.bfloat16)),
        ("inputs.weight", "bfloat16"),
    ),
    (lambda: RMSNormFwdOp((4, 8)), lambda: (r(8),), ("inputs.x",)),
    (lambda: RMSNormFwdOp((8,)), lambda: (r(2, 8, dtype=torch.float64),), ("inputs.x", "float64")),
    (lambda: GemmFwdOp(), lambda: (r(2, 8), r(4, 9)), ("inputs.b", "8", "9")),
    (lambda: GemmFwdOp(trans_b=False), lambda: (r(2, 8), r(4, 8)), ("inputs.b", "4", "8")),
    (lambda: GemmFwdOp(), lambda: (r(2, 3, 8), r(4, 8)), ("inputs.a",)),
    (lambda: GemmFwdOp(), lambda: (r(2, 8), r(4, 8, dtype=torch.float16)), ("inputs.b", "float16")),
    (lambda: RoPEFwdOp(), lambda: (r(1, 4, 2, 7),), ("D % 2", "7")),
    (lambda: RoPEFwdOp(input_layout="1d"), lambda: (r(1, 4, 2, 8),), ("inputs.x",)),
    (
        lambda: RoPENeoxPositionIdsFwdOp(9),
        lambda: (r(4, 2, 8), ids(1, 2, 3)),
        ("inputs.position_ids", "3", "4"),
    ),
    (lambda: RoPENeoxPositionIdsFwdOp(9), lambda: (r(1, 2, 8), r(1)), ("inputs.position_ids", "float32")),
    (lambda: RoPENeoxPositionIdsFwdOp(9, rotary_dim=10), lambda: (r(1, 2, 8), ids(1)), ("R <= D", "10", "8")),
    (lambda: GQADenseFwdOp(), lambda: (r(1, 2, 4, 8), r(1, 3, 3, 8), r(1, 3, 3, 8)), ("H % H_kv", "4", "3")),
    (lambda: GQADenseFwdOp(), lambda: (r(1, 2, 4, 8), r(1, 3, 2, 9), r(1, 3, 2, 8)), ("inputs.k", "9")),
    (lambda: GQADenseFwdOp(), lambda: (r(1, 2, 4, 8), r(1, 3, 2, 8), r(1, 4, 2, 8)), ("inputs.v", "4")),
    (lambda: GQADenseFwdOp(), lambda: (r(1, 2, 4, 8), r(1, 3, 2, 8)), ("inputs.v", "required")),
    (lambda: SiluAndMulFwdOp(), lambda: (r(2, 7),), ("inputs.x", "7")),
    (lambda: SiluAndMulFwdOp(), lambda: (r(8),), ("inputs.x",)),
    (lambda: AddFwdOp(), lambda: (r(2, 3), r(2, 4)), ("broadcast", "3", "4")),
    (lambda: AddFwdOp(), lambda: (r(2), ids(1, 2)), ("inputs.other", "int64")),
    (lambda: AddFwdOp(alpha=0.5), lambda: (ids(1, 2), ids(1, 2)), ("category", "0.5")),
]


@pytest.mark.parametrize(("make", "tensors", "words"), WRONG_CALLS)
@pytest.mark.parametrize("warm", [False, True])
def test_wrong_calls(make: Callable, tensors: Callable, words: tuple[str, ...], warm: bool) -> None:
    op = make()
    arguments = tensors()
    arguments += (None,) * (len([slot for slot in op._slots if not slot.optional]) - len(arguments))
    if warm:  # a compiled graph's fake function gives the same answer
        arguments = tuple(None if t is None else t.to("meta") for t in arguments)
    with pytest.raises(CheckError) as caught:
        op(*arguments)
    message = str(caught.value)
    assert message.startswith(type(op).__name__)
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RMSNormFwdOp((8,), eps=-1.0), ("eps", "-1.0")),
        (lambda: RMSNormFwdOp(()), ("normalized_shape",)),
        (lambda: RMSNormFwdOp((8, -1)), ("normalized_shape", "-1")),
        (lambda: RMSNormFwdOp(8), ("normalized_shape", "8")),
        (lambda: RMSNormFwdOp((8,), eps="1e-6"), ("eps", "1e-6")),
        (lambda: GemmFwdOp(trans_a=1), ("trans_a", "1")),
        (lambda: RoPEFwdOp(rope_layout="gptj"), ("rope_layout", "gptj")),
        (lambda: RoPEFwdOp(base=0.0), ("base", "0.0")),
        (lambda: RoPENeoxPositionIdsFwdOp(0), ("max_position", "0")),
        (lambda: RoPENeoxPositionIdsFwdOp(8, rotary_dim=3), ("R % 2", "3")),
        (lambda: GQADenseFwdOp(window_size_left=-2), ("window_size_left", "-2")),
        (lambda: GQADenseFwdOp(softcap=0.0), ("softcap", "0.0")),
        (lambda: GQADenseFwdOp(rotary_dim=8), ("rotary_dim",)),
        (lambda: GQADenseFwdOp(out_dtype=torch.int32), ("out_dtype", "int32")),
        (lambda: AddFwdOp(alpha=1j), ("alpha",)),
    ],
)
def test_wrong_parameters(make: Callable, words: tuple[str, ...]) -> None:
    with pytest.raises(CheckError) as caught:
        make()
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("make", "tensors", "words"),
    [
        (
            lambda: GQADenseFwdOp(pos_encoding_mode="rope"),
            lambda: (r(1, 2, 4, 8), r(1, 3, 2, 8), r(1, 3, 2, 8), None, None, None, r(3, 4), r(3, 4)),
            ("rope",),
        ),
        (
            lambda: GQADenseFwdOp(out_dtype=torch.float16),
            lambda: tuple(r(1, 2, 4, 8, dtype=torch.float8_e4m3fn) for _ in range(3)) + (r(1, 4),) * 3,
            ("float8_e4m3fn",),
        ),
    ],
)
def test_what_no_kernel_serves_yet_is_refused_with_a_reason(
    make: Callable, tensors: Callable, words: tuple[str, ...]
) -> None:
    with pytest.raises(DispatchError) as caught:
        make()(*tensors())
    message = str(caught.value)
    assert message.startswith("GQADenseFwdOp: gqa_dense: no kernel serves this call")
    assert all(word in message for word in words), message


@CASES
@pytest.mark.parametrize(
    "layout",
    [
        lambda t: torch.stack([t, t], -1)[..., 0],
        lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
        lambda t: torch.cat([t, t], 0)[: t.shape[0]],
        lambda t: torch.cat([t.flatten()[:1], t.flatten()])[1:].view(t.shape),
        lambda t: t[:1].expand(t.shape),
        lambda t: torch._neg_view(-t),
    ],
    ids=["every other element", "reversed axes", "slice", "odd address", "stride 0", "neg bit"],
)
def test_layouts(case: ColdCompile, layout: Callable[[torch.Tensor], torch.Tensor]) -> None:
    op = build(case)
    tensors = tuple(layout(t) if t.is_floating_point() else t for t in case.tensors(run_device()))
    expected = reference(op, tuple(t.resolve_neg() for t in tensors))
    torch.testing.assert_close(first(op(*tensors)), expected, rtol=1e-5, atol=1e-5)


@CASES
@pytest.mark.parametrize("axis", [0, 1])
def test_empty_tensors(case: ColdCompile, axis: int) -> None:
    """Every tensor loses the axis, where the signature still holds the output is as empty as torch makes
    it.
    """
    op = build(case)
    tensors = tuple(t.narrow(axis, 0, 0) if t.ndim > axis else t for t in case.tensors(run_device()))
    refusal = ""
    try:
        result = op(*tensors)
    except CheckError as error:
        refusal = str(error)
    if refusal:
        assert refusal.startswith(f"{case.op}: ")
    else:
        torch.testing.assert_close(first(result), reference(op, tensors), rtol=1e-5, atol=1e-5)


def test_no_keys_and_no_terms_are_zeros() -> None:
    assert torch.equal(GemmFwdOp()(r(3, 0), r(4, 0)), torch.zeros(3, 4, device=run_device()))
    keys = r(1, 0, 2, 8)
    assert torch.equal(GQADenseFwdOp(is_causal=False)(r(1, 2, 4, 8), keys, keys), torch.zeros(1, 2, 4, 8))


@CASES
def test_meta_tensors(case: ColdCompile) -> None:
    op = build(case)
    tensors = case.tensors(torch.device("cpu"))
    result = first(op(*(t.to("meta") for t in tensors)))
    expected = reference(op, tensors)
    assert (result.device.type, result.shape, result.dtype) == ("meta", expected.shape, torch.float32)
    assert not list(op.iter_kernels())


@CASES
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_an_error_of_ours(case: ColdCompile, layout: torch.layout) -> None:
    op, tensors = build(case), case.tensors(torch.device("cpu"))
    nested = torch.nested.nested_tensor([torch.ones(3, 8), torch.ones(5, 8)], layout=layout)
    with pytest.raises(CheckError, match=rf"{case.op}: inputs.*nested; pad it with torch.nested.to_padded_tensor"):
        op(nested, *tensors[1:])


def test_warnings_point_at_the_line_of_the_caller(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nfrom tileops.norm import RMSNormFwdOp\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return RMSNormFwdOp((8,))(x)\n"
        "torch.nn.Sequential(Net())(torch.ones(3, 8))\n"
    )
    for variable in ("TILEOPS_CACHE_DIR", "TILEOPS_CACHE_PATH"):
        done = subprocess.run(
            [sys.executable, str(script)],
            env=environment({variable: "/proc/nowhere"}),
            capture_output=True,
            text=True,
            check=True,
            timeout=240,
        )
        assert f"{script}:5: CacheWarning" in done.stderr
