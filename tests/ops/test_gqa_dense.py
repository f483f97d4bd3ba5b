"""GQADenseFwdOp against the float64 reference: shapes, masks, layouts, special values, threads, compiles."""

from __future__ import annotations

import math
import threading

import pytest
import torch

from tests.ops.helpers import FLOATS, INSTRUCTION_SETS, at_threads, bits, check
from tileops import jit, settings
from tileops.attention import GQADenseFwdOp
from tileops.errors import CheckError, DispatchError
from tileops.kernels.attention import gqa_dense_cpu
from tileops.workloads import inputs
from tileops.workloads.attention import gqa_dense

pytestmark = pytest.mark.in_tree_kernels


def qkv(
    dtype: torch.dtype, S_q: int, S_kv: int, H: int = 6, H_kv: int = 2, D: int = 64, B: int = 1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random queries, keys and values."""
    shapes = {"q": (B, S_q, H, D), "k": (B, S_kv, H_kv, D), "v": (B, S_kv, H_kv, D)}
    return tuple(  # type: ignore[return-value]
        inputs.draw(shape, dtype, inputs.generator("GQADenseFwdOp", name)) for name, shape in shapes.items()
    )


# -- shapes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("S_kv", [1, 2, 17, 33, 127, 128, 129, 600, 1025])
@pytest.mark.parametrize("dtype", FLOATS)
def test_decode_lengths(dtype: torch.dtype, S_kv: int) -> None:
    q, k, v = qkv(dtype, 1, S_kv, B=2)
    check(GQADenseFwdOp()(q, k, v), gqa_dense(q, k, v), controls=True)


@pytest.mark.parametrize(
    ("S_q", "S_kv"),
    [(2, 40), (4, 4), (12, 12), (33, 33), (64, 64), (65, 65), (70, 70), (129, 300), (40, 1025), (300, 300)],
)
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("dtype", FLOATS)
def test_prefill_lengths(dtype: torch.dtype, is_causal: bool, S_q: int, S_kv: int) -> None:
    q, k, v = qkv(dtype, S_q, S_kv)
    check(GQADenseFwdOp(is_causal)(q, k, v), gqa_dense(q, k, v, is_causal=is_causal), controls=True)


@pytest.mark.parametrize("S_q", [1, 3, 40])
@pytest.mark.parametrize(("H", "H_kv"), [(2, 2), (6, 3), (9, 3), (8, 1), (10, 2)])
def test_groups(H: int, H_kv: int, S_q: int) -> None:
    q, k, v = qkv(torch.bfloat16, S_q, 100, H, H_kv)
    check(GQADenseFwdOp()(q, k, v), gqa_dense(q, k, v))


@pytest.mark.parametrize("D", [1, 7, 8, 24, 80, 96, 128, 200, 256, 320])
@pytest.mark.parametrize("dtype", FLOATS)
def test_prefill_head_dims(dtype: torch.dtype, D: int) -> None:
    q, k, v = qkv(dtype, 40, 70, D=D)
    check(GQADenseFwdOp()(q, k, v), gqa_dense(q, k, v), controls=True)


@pytest.mark.parametrize(
    ("dtype", "D"),
    [
        *((torch.bfloat16, D) for D in (7, 8, 80, 256, 320)),
        *((torch.float32, D) for D in (7, 128)),
        (torch.float16, 80),
    ],
)
def test_decode_head_dims(dtype: torch.dtype, D: int) -> None:
    q, k, v = qkv(dtype, 1, 70, D=D)
    check(GQADenseFwdOp()(q, k, v), gqa_dense(q, k, v), controls=True)


@pytest.mark.parametrize("dtype", FLOATS)
def test_empty_batches_and_no_keys(dtype: torch.dtype) -> None:
    op = GQADenseFwdOp()
    for S_q in (1, 40):
        q, k, v = qkv(dtype, S_q, 8)
        assert op(q[:0], k[:0], v[:0]).shape == q[:0].shape
        assert op(q[:, :0], k, v).shape == q[:, :0].shape
        assert torch.equal(op(q, k[:, :0], v[:, :0]), torch.zeros_like(q))


# -- masks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("S_q", "S_kv"), [(4, 2), (20, 3), (100, 33)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_more_queries_than_keys(dtype: torch.dtype, S_q: int, S_kv: int) -> None:
    """Causal and bottom-right aligned: the first queries see nothing and give exact zeros."""
    q, k, v = qkv(dtype, S_q, S_kv)
    o = GQADenseFwdOp()(q, k, v)
    check(o, gqa_dense(q, k, v))
    assert torch.equal(o[:, : S_q - S_kv], torch.zeros_like(o[:, : S_q - S_kv]))


@pytest.mark.parametrize(
    "window",
    [(0, -1), (20, -1), (300, -1), (-1, 0), (-1, 7), (30, 5), (0, 0)],
    ids=lambda w: f"{w[0]},{w[1]}",
)
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(("S_q", "S_kv"), [(1, 150), (4, 150), (100, 150), (300, 300)])
def test_windows(S_q: int, S_kv: int, is_causal: bool, window: tuple[int, int]) -> None:
    q, k, v = qkv(torch.float32, S_q, S_kv)
    limits = {"window_size_left": window[0], "window_size_right": window[1], "is_causal": is_causal}
    check(GQADenseFwdOp(**limits)(q, k, v), gqa_dense(q, k, v, **limits))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("S_q", [1, 50])
def test_a_causal_query_does_not_see_later_keys(S_q: int, dtype: torch.dtype) -> None:
    q, k, v = qkv(dtype, S_q, 50)
    op = GQADenseFwdOp()
    before = op(q, k, v)
    k[:, 40:], v[:, 40:] = 3.0, -1e4
    if S_q > 1:
        assert torch.equal(bits(op(q, k, v)[:, :40]), bits(before[:, :40]))
    assert not torch.equal(op(q, k, v)[:, -1], before[:, -1])


# -- parameters ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("S_q", [1, 60])
@pytest.mark.parametrize("sm_scale", [1.0, 1e-3, 0.0, -0.2])
@pytest.mark.parametrize("dtype", FLOATS)
def test_scales(dtype: torch.dtype, sm_scale: float, S_q: int) -> None:
    q, k, v = qkv(dtype, S_q, 90)
    if sm_scale == 1.0:
        q *= 0.2
    check(GQADenseFwdOp(sm_scale=sm_scale)(q, k, v), gqa_dense(q, k, v, sm_scale=sm_scale))


@pytest.mark.parametrize("S_q", [1, 60])
@pytest.mark.parametrize("softcap", [0.5, 30.0])
@pytest.mark.parametrize("dtype", FLOATS)
def test_softcap(dtype: torch.dtype, softcap: float, S_q: int) -> None:
    q, k, v = qkv(dtype, S_q, 90)
    for scale in (None, -0.5):
        params = {"softcap": softcap, "sm_scale": scale}
        check(GQADenseFwdOp(**params)(q, k, v), gqa_dense(q, k, v, **params))


@pytest.mark.parametrize("S_q", [1, 40])
def test_output_dtype(S_q: int) -> None:
    q, k, v = qkv(torch.bfloat16, S_q, 50)
    o = GQADenseFwdOp(out_dtype=torch.float32)(q, k, v)
    assert o.dtype == torch.float32
    error = float((o.double() - gqa_dense(q, k, v)).abs().max())
    assert error < 8e-3  # the weights are rounded to bfloat16, the result is not


def test_what_is_not_served_says_why() -> None:
    q, k, v = qkv(torch.float32, 2, 4)
    tables = torch.ones(4, 32), torch.zeros(4, 32)
    with pytest.raises(DispatchError, match="rotate q and k"):
        GQADenseFwdOp(pos_encoding_mode="rope")(q, k, v, None, None, None, *tables)


def test_wrong_calls_name_the_declaration() -> None:
    q, k, v = qkv(torch.float32, 2, 4)
    op = GQADenseFwdOp()
    for tensors, message in (
        ((q, k[..., :32], v), "D"),
        ((q, k, v[:, :3]), "S_kv"),
        ((q.half(), k, v), "k has dtype float32, expected float16"),
        ((q[:, :, :5], k, v), "H % H_kv"),
        ((q[0], k, v), "q"),
    ):
        with pytest.raises(CheckError, match=message):
            op(*tensors)
    with pytest.raises(CheckError, match="softcap"):
        GQADenseFwdOp(softcap=-1.0)


# -- layouts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("S_q", [1, 24])
@pytest.mark.parametrize("dtype", FLOATS)
def test_every_layout(dtype: torch.dtype, S_q: int) -> None:
    q, k, v = qkv(dtype, S_q, 37, D=16, B=2)
    op, want = GQADenseFwdOp(), gqa_dense(q, k, v)
    for views in zip(inputs.layouts(q), inputs.layouts(k), inputs.layouts(v), strict=True):
        name = views[0][0]
        o = op(*(view for _, view in views))
        check(o, want, context=name)
        assert o.is_contiguous()
    for _, view in inputs.layouts(k):
        check(op(q, view, v), want)


@pytest.mark.parametrize("S_q", [1, 24])
@pytest.mark.parametrize("dtype", FLOATS)
def test_expanded_batches_and_heads(dtype: torch.dtype, S_q: int) -> None:
    q, k, v = qkv(dtype, S_q, 37, B=2)
    k, v = k[:1, :, :1].expand_as(k), v[:1].expand_as(v)
    check(GQADenseFwdOp()(q, k, v), gqa_dense(q, k, v))


@pytest.mark.parametrize("S_q", [1, 24])
def test_axes_of_one_element_have_any_stride(S_q: int) -> None:
    one, far = torch.ones(32), 1 << 62
    q, k = (one.as_strided((1, 1, 1, 32), (far, far, far, 1)).expand(1, tokens, 1, 32) for tokens in (S_q, 37))
    op = GQADenseFwdOp()
    for _ in range(3):
        check(op(q, k, k), torch.ones(1, S_q, 1, 32))


@pytest.mark.parametrize("S_q", [1, 24])
@pytest.mark.parametrize("dtype", FLOATS)
def test_prefix_of_a_cache_and_slice_of_a_projection(dtype: torch.dtype, S_q: int) -> None:
    """What lies beyond the keys, or beside the queries, is never touched: here it is NaN."""
    q, k, v = qkv(dtype, S_q, 37, H=9, H_kv=3)
    fused = torch.full((S_q, 960), torch.nan, dtype=dtype)
    fused[:, :576] = q.view(S_q, 576)
    caches = [torch.full((1, 64, 3, 64), torch.nan, dtype=dtype) for _ in range(2)]
    for cache, values in zip(caches, (k, v), strict=True):
        cache[:, :37] = values
    o = GQADenseFwdOp()(fused[:, :576].view(1, S_q, 9, 64), *(cache[:, :37] for cache in caches))
    check(o, gqa_dense(q, k, v), controls=True)


@pytest.mark.parametrize("S_q", [1, 24])
@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_beside_the_head_vectors_is_not_touched(dtype: torch.dtype, S_q: int) -> None:
    q, k, v = qkv(dtype, S_q, 37, D=24)
    wide = [torch.full((*x.shape[:3], 40), torch.nan, dtype=dtype) for x in (q, k, v)]
    for room, x in zip(wide, (q, k, v), strict=True):
        room[..., 5:29] = x
    check(GQADenseFwdOp()(*(room[..., 5:29] for room in wide)), gqa_dense(q, k, v))


# -- special values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("S_q", [1, 24])
@pytest.mark.parametrize("dtype", FLOATS)
def test_logits_far_below_zero(dtype: torch.dtype, S_q: int) -> None:
    """All logits near -1e5: the weights are those of their differences, here equal."""
    q, k, v = qkv(dtype, S_q, 40)
    q[:], k[:] = 40.0, -312.5
    o = GQADenseFwdOp(is_causal=False, sm_scale=0.125)(q, k, v)
    want = v.double().mean(1, keepdim=True).repeat_interleave(3, 2).expand(1, S_q, 6, 64)
    check(o, want)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-8), (torch.float16, 1e-6)])
def test_errors_have_no_preferred_sign(dtype: torch.dtype, most: float) -> None:
    q, k, _ = qkv(dtype, 40, 80)
    v = (torch.rand(1, 80, 2, 64, generator=inputs.generator("GQADenseFwdOp", "positive")) + 1).to(dtype)
    o = GQADenseFwdOp(is_causal=False, out_dtype=torch.float32)(q, k, v)
    want = gqa_dense(q, k, v, is_causal=False)
    assert abs(float(((o - want) / want).mean())) < most


@pytest.mark.parametrize("S_q", [1, 24])
@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_and_infinity_propagate(dtype: torch.dtype, S_q: int) -> None:
    op = GQADenseFwdOp(is_causal=False)
    q, k, v = qkv(dtype, S_q, 40)

    q[0, 0, 2, 5] = torch.nan  # one query of one head
    o = op(q, k, v)
    assert o[0, 0, 2].isnan().all()
    o[0, 0, 2] = 0
    assert o.isfinite().all()

    q, k, v = qkv(dtype, S_q, 40)
    k[0, 7, 1, 3] = torch.nan  # a key: every query of its group, no other
    o = op(q, k, v)
    assert o[:, :, 3:].isnan().all()
    assert o[:, :, :3].isfinite().all()

    q, k, v = qkv(dtype, S_q, 40)
    v[0, 7, 1, 3], v[0, 8, 0, 4] = torch.nan, torch.inf  # a value: its element of every query of its group
    o = op(q, k, v)
    assert o[:, :, 3:, 3].isnan().all()
    assert (o[:, :, :3, 4] == torch.inf).all()
    o[:, :, 3:, 3], o[:, :, :3, 4] = 0, 0
    assert o.isfinite().all()


def forms(dtype: torch.dtype) -> list[str]:
    """How this machine can compute the products of blocked attention (see `tileops.kernels.attention._panels`)."""
    target = jit.cpu_target()
    found = ["floats"]
    if dtype == torch.bfloat16 and target.has_avx512bf16:
        found.append("pairs")
    if target.has_amx:
        found.append({torch.bfloat16: "amx1", torch.float16: "amx2", torch.float32: "amx3"}[dtype])
    return found


@pytest.mark.parametrize(
    ("dtype", "is_dense"),
    [
        *((dtype, True) for dtype in FLOATS),
        (torch.float32, False),
        *(pytest.param(dtype, False, marks=pytest.mark.nightly) for dtype in FLOATS[1:]),
    ],
)
def test_hidden_keys_are_not_part_of_any_arithmetic(
    dtype: torch.dtype, is_dense: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a mask hides may be infinite or NaN: the queries that do not see it give the same bits.

    Gathered elements, which are compiled apart, are tried in one dtype here, in the others in the nightly tests.
    """
    for form in forms(dtype):
        monkeypatch.setattr(gqa_dense_cpu, "_form", lambda call, form=form: form)
        # Queries s see keys s + 41 - 20 .. s + 41: blocks of keys are hidden in part on both sides.
        op = GQADenseFwdOp(window_size_left=20)
        q, k, v = qkv(dtype, 40, 81)
        if not is_dense:
            k, v = (x.transpose(1, 3).contiguous().transpose(1, 3) for x in (k, v))
        clean = op(q, k, v)
        for which, x in enumerate((k, v)):
            for value in (torch.nan, torch.inf, -torch.inf):
                dirty = x.clone()
                dirty[:, 50] = value  # seen by queries 9 to 29
                got = op(q, dirty, v) if which == 0 else op(q, k, dirty)
                for rows in (slice(0, 9), slice(30, 40)):
                    assert torch.equal(bits(got[:, rows]), bits(clean[:, rows])), (form, "kv"[which], value)
                if which == 1:
                    assert not got[:, 9:30].isfinite().any(), (form, value)


@pytest.mark.parametrize("level", ["x86-64-v3", "generic"])
def test_hidden_values_on_other_instruction_sets(level: str) -> None:
    with settings.scope(cpu=level):
        q, k, v = qkv(torch.bfloat16, 40, 40)
        op = GQADenseFwdOp()
        clean = op(q, k, v)
        v[0, 33, 1, 5] = torch.nan
        got = op(q, k, v)
        assert got[:, 33:, 3:, 5].isnan().all()
        got[:, 33:, 3:, 5] = clean[:, 33:, 3:, 5]
        assert torch.equal(bits(got), bits(clean))


@pytest.mark.parametrize("params", [{"softcap": 3.0}, {"sm_scale": -0.3}, {"is_causal": False}], ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
def test_products_with_infinite_values_keep_their_signs(dtype: torch.dtype, params: dict[str, object]) -> None:
    """Infinities of both signs meet in an element only of the queries that see both."""
    q, k, v = qkv(dtype, 100, 300)
    v[0, 40, :, 7], v[0, 240, :, 7], v[0, 240, :, 8] = torch.inf, -torch.inf, -torch.inf
    op = GQADenseFwdOp(**params)
    o, last = op(q, k, v), 0 if "is_causal" in params else 40
    assert (o[:, :last, :, 7] == torch.inf).all()
    assert o[:, last:, :, 7].isnan().all()
    assert (o[:, last:, :, 8] == -torch.inf).all()
    assert o[:, :last, :, 8].isfinite().all()
    o[..., 7:9] = 0
    assert o.isfinite().all()


@pytest.mark.parametrize("S_q", [1, 24])
@pytest.mark.parametrize("dtype", FLOATS)
def test_infinite_logits(dtype: torch.dtype, S_q: int) -> None:
    op = GQADenseFwdOp(is_causal=False)
    q, k, v = qkv(dtype, S_q, 40)
    q[..., 0] = 1.0
    k[0, 7, :, 0] = -torch.inf  # weight zero, as if the key were masked
    keep = [i for i in range(40) if i != 7]
    check(op(q, k, v), gqa_dense(q, k[:, keep], v[:, keep], is_causal=False))
    k[0, 7, :, 0] = torch.inf  # inf - inf
    assert op(q, k, v).isnan().all()
    k[:, :, :, 0] = -torch.inf  # nothing is left: zeros, as scaled_dot_product_attention
    assert torch.equal(op(q, k, v), torch.zeros_like(q))
    assert not gqa_dense(q, k, v, is_causal=False).any()


# -- threads and compiles --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("S_q", "S_kv"), [(1, 1025), (3, 2000), (300, 300), (40, 1000)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_results_do_not_depend_on_the_number_of_threads(dtype: torch.dtype, S_q: int, S_kv: int) -> None:
    q, k, v = qkv(dtype, S_q, S_kv, B=2)
    op = GQADenseFwdOp()
    one, two = (at_threads(count, lambda: op(q, k, v)) for count in (1, 2))
    assert torch.equal(bits(one), bits(two))


def test_calls_from_several_threads() -> None:
    op = GQADenseFwdOp()
    calls = [qkv(torch.bfloat16, S_q, S_kv) for S_q, S_kv in ((1, 300), (1, 700), (50, 90), (90, 90))]
    want = [op(*call) for call in calls]
    wrong: list[int] = []

    def run(which: int) -> None:
        for _ in range(30):
            if not torch.equal(op(*calls[which]), want[which]):
                wrong.append(which)

    threads = [threading.Thread(target=run, args=(which,)) for which in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_growing_cache_compiles_nothing() -> None:
    op = GQADenseFwdOp()
    q, k, v = qkv(torch.bfloat16, 64, 700)
    op(q[:, :40], k[:, :40], v[:, :40])
    op(q[:, :1], k[:, :41], v[:, :41])
    before = jit.stats().compiled + jit.stats().loaded
    for S_kv in (42, 43, 128, 129, 500, 700):
        op(q[:, :1], k[:, :S_kv], v[:, :S_kv])
        op(q[:, :2], k[:, :S_kv], v[:, :S_kv])
        op(q[:, :30], k[:, :S_kv], v[:, :S_kv])
    assert jit.stats().compiled + jit.stats().loaded == before


# -- other instruction sets ------------------------------------------------------------------------------------


@INSTRUCTION_SETS
def test_portable_instruction_sets(instruction_set: str, dtype: torch.dtype) -> None:
    with settings.scope(cpu=instruction_set):
        for S_q, S_kv, params in (
            (1, 300, {}),
            (5, 40, {"window_size_left": 9}),
            (70, 70, {}),
            (40, 300, {"is_causal": False, "sm_scale": -0.1}),
        ):
            q, k, v = qkv(dtype, S_q, S_kv)
            check(GQADenseFwdOp(**params)(q, k, v), gqa_dense(q, k, v, **params), controls=True)
        if dtype == torch.float16:  # gathered element by element
            q, k, v = qkv(dtype, 40, 37, D=7)
            check(GQADenseFwdOp()(q, k, v), gqa_dense(q, k, v))


def test_the_reference_is_attention() -> None:
    """Two keys by hand: weights 1 / (1 + e) and e / (1 + e)."""
    q, k, v = torch.ones(1, 1, 1, 1), torch.tensor([0.0, 1.0]), torch.tensor([2.0, 6.0])
    want = (2.0 + 6.0 * math.e) / (1.0 + math.e)
    k, v = k.view(1, 2, 1, 1), v.view(1, 2, 1, 1)
    assert gqa_dense(q, k, v).item() == pytest.approx(want)
    assert GQADenseFwdOp()(q, k, v).item() == pytest.approx(want, rel=1e-6)
