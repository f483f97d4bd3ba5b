"""Packed weights: when calls use them, when not, and that they change no result."""

from __future__ import annotations

import copy
import gc
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.ops.helpers import FLOATS, INSTRUCTION_SETS, at_threads, bits, build, check, spec_of
from tests.ops.test_gemm import call_of, operands
from tileops import settings
from tileops.errors import CheckError, SettingsError
from tileops.gemm import GemmFwdOp, PackedWeight, pack
from tileops.jit import cpu_target
from tileops.kernels.gemm import paths
from tileops.kernels.gemm.gemm_cpu import GemmCpuKernel
from tileops.ops.gemm.pack import find_pack, packs
from tileops.workloads import gemm, inputs

pytestmark = pytest.mark.in_tree_kernels


def cpu_operands(*args: object) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = operands(*args)  # type: ignore[arg-type]
    return a.cpu(), b.cpu()


@pytest.mark.parametrize("m", [1, 2, 4, 7, 16, 17, 33, 64, 1100])
@pytest.mark.parametrize("dtype", FLOATS)
def test_results_with_packed_weights(dtype: torch.dtype, m: int) -> None:
    op = GemmFwdOp()
    for n, k in ((1, 1), (16, 32), (70, 577), (129, 64)):
        a, b = cpu_operands(m, n, k, dtype)
        packed = pack(b)
        assert find_pack(b, True) is packed
        check(op(a, b), gemm.gemm(a, b), context=f"M={m} N={n} K={k}")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("trans_b", [True, False])
def test_every_layout_of_the_weight(dtype: torch.dtype, trans_b: bool) -> None:
    a, b = cpu_operands(20, 37, 67, dtype, False, trans_b)
    want = gemm.gemm(a, b, trans_b=trans_b)
    for name, view in inputs.layouts(b):
        packed = pack(view, trans_b=trans_b)
        assert packed.is_current
        check(GemmFwdOp(trans_b=trans_b)(a, view), want, context=name)
    if dtype == torch.bfloat16:
        for name, view in inputs.layouts(b.float()):
            packed = pack(view, trans_b=trans_b)
            assert packed.layout == paths.NARROWED
            check(GemmFwdOp(trans_b=trans_b)(a.float(), view), want, context=f"{name}, widened")


@pytest.mark.parametrize("m", [1, 7, 40, 1100])
def test_float32_weights_of_bfloat16_values_take_half_the_memory(m: int) -> None:
    op = GemmFwdOp()
    for n, k in ((1, 1), (16, 32), (70, 577)):
        a, b = operands_with_narrow_weight(m, n, k)
        packed = pack(b)
        assert packed.layout == paths.NARROWED
        assert packed.nbytes == pack(b.bfloat16()).nbytes
        one, two = (at_threads(count, lambda a=a, b=b: op(a, b)) for count in (1, 2))
        check(one, gemm.gemm(a, b), context=f"M={m} N={n} K={k}")
        assert torch.equal(bits(one), bits(two))
        # Integers that need all of float32's bits on the left and all of bfloat16's on the right.
        a, b = ((x * scale).round().clamp(-most, most) for x, scale, most in ((a, 1 << 15, 1 << 16), (b, 30, 255)))
        packed = pack(b)
        assert packed.layout == paths.NARROWED
        exact = gemm.gemm(a, b)
        assert torch.equal(op(a, b), exact.float())


def operands_with_narrow_weight(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = cpu_operands(m, n, k, torch.float32)
    return a, b.bfloat16().float()


def test_refreshing_chooses_the_layout_again() -> None:
    op = GemmFwdOp()
    for m in (2, 40):
        a, b = operands_with_narrow_weight(m, 40, 65)
        packed, narrow = pack(b), b.clone()
        small = packed.nbytes
        for value, layout in ((0.1, "panels16-f32"), (2.0, paths.NARROWED), (torch.nan, "panels16-f32")):
            b[39, 64] = value
            packed.refresh()
            assert packed.layout == layout
            assert packed.nbytes == small * (1 if layout == paths.NARROWED else 2)
            check(op(a, b), gemm.gemm(a, b), context=f"M={m} {value}")
        b.copy_(narrow)
        packed.refresh()
        check(op(a, b), gemm.gemm(a, b))
        before = packed.buffer
        b[0, 0] = -2.0
        packed.refresh()
        assert packed.buffer is before


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_weights_that_are_not_finite_are_not_narrowed(value: float) -> None:
    a, b = operands_with_narrow_weight(40, 40, 70)
    b[3, 69] = value
    a[5, 69], a[6, 69], a[7, 0] = 0.0, torch.inf, torch.nan
    packed = pack(b)
    assert packed.layout == "panels16-f32"
    check(GemmFwdOp()(a, b), gemm.gemm(a, b))


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_not_finite_stays_in_its_row(dtype: torch.dtype) -> None:
    op = GemmFwdOp()
    for m in (2, 3, 40):
        a, b = cpu_operands(m, 40, 67, dtype)  # an odd K: nothing may be read beyond the end of a row
        a[m - 1, 0], a[0, 66] = torch.inf, -torch.inf
        for weight in (b, b.bfloat16().to(dtype)):
            packed = pack(weight)
            check(op(a, weight), gemm.gemm(a, weight), context=f"M={m} {packed.layout}")


def test_a_pack_that_moves_into_huge_pages_stays_what_it_is() -> None:
    a, b = cpu_operands(1, 2000, 1024, torch.float32)
    packed = pack(b, huge_pages="later")
    assert packed.__reduce__()[1][2] == "later", "a copy starts as soon"
    before = packed.buffer.clone()
    packed.use_huge_pages()
    assert packed.is_current
    assert torch.equal(packed.buffer, before)
    check(GemmFwdOp()(a, b), gemm.gemm(a, b))
    with pytest.raises(CheckError, match="huge_pages: got True, expected 'now' or 'later'"):
        pack(b, huge_pages=True)  # type: ignore[arg-type]


def poisoned(weight: torch.Tensor) -> PackedWeight:
    """A pack whose use shows in the result."""
    packed = pack(weight)
    packed.buffer.zero_()
    return packed


def test_only_the_packed_tensor_object_uses_the_pack() -> None:
    op = GemmFwdOp()
    a, b = cpu_operands(1, 40, 64, torch.float32)
    packed = poisoned(b)
    assert not op(a, b).any()
    check(op(a, b.view(40, 64)), gemm.gemm(a, b))
    check(op(a, b.detach()), gemm.gemm(a, b))
    square, weight = cpu_operands(1, 64, 64, torch.float32)
    also = poisoned(weight)
    check(GemmFwdOp(trans_b=False)(square, weight), gemm.gemm(square, weight, trans_b=False))
    assert packed.is_current
    assert also.is_current


def test_the_pack_is_used_only_while_it_lives() -> None:
    op = GemmFwdOp()
    a, b = cpu_operands(1, 40, 64, torch.float32)
    packed = poisoned(b)
    assert not op(a, b).any()
    del packed
    gc.collect()
    assert find_pack(b, True) is None
    check(op(a, b), gemm.gemm(a, b))


def test_a_pack_does_not_keep_its_weight_alive() -> None:
    _, b = cpu_operands(1, 40, 64, torch.float32)
    packed = pack(b)
    del b
    gc.collect()
    assert packed.weight is None
    assert not packed.is_current
    with pytest.raises(RuntimeError, match="no longer exists"):
        packed.refresh()


def test_counted_writes_make_a_pack_stale_until_it_is_refreshed() -> None:
    op = GemmFwdOp()
    a, b = cpu_operands(3, 40, 64, torch.float32)
    packed = pack(b)
    b.mul_(-2.0)
    assert not packed.is_current
    assert "stale" in repr(packed)
    check(op(a, b), gemm.gemm(a, b))
    packed.refresh()
    assert packed.is_current
    assert find_pack(b, True) is packed
    check(op(a, b), gemm.gemm(a, b))


def test_writes_that_torch_does_not_count_need_a_refresh() -> None:
    op = GemmFwdOp()
    for write in (lambda w: w.data.fill_(0.0), lambda w: w.numpy().fill(0.0)):
        a, b = cpu_operands(3, 40, 64, torch.float32)
        packed = pack(b)
        before = op(a, b)
        write(b)
        assert torch.equal(op(a, b), before)  # the limit that the docstring states
        packed.refresh()
        assert not op(a, b).any()


def test_tensors_without_a_version_counter() -> None:
    op = GemmFwdOp()
    with torch.inference_mode():
        a, b = cpu_operands(3, 40, 64, torch.float32)
        b = b.clone()
        assert b.is_inference()
        packed = pack(b)
        before = op(a, b)
        b.zero_()
        assert torch.equal(op(a, b), before)
        packed.refresh()
        assert not op(a, b).any()


def test_a_changed_shape_is_not_taken_for_the_packed_one() -> None:
    a, b = cpu_operands(3, 40, 64, torch.float32)
    packed = pack(b)
    b.resize_(20, 64)
    assert find_pack(b, True) is None
    check(GemmFwdOp()(a, b), gemm.gemm(a, b))
    with pytest.raises(RuntimeError, match=r"was torch.float32\[40, 64\]"):
        packed.refresh()


def test_packing_again_replaces_the_pack() -> None:
    a, b = cpu_operands(3, 40, 64, torch.float32)
    first = poisoned(b)
    second = pack(b)
    assert find_pack(b, True) is second
    del first
    gc.collect()
    assert find_pack(b, True) is second
    check(GemmFwdOp()(a, b), gemm.gemm(a, b))


def test_packs_are_listed_with_their_bytes() -> None:
    _, b = cpu_operands(1, 65, 33, torch.bfloat16)
    packed = pack(b)
    assert packed in list(packs())
    assert packed.nbytes == 128 * 64 * 2  # N rounded up to 64, K to 32
    del packed
    gc.collect()
    assert all(found.weight is not b for found in packs())


@pytest.mark.parametrize(
    ("weight", "problem"),
    [
        (None, "weight: got None, expected a torch.Tensor"),
        ([[1.0, 2.0]], r"weight: got list \[\[1.0, 2.0\]\], expected a torch.Tensor"),
        (torch.zeros(3), r"weight: shape \[3\], expected a matrix.*; reshape it"),
        (torch.zeros(3, 4, dtype=torch.float64), "weight: dtype torch.float64, expected float32.*; convert"),
        (torch.zeros(3, 4, dtype=torch.int32), "weight: dtype torch.int32, expected float32.*; convert"),
        (torch.zeros(3, 4, device="meta"), "weight: device meta, expected cpu"),
        (
            torch.eye(4).to_sparse(),
            r"weight: layout torch.sparse_coo, expected torch.strided; pack weight.to_dense\(\)",
        ),
        (torch.view_as_complex(torch.ones(3, 4, 2)).conj().imag, r"negates.*; pack weight.resolve_neg\(\)"),
    ],
    ids=lambda value: "" if not isinstance(value, str) else value.split(",")[0],
)
def test_what_cannot_be_packed(weight: object, problem: str) -> None:
    with pytest.raises(CheckError, match=f"tileops.gemm.pack: .*{problem}"):
        pack(weight)  # type: ignore[arg-type]


def test_tensors_without_memory_cannot_be_packed() -> None:
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.zeros(3, 4))
    with pytest.raises(CheckError, match="a FakeTensor has no memory of its own to pack"):
        pack(fake)


@pytest.mark.parametrize("trans_b", [1, 0, None, "yes"])
def test_trans_b_is_a_bool(trans_b: object) -> None:
    with pytest.raises(CheckError, match=r"trans_b: got .*, expected True \(the weight is \[N, K\]\) or False"):
        pack(torch.zeros(3, 4), trans_b=trans_b)  # type: ignore[arg-type]


def test_a_pack_of_a_replaced_weight_is_not_current() -> None:
    linear = torch.nn.Linear(64, 40, bias=False)
    a, old = torch.ones(2, 64), linear.weight
    packed = pack(old)
    old.data = torch.ones(40, 64)
    assert not packed.is_current
    packed = pack(old)
    assert packed.is_current
    linear.weight = torch.nn.Parameter(torch.zeros(40, 64))
    assert packed.is_current  # for calls with the old tensor, which lives
    assert not GemmFwdOp()(a, linear.weight.detach()).any()
    del old
    gc.collect()
    assert not packed.is_current


def test_only_the_latest_pack_of_a_tensor_is_current() -> None:
    _, b = cpu_operands(3, 40, 64, torch.float32)
    first, second = pack(b), pack(b)
    assert (first.is_current, second.is_current) == (False, True)
    assert copy.copy(second) is second


class _Packed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.packed_first: PackedWeight | None = None
        self.weight = torch.nn.Parameter(torch.ones(40, 64), requires_grad=False)
        self.packed_first = pack(self.weight)


def _reloaded(value: object, weights_only: bool = False) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), _reloaded])
def test_a_copy_of_a_module_has_a_pack_of_its_own_weight(again: Callable[[_Packed], _Packed]) -> None:
    module, a = _Packed(), torch.ones(3, 64)
    other = again(module)
    pair = [module, other]
    assert all(m.packed_first.is_current and m.packed_first.weight is m.weight for m in pair)
    assert module.packed_first is not other.packed_first
    other.packed_first.buffer.zero_()
    assert GemmFwdOp()(a, module.weight).all()
    assert not GemmFwdOp()(a, other.weight).any()  # the copy is what is read


def test_a_checkpoint_may_hold_packs() -> None:
    _, b = cpu_operands(3, 40, 64, torch.bfloat16)
    loaded = _reloaded({"pack": pack(b, trans_b=False), "weight": b}, weights_only=True)
    assert loaded["pack"].is_current
    assert loaded["pack"].weight is loaded["weight"]
    assert loaded["pack"].trans_b is False


def test_a_pack_alone_comes_back_without_its_weight() -> None:
    _, b = cpu_operands(3, 40, 64, torch.float32)
    alone = copy.deepcopy(pack(b))
    assert alone.weight is None
    assert not alone.is_current
    with pytest.raises(TypeError, match="the packed tensor no longer exists; drop the pack"):
        pickle.dumps(alone)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_empty_weights(shape: tuple[int, int]) -> None:
    n, k = shape
    weight = torch.zeros(n, k)
    packed = pack(weight)
    assert packed.is_current
    assert torch.equal(GemmFwdOp()(torch.ones(3, k), weight), torch.zeros(3, n))


@pytest.mark.parametrize("dtype", FLOATS)
def test_packed_results_do_not_depend_on_the_number_of_threads(dtype: torch.dtype) -> None:
    op = GemmFwdOp()
    for m in (1, 9, 530):
        a, b = cpu_operands(m, 300, 1500, dtype)
        packed = pack(b)
        one, two = (at_threads(count, lambda a=a, b=b: op(a, b)) for count in (1, 2))
        assert torch.equal(bits(one), bits(two))
        assert packed.is_current
        serial = at_threads(1, lambda b=b: pack(b).buffer)
        assert torch.equal(serial, packed.buffer)


@INSTRUCTION_SETS
def test_the_layout_is_the_same_on_every_instruction_set(instruction_set: str, dtype: torch.dtype) -> None:
    a, b = cpu_operands(20, 70, 67, dtype)
    weights = [b, b.bfloat16().float()] if dtype == torch.float32 else [b]
    native = [pack(weight).buffer for weight in weights]
    with settings.scope(cpu=instruction_set):
        try:
            cpu_target()
        except SettingsError as error:
            pytest.skip(str(error))
        for weight, buffer in zip(weights, native, strict=True):
            packed = pack(weight)
            assert torch.equal(packed.buffer, buffer)
            for m in (1, 2, 6, 20):
                rows, d = a[:m], torch.full((m, 70), torch.nan, dtype=dtype)
                build(GemmCpuKernel, call_of(rows, weight, packed=packed.layout))(rows, packed.buffer, d)
                check(d, gemm.gemm(rows, weight), context=f"M={m} {packed.layout}")


def test_an_unknown_layout_is_refused() -> None:
    a, b = cpu_operands(2, 4, 8, torch.float32)
    assert "panels16-f32" in str(GemmCpuKernel.refusal(call_of(a, b, packed="other")))
    assert spec_of(b).dtype == "float32"
    assert paths.packed_layouts("float16") == ("panels16-pairs",)
    assert "panels16-pairs" in str(GemmCpuKernel.refusal(call_of(a.half(), b.half(), packed=paths.NARROWED)))
