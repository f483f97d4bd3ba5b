"""The operators on a real GPU: against the reference, on streams, in graphs, on other devices."""

from __future__ import annotations

import threading

import pytest
import torch

from tests.ops.helpers import FLOATS, check
from tests.ptx import pointwise
from tileops import elementwise as ops
from tileops.elementwise import AddFwdOp, SiluAndMulFwdOp
from tileops.norm import RMSNormFwdOp
from tileops.rope import RoPEFwdOp, RoPENeoxPositionIdsFwdOp
from tileops.workloads import elementwise, norm, rope, workload

pytestmark = [pytest.mark.cuda_only, pytest.mark.in_tree_kernels]


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


def offset_view(x: torch.Tensor, offset: int) -> torch.Tensor:
    """`x` at a storage offset of `offset` elements."""
    storage = torch.empty(x.numel() + offset, dtype=x.dtype, device=x.device)
    view = storage[offset:].view(x.shape)
    view.copy_(x)
    return view


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1, 64), (7, 576), (512, 4096), (3, 33), (2, 70000), (4097, 128)])
def test_rms_norm(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, weight = draw(*shape, dtype=dtype), draw(shape[1], dtype=dtype, seed=1)
    op = RMSNormFwdOp((shape[1],), eps=1e-5)
    check(op(x, weight), norm.rms_norm(x, weight, normalized_shape=shape[1:], eps=1e-5), controls=True)
    check(op(x), norm.rms_norm(x, normalized_shape=shape[1:], eps=1e-5))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1, 64), (512, 28672), (33, 14)])
def test_silu_and_mul(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x = draw(*shape, dtype=dtype)
    check(SiluAndMulFwdOp()(x), elementwise.silu_and_mul(x), controls=True)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("a", "b"),
    [((2048, 4096), (2048, 4096)), ((1024, 4096), (4096,)), ((64, 1), (1, 63)), ((5, 7, 9), (7, 1))],
)
def test_add(a: tuple[int, ...], b: tuple[int, ...], dtype: torch.dtype) -> None:
    left, right = draw(*a, dtype=dtype), draw(*b, dtype=dtype, seed=1)
    op = AddFwdOp(alpha=-0.5)
    check(op(left, right), elementwise.add(left, right, alpha=-0.5), controls=True)


@pytest.mark.parametrize("example", list(pointwise.examples(every_dtype=False)), ids=str)
def test_every_elementwise_operator(example: pointwise.Example) -> None:
    op = getattr(ops, example.op)(**example.params)
    params = {name: getattr(op, name) for name in op.entry.signature.params if name != "inplace"}
    shapes = {"PreluFwdOp": ((3, 5, 640), (5,)), "MaskedFillFwdOp": ((3, 640), (3, 640), ())}
    for shape in (shapes.get(example.op, ((70, 130),)), shapes.get(example.op, ((33, 7, 64),))):
        if len(shape[0]) == 3 and example.op.endswith("AndMulFwdOp"):
            continue
        inputs = list(pointwise.inputs_of(example, shape).values())
        result = op(*(None if x is None else x.cuda() for x in inputs)).cpu()
        expected = workload(example.op).reference(*inputs, **params)
        pointwise.check(pointwise.as_array(result), result.dtype, expected, pointwise.SLACK.get(example.op, 0.0))


@pytest.mark.parametrize("dtype", FLOATS)
def test_elementwise_in_place_and_broadcast(dtype: torch.dtype) -> None:
    x = draw(64, 96, dtype=dtype)
    for view in (x.clone(), x.clone().T, x.clone()[:, ::2]):
        expected = view.cpu().double().relu()
        assert ops.ReluFwdOp(inplace=True)(view).data_ptr() == view.data_ptr()
        check(view.cpu(), expected)
    mask = x > 0
    check(ops.WhereFwdOp()(mask[:1], x, x[:, :1]), torch.where(mask[:1], x, x[:, :1]).double())
    assert torch.equal(ops.GtFwdOp()(x, x[0]), x > x[0])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layout", ["neox", "interleaved"])
def test_rope(layout: str, dtype: torch.dtype) -> None:
    x = draw(2, 300, 9, 64, dtype=dtype)
    op = RoPEFwdOp(rope_layout=layout, input_layout="2d")
    check(op(x), rope.rope(x, rope_layout=layout, input_layout="2d"), controls=True)


@pytest.mark.parametrize("dtype", FLOATS)
def test_rope_with_position_ids(dtype: torch.dtype) -> None:
    x = draw(257, 32, 128, dtype=dtype)
    ids = torch.randint(0, 131072, (257,), device="cuda")
    op = RoPENeoxPositionIdsFwdOp(rotary_dim=64, base=500000.0, max_position=131072)
    expected = rope.rope_neox_position_ids(x, ids, rotary_dim=64, base=500000.0)
    check(op(x, ids), expected, controls=True)


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_storage_offset(dtype: torch.dtype) -> None:
    x, weight = draw(5, 256, dtype=dtype), draw(256, dtype=dtype, seed=1)
    op, activation, add = RMSNormFwdOp((256,), eps=1e-5), SiluAndMulFwdOp(), AddFwdOp()
    for offset in range(16):
        view = offset_view(x, offset)
        check(op(view, weight), norm.rms_norm(x, weight, normalized_shape=(256,), eps=1e-5))
        check(activation(view), elementwise.silu_and_mul(x))
        check(add(view, x), elementwise.add(x, x))


def test_strided_and_expanded_inputs() -> None:
    x = draw(12, 5, 128)
    weight = draw(128, seed=1)
    op = RMSNormFwdOp((128,), eps=1e-5)
    for view in (x[::2], x.transpose(0, 1), x[:1].expand(12, 5, 128), x[..., :1].expand(12, 5, 128)):
        check(op(view, weight), norm.rms_norm(view, weight, normalized_shape=(128,), eps=1e-5))
        check(AddFwdOp()(view, weight), elementwise.add(view, weight))


def test_the_current_stream_is_used() -> None:
    x = draw(4096, 4096)
    op = AddFwdOp()
    op(x, x)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        y = op(x, x)
        event = side.record_event()
    assert not event.query(), "the kernel did not wait for the work before it on its stream"
    side.synchronize()
    torch.testing.assert_close(y, x + x)


def test_graph_capture_and_replay() -> None:
    x, weight = draw(64, 4096), draw(4096, seed=1)
    op = RMSNormFwdOp((4096,), eps=1e-5)
    op(x, weight)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = op(x, weight)
    x.copy_(draw(64, 4096, seed=2))
    graph.replay()
    check(y, norm.rms_norm(x, weight, normalized_shape=(4096,), eps=1e-5))


def test_several_threads() -> None:
    x = draw(256, 1024)
    op = SiluAndMulFwdOp()
    expected = op(x)
    failures: list[str] = []

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                y = op(x)
            torch.cuda.current_stream().synchronize()
            if not torch.equal(y, expected):
                failures.append("a thread saw another result")

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_tensor_on_another_device_than_the_current_one() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x = torch.randn(8, 256, device="cuda:1")
    y = SiluAndMulFwdOp()(x)
    assert y.device == x.device
    check(y, elementwise.silu_and_mul(x))


def test_results_are_the_same_bits_every_time() -> None:
    x, weight = draw(333, 8192, dtype=torch.bfloat16), draw(8192, dtype=torch.bfloat16, seed=1)
    op = RMSNormFwdOp((8192,), eps=1e-5)
    first = op(x, weight)
    for _ in range(5):
        assert torch.equal(op(x, weight), first)
    assert torch.equal(op(x[:1], weight), first[:1])


def test_offsets_beyond_32_bits() -> None:
    rows, size = 2**31 // 4096 + 2, 4096
    free, _ = torch.cuda.mem_get_info()
    if free < 4 * rows * size * 2:
        pytest.skip("needs 34 GB of GPU memory")
    x = torch.empty(rows, size, dtype=torch.bfloat16, device="cuda")
    x.fill_(1)
    x[-1] = draw(size, dtype=torch.bfloat16)
    y = RMSNormFwdOp((size,), eps=1e-5)(x)
    check(y[-1:], norm.rms_norm(x[-1:], normalized_shape=(size,), eps=1e-5))
    z = AddFwdOp()(x, x)
    check(z[-1:], elementwise.add(x[-1:], x[-1:]))
